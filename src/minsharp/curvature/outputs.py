"""The outputs of a network over all the data, by its own forward pass: what a margin is measured against."""

from collections.abc import Iterator
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InputError, UndefinedError
from ..losses import Loss, Margin
from ..losses.axis import OnAxis
from ..losses.wording import wide
from ..network.finite import first_non_finite, is_finite
from ..network.network import Network
from ..subject.batches import Batch, Data, batches, chunks
from ..subject.inputs import call_form
from ..subject.modes import eval_mode, random_state_kept
from ..subject.outputs import picked
from ..subject.shards import is_read_once

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
        yield outputs, batch


class Margins(NamedTuple):
    """The squares of some margins, added up: those of parts of the data make those of the whole."""

    squares: float
    count: int
    samples: int

    def floored(self) -> Margin:
        """A margin with a floor that scales with the outputs: a twentieth of the root mean square of these."""
        if not self.squares > 0:
            raise UndefinedError("every margin on this data is zero: the outputs tell no class from another")
        return Margin(FLOOR * sqrt(self.squares / self.count))


def lacks_floor(loss: object) -> bool:
    """Whether a loss is a margin whose floor the data has to say."""
    margin = loss.inner if isinstance(loss, OnAxis) else loss
    return isinstance(margin, Margin) and margin.floor is None


def with_floor(loss: Loss, network: Network, data: Data) -> tuple[Loss, int | None]:
    """A margin with the floor that the data gives it, and how many samples that is; another loss stays as it is."""
    if not lacks_floor(loss):
        return loss, None
    found = margins_of(loss, network, data)
    floored = found.floored()
    return (OnAxis(floored, loss.class_axis) if isinstance(loss, OnAxis) else floored), found.samples


def margins_of(loss: Loss, network: Network, data: Data) -> Margins:
    """The margins of all the data, which is read once more for that."""
    if is_read_once(data):
        raise InputError(
            'curvature="margin" reads the data twice, the first time for the floor under small margins: pass a tensor, '
            "a pair, a list or a DataLoader, or give the floor, as in loss=minsharp.losses.Margin(floor=0.1)"
        )
    squares, numbers, samples = 0.0, 0, 0
    for outputs, batch in outputs_of(network, data):
        if not is_finite(outputs):
            raise first_non_finite(network, network.bind(batch.inputs))
        margins = wide(Margin().margins(classes_first(outputs, loss)))
        squares, numbers = squares + float(margins.square().sum()), numbers + margins.numel()
        samples += len(batch)
    return Margins(squares, numbers, samples)


def classes_first(outputs: Tensor, loss: Loss) -> Tensor:
    """The outputs with the classes on axis 1, along which margins are taken."""
    return outputs.movedim(loss.class_axis, 1) if outputs.dim() > 2 else outputs
