"""The outputs of a network over all the data, by its own forward pass: what a margin is measured against."""

from collections.abc import Callable, Iterator
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
from ..rules.contraction import widest
from ..subject.batches import Batch, Data, batches, chunks
from ..subject.inputs import call_form, tensors_of
from ..subject.modes import eval_mode, random_state_kept
from ..subject.outputs import picked
from ..subject.shards import is_read_once
from ..text import count as counted

SAMPLES = 256  # at a time
FLOOR = 0.05  # of the root mean square margin
_ROUNDING = 1e-9  # of sums in another order


def outputs_of(
    network: Network, data: Data, through: Callable[[Iterator[Batch]], Iterator[Batch]] = iter
) -> Iterator[tuple[Tensor, Batch]]:
    """The outputs, classes wherever the network has them, with the samples that they belong to."""
    module = network.module
    device = next((p.device for p in network.parameters.values()), torch.device("cpu"))
    for batch in chunks(through(batches(data)), SAMPLES):
        with torch.no_grad(), eval_mode(module), random_state_kept(device):
            args, kwargs = call_form(module, batch.to(device).inputs)
            outputs = picked(module(*args, **kwargs))
        if not is_finite(outputs):
            raise first_non_finite(network, network.bind(batch.to(device).inputs))
        yield outputs, batch


class Margins(NamedTuple):
    """The squares of some margins, added up: those of parts of the data make those of the whole."""

    squares: float
    numbers: int

    def floored(self) -> Margin:
        """A margin with a floor that scales with the outputs: a twentieth of the root mean square of these."""
        if not self.squares > 0:
            raise UndefinedError("every margin on this data is zero: the outputs tell no class from another")
        return Margin(FLOOR * sqrt(self.squares / self.numbers))


class _Tally:
    """What some data holds, in whatever order: samples, and sums over all numbers of the inputs."""

    def __init__(self) -> None:
        self.samples, self.total, self.size = 0, 0.0, 0.0

    def counting(self, stream: Iterator[Batch]) -> Iterator[Batch]:
        """The same stream, counted on its way."""
        for batch in stream:
            self.samples += len(batch)
            for tensor in tensors_of(batch.inputs):
                self.total += float(widest(tensor).sum())
                self.size += float(widest(tensor.abs() if tensor.is_floating_point() else tensor).sum())
            yield batch

    def watched(self, stream: Iterator[Batch]) -> Iterator[Batch]:
        """The same stream, which has to come to the same at its end."""
        other = _Tally()
        yield from other.counting(stream)
        if other.samples != self.samples or abs(other.total - self.total) > _ROUNDING * self.size:
            numbers = "" if other.samples != self.samples else ", with other numbers"
            raise InputError(
                f"the data changed between two passes: {counted(self.samples)} samples in the first, "
                f"{counted(other.samples)} in the second{numbers}. "
                f'curvature="margin" reads it twice, the first time for the floor under small margins. Random '
                "transforms, or a sampler that draws anew? Pass one pass of it, data=list(loader), or give the floor, "
                "as in loss=minsharp.losses.Margin(floor=0.1)"
            )


def lacks_floor(loss: object) -> bool:
    """Whether a loss is a margin whose floor the data has to say."""
    margin = loss.inner if isinstance(loss, OnAxis) else loss
    return isinstance(margin, Margin) and margin.floor is None


def with_floor(loss: Loss, network: Network, data: Data, stream: Iterator[Batch]) -> tuple[Loss, Iterator[Batch]]:
    """A margin with the floor that the data gives it, and the stream of the second pass, watched.

    Any other loss, and a margin that has its floor, stays as it is.
    """
    if not lacks_floor(loss):
        return loss, stream
    seen = _Tally()
    floored = _margins(loss, network, data, seen).floored()
    return (OnAxis(floored, loss.class_axis) if isinstance(loss, OnAxis) else floored), seen.watched(stream)


def margins_of(loss: Loss, network: Network, data: Data) -> Margins:
    """The margins of all the data, which is read once more for that."""
    return _margins(loss, network, data, _Tally())


def _margins(loss: Loss, network: Network, data: Data, seen: _Tally) -> Margins:
    if is_read_once(data):
        raise InputError(
            'curvature="margin" reads the data twice, the first time for the floor under small margins: pass a tensor, '
            "a pair, a list or a DataLoader, or give the floor, as in loss=minsharp.losses.Margin(floor=0.1)"
        )
    squares, numbers = 0.0, 0
    for outputs, _ in outputs_of(network, data, seen.counting):
        margins = wide(Margin().margins(classes_first(outputs, loss)))
        squares, numbers = squares + float(margins.square().sum()), numbers + margins.numel()
    return Margins(squares, numbers)


def classes_first(outputs: Tensor, loss: Loss) -> Tensor:
    """The outputs with the classes on axis 1, along which margins are taken."""
    return outputs.movedim(loss.class_axis, 1) if outputs.dim() > 2 else outputs
