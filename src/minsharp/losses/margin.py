"""The distance of a prediction from its nearest rival, in place of a loss."""

from math import prod

import torch
from torch import Tensor

from ..errors import LossError
from .columns import Columns
from .loss import Loss
from .wording import wide


class Margin(Loss):
    """No loss: how far noise moves each prediction towards its nearest rival, relative to how far away that is.

    With m = o_first - o_second, the largest output minus the second largest, the factor has one column for each
    prediction, S = (e_first - e_second) / max(m, floor): the curvature is E ||dm/dP||^2 / m^2, the squared ratio of
    noise to margin per unit of noise. This is ``curvature="margin"``. A single output is told from zero: m = |o|.

    ``floor`` keeps predictions that are nearly undecided from counting for everything. Where none is given,
    `hessian_trace` takes a twentieth of the root mean square margin of the data; to add up parts of the data, give the
    same floor for each of them.

    >>> S = Margin(floor=0.5).columns(torch.tensor([[3.0, 1.0, 0.0], [0.0, 0.1, 0.0]]), None)
    >>> S.rank, S.slice(0, 1)[0].tolist(), S.slice(0, 1)[1].tolist()
    (1, [[0.5, -0.5, 0.0]], [[-2.0, 2.0, 0.0]])
    """

    mean = True
    has_classes = True
    needs_targets = False

    def __init__(self, floor: float | None = None):
        if floor is not None and not 0 < floor < float("inf"):
            raise LossError(f"floor={floor!r}: expected a positive number in the units of the outputs, or none")
        self.floor = floor
        self.name = "margin" if floor is None else f"margin, at least {floor:.9g}"

    @staticmethod
    def _classes(shape: tuple[int, ...]) -> int:
        return shape[1] if len(shape) > 1 else 1

    def rank(self, shape: tuple[int, ...]) -> int:
        """One column for each prediction."""
        return prod(shape) // self._classes(shape)

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """Any targets will do, and none."""

    def weight(self, outputs: Tensor, targets: Tensor | None) -> float:
        """How many predictions there are: samples, times positions."""
        return float(outputs.numel() // self._classes(tuple(outputs.shape)))

    def directions(self, outputs: Tensor) -> Tensor:
        """dm/do, (n, K, *positions): one at the first, minus one at the second; of a single output, its sign."""
        if self._classes(tuple(outputs.shape)) == 1:
            return torch.where(outputs < 0, -1.0, 1.0).to(outputs)
        places = torch.stack(two_largest(outputs), dim=1)  # (n, 2, *positions)
        signs = torch.tensor([1.0, -1.0]).to(outputs).view(1, 2, *[1] * (outputs.dim() - 2)).expand(places.shape)
        return torch.zeros_like(outputs).scatter_(1, places, signs)

    def margins(self, outputs: Tensor) -> Tensor:
        """m of each prediction, none negative: (n, *positions)."""
        products = self.directions(outputs) * outputs
        return products.sum(1) if outputs.dim() > 1 else products

    def _sizes(self, outputs: Tensor) -> Tensor:
        """What a margin is compared with: itself, or the floor."""
        sizes = wide(self.margins(outputs).detach())
        if self.floor is not None:
            return sizes.clamp_min(self.floor)
        if not bool((sizes > 0).all()):
            raise LossError("a margin is zero, and there is no floor under it: loss=minsharp.losses.Margin(floor=0.1)")
        return sizes

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """Half of (m / size)^2, summed, the sizes as they are now."""
        return (wide(self.margins(outputs)) / self._sizes(outputs)).square().sum() / 2

    def columns(self, outputs: Tensor, targets: Tensor | None) -> Columns:
        """Column k is that of the k-th prediction of a sample, zero at the other positions."""
        sizes = self._sizes(outputs)
        S = wide(self.directions(outputs)) / (sizes.unsqueeze(1) if outputs.dim() > 1 else sizes)
        if outputs.dim() <= 2:
            return Columns.of(S.to(outputs.dtype).unsqueeze(1))
        flat = S.to(outputs.dtype).flatten(2)  # (n, K, positions)

        def slice(start: int, stop: int) -> Tensor:
            one = flat.new_zeros(len(flat), stop - start, *flat.shape[1:])
            for k in range(start, stop):
                one[:, k - start, :, k] = flat[:, :, k]
            return one.unflatten(3, outputs.shape[2:])

        return Columns(flat.shape[2], slice)


class PlainMargin(Margin):
    """The margin itself, in its own units: S = e_first - e_second, so that S^T J is dm/dP."""

    def _sizes(self, outputs: Tensor) -> Tensor:
        return torch.ones_like(wide(self.margins(outputs).detach()))


def two_largest(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The places of the largest of outputs (n, K, ...), K > 1, and of the second, (n, ...); of equal ones the first.

    So the largest is what argmax says, which `topk` need not be.

    >>> [places.tolist() for places in two_largest(torch.tensor([[0.0, 1.0, 1.0], [2.0, 2.0, 2.0]]))]
    [[1, 0], [2, 1]]
    """
    first = outputs.argmax(1)
    others = outputs.detach().scatter(1, first.unsqueeze(1), -torch.inf)
    return first, others.argmax(1)
