"""The outputs of a network over all the data, by its own forward pass: what a margin is measured against."""

from collections.abc import Iterator
from math import sqrt

import torch
from torch import Tensor

from ..errors import InputError
from ..losses import Loss, Margin
from ..losses.axis import OnAxis
from ..losses.wording import wide
from ..network.finite import first_non_finite, is_finite
from ..network.network import Network
from ..subject.batches import Batch, Data, batches, chunks
from ..subject.inputs import call_form
from ..subject.modes import eval_mode, random_state_kept
from ..subject.outputs import picked

SAMPLES = 256  # at a time
FLOOR = 0.05  # of the root mean square margin


def outputs_of(network: Network, data: Data) -> Iterator[tuple[Tensor, Batch]]:
    """The outputs, classes wherever the network has them, with the samples that they belong to."""
    module = network.module
    device = next((p.device for p in network.parameters.values()), torch.device("cpu"))
    for batch in chunks(batches(data), SAMPLES):
        with torch.no_grad(), eval_mode(module), random_state_kept(device):
            args, kwargs = call_form(module, batch.to(device).inputs)
            outputs = picked(module(*args, **kwargs))
        if not is_finite(outputs):
            raise first_non_finite(network, network.bind(batch.to(device).inputs))
        yield outputs, batch


def with_floor(loss: Loss, network: Network, data: Data) -> Loss:
    """A margin with a floor that scales with the outputs: a twentieth of the root mean square margin of the data.

    For that the data is read twice. Any other loss, and a margin that has its floor, stays as it is.
    """
    margin = loss.inner if isinstance(loss, OnAxis) else loss
    if not isinstance(margin, Margin) or margin.floor is not None:
        return loss
    if isinstance(data, Iterator):
        raise InputError(
            'curvature="margin" reads the data twice, the first time for the floor under small margins: pass a tensor, '
            "a pair, a list or a DataLoader, or give the floor, as in loss=minsharp.losses.Margin(floor=0.1)"
        )
    total = count = 0.0
    for outputs, _ in outputs_of(network, data):
        margins = wide(margin.margins(classes_first(outputs, loss)))
        total, count = total + float(margins.square().sum()), count + margins.numel()
    if not total > 0:
        raise InputError("every margin on this data is zero: the outputs tell no class from another")
    floored = Margin(FLOOR * sqrt(total / count))
    return OnAxis(floored, loss.class_axis) if isinstance(loss, OnAxis) else floored


def classes_first(outputs: Tensor, loss: Loss) -> Tensor:
    """The outputs with the classes on axis 1, along which margins are taken."""
    return outputs.movedim(loss.class_axis, 1) if outputs.dim() > 2 else outputs
