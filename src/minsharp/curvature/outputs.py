"""The outputs of a network over all the data, by its own forward pass: what a margin is measured against."""

from collections.abc import Iterator
from math import sqrt

import torch
from torch import Tensor

from ..errors import InputError
from ..losses import Loss, Margin
from ..losses.axis import OnAxis
from ..losses.wording import wide
from ..network.network import Network
from ..rules.contraction import widest
from ..subject.batches import Batch, Data, batches, chunks
from ..subject.inputs import call_form, tensors_of
from ..subject.modes import eval_mode, random_state_kept
from ..subject.outputs import picked
from ..text import count

SAMPLES = 256  # at a time
FLOOR = 0.05  # of the root mean square margin
_ROUNDING = 1e-9  # of sums in another order


def outputs_of(network: Network, data: Data) -> Iterator[tuple[Tensor, Batch]]:
    """The outputs, classes wherever the network has them, with the samples that they belong to."""
    module = network.module
    device = next((p.device for p in network.parameters.values()), torch.device("cpu"))
    for batch in chunks(batches(data), SAMPLES):
        with torch.no_grad(), eval_mode(module), random_state_kept(device):
            args, kwargs = call_form(module, batch.to(device).inputs)
            outputs = picked(module(*args, **kwargs))
        yield outputs, batch


class _Tally:
    """What some data holds, in whatever order: samples, and sums over all numbers of the inputs."""

    def __init__(self) -> None:
        self.samples, self.total, self.size = 0, 0.0, 0.0

    def add(self, batch: Batch) -> None:
        """Count a batch."""
        self.samples += len(batch)
        for tensor in tensors_of(batch.inputs):
            self.total += float(widest(tensor).sum())
            self.size += float(widest(tensor.abs() if tensor.is_floating_point() else tensor).sum())

    def watched(self, stream: Iterator[Batch]) -> Iterator[Batch]:
        """The same stream, which has to come to the same at its end."""
        other = _Tally()
        for batch in stream:
            other.add(batch)
            yield batch
        if other.samples != self.samples or abs(other.total - self.total) > _ROUNDING * self.size:
            raise InputError(
                f"the data changed between two passes: {count(self.samples)} samples in the first, "
                f"{count(other.samples)} in the second{'' if other.samples != self.samples else ', with other numbers'}. "
                f'curvature="margin" reads it twice, the first time for the floor under small margins. Random '
                "transforms, or a sampler that draws anew? Pass one pass of it, data=list(loader), or give the floor, "
                "as in loss=minsharp.losses.Margin(floor=0.1)"
            )


def with_floor(loss: Loss, network: Network, data: Data, stream: Iterator[Batch]) -> tuple[Loss, Iterator[Batch]]:
    """A margin with a floor that scales with the outputs: a twentieth of the root mean square margin of the data.

    For that the data is read twice, and the stream of the second pass is watched. Any other loss, and a margin that has
    its floor, stays as it is.
    """
    margin = loss.inner if isinstance(loss, OnAxis) else loss
    if not isinstance(margin, Margin) or margin.floor is not None:
        return loss, stream
    if isinstance(data, Iterator):
        raise InputError(
            'curvature="margin" reads the data twice, the first time for the floor under small margins: pass a tensor, '
            "a pair, a list or a DataLoader, or give the floor, as in loss=minsharp.losses.Margin(floor=0.1)"
        )
    total = number = 0.0
    seen = _Tally()
    for outputs, batch in outputs_of(network, data):
        seen.add(batch)
        margins = wide(margin.margins(classes_first(outputs, loss)))
        total, number = total + float(margins.square().sum()), number + margins.numel()
    if not total > 0:
        raise InputError("every margin on this data is zero: the outputs tell no class from another")
    floored = Margin(FLOOR * sqrt(total / number))
    return (OnAxis(floored, loss.class_axis) if isinstance(loss, OnAxis) else floored), seen.watched(stream)


def classes_first(outputs: Tensor, loss: Loss) -> Tensor:
    """The outputs with the classes on axis 1, along which margins are taken."""
    return outputs.movedim(loss.class_axis, 1) if outputs.dim() > 2 else outputs
