"""What rounding each tensor alone does to the loss: no curvature, but a run of the network for each number of bits.

Rounding tensor P to b bits raises the loss from L(w) to L(w with P rounded), by as much as it really does, where
curvature knows the second order only. Small differences are as much chance as the data is: a rise below zero is none.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from ..errors import InputError, LossError, NonFiniteError
from ..losses import Criterion, Loss, as_loss
from ..losses.axis import on_axis
from ..network.finite import first_non_finite, is_finite
from ..network.network import Network
from ..progress import bar
from ..subject.batches import Batch, Data, batches, chunks, count, first_of
from ..subject.inputs import call_form
from ..subject.modes import eval_mode, random_state_kept
from ..subject.outputs import picked
from .noise import Noise, quantized

SAMPLES = 256  # at a time


def rises(
    network: Network,
    data: Data,
    criterion: Criterion | None,
    names: Sequence[str],
    choices: Sequence[int],
    noise: Noise,
    progress: bool = False,
) -> dict[str, Tensor]:
    """How much the loss over the data grows when each tensor alone has each number of bits: (1, choices) of each.

    One pass over the data: every rounding is run on a part of it before the next is read.
    """
    first, stream = first_of(batches(data))
    shape = network.graph.values[network.graph.output].shape
    loss = on_axis(as_loss(criterion), shape, first.targets, network.class_axis)
    runs = [(name, bits) for name in names for bits in choices]
    samples, weight = count(data) if progress else None, 0.0
    still, moved = torch.zeros((), dtype=torch.float64), torch.zeros(len(runs), dtype=torch.float64)
    with bar("rounding each tensor", None if samples is None else samples * len(runs), progress) as advance:
        for batch in chunks(stream, SAMPLES):
            part = _Part(network, batch, loss)
            weight += part.weight
            still += part.still
            for k, (name, bits) in enumerate(runs):
                moved[k] += part.total({name: quantized(network.parameters[name].detach(), bits, noise)})
                advance(len(batch))
    if not weight:
        raise LossError(f"{loss.name} over this data weighs nothing: every target is ignored, or has weight zero")
    grown = (moved - still) / (weight if loss.mean else 1.0)
    for (name, bits), value in zip(runs, grown.tolist(), strict=True):
        if not abs(value) < torch.inf:
            raise NonFiniteError(
                f"with '{name}' rounded to {bits} bits the loss is not finite: leave them out of bits="
            )
    rows = grown.clamp_min(0).view(len(names), 1, len(choices))
    return dict(zip(names, rows, strict=True))


class _Part:
    """Some of the samples, and the loss on them as a function of parameters that are replaced."""

    def __init__(self, network: Network, batch: Batch, loss: Loss) -> None:
        self.network, self.loss = network, loss
        self.device = next((p.device for p in network.parameters.values()), torch.device("cpu"))
        self.batch = batch.to(self.device)
        if batch.targets is None:
            raise InputError(UNLABELLED)
        outputs = self._outputs({})
        if not is_finite(outputs):
            raise first_non_finite(network, network.bind(self.batch.inputs))
        loss.check(outputs, self.batch.targets)
        self.weight = loss.weight(outputs, self.batch.targets)
        self.still = float(loss.total(outputs, self.batch.targets))
        if not abs(self.still) < torch.inf:
            raise NonFiniteError("the loss over this data is not finite with the weights as they are, before rounding")

    def total(self, changed: Mapping[str, Tensor]) -> float:
        """The terms of the loss, added up."""
        return float(self.loss.total(self._outputs(changed), self.batch.targets))

    def _outputs(self, changed: Mapping[str, Tensor]) -> Tensor:
        module = self.network.module
        with torch.no_grad(), eval_mode(module), random_state_kept(self.device):
            args, kwargs = call_form(module, self.batch.inputs)
            return picked(functional_call(module, dict(changed), args, kwargs))


UNLABELLED = (
    "what rounding does to the loss is measured with targets: pass data=(inputs, targets), or ask for "
    'costs="curvature", which needs none'
)
