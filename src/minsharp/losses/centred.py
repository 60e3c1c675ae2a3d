"""The outputs themselves in place of a loss."""

from math import prod

import torch
from torch import Tensor

from .columns import Columns
from .factor import Factor, SoftmaxRows
from .separate import Separate
from .softmax import softmax_columns
from .wording import wide


class Centred(Separate):
    """No loss: half the squared norm of the centred outputs c = o - mean(o), whose factor is S = I - 11^T/K.

    This is ``curvature="jacobian"``: the curvature is E ||dc/dP||^2, whatever the loss and the labels. The mean is over
    classes, the axis after the samples'; a single output has nothing to be centred on, and stays as it is.
    """

    mean = True
    has_classes = True
    name = "centred outputs"
    needs_targets = False

    @staticmethod
    def _classes(shape: tuple[int, ...]) -> int:
        return shape[1] if len(shape) > 1 else 1

    def rank(self, shape: tuple[int, ...]) -> int:
        """K - 1 per position, or one per entry where nothing is centred."""
        K = self._classes(shape)
        return prod(shape) if K == 1 else (K - 1) * prod(shape[2:])

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """Any targets will do, and none."""

    def weight(self, outputs: Tensor, targets: Tensor | None) -> float:
        """Samples, times positions."""
        return float(outputs.numel() // self._classes(tuple(outputs.shape)))

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """Half of ||c||^2, summed."""
        centred = outputs - outputs.mean(1, keepdim=True) if self._classes(tuple(outputs.shape)) > 1 else outputs
        return centred.square().sum() / 2

    def energy(self, outputs: Tensor) -> float:
        """The sum over the batch of ||c||^2."""
        return 2 * float(self.total(wide(outputs), None))

    def second_derivative(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """One, where nothing is centred."""
        return torch.ones_like(outputs)

    def columns(self, outputs: Tensor, targets: Tensor | None) -> Columns:
        """I - 11^T/K is K times the softmax's matrix at p = 1/K."""
        K = self._classes(tuple(outputs.shape))
        if K == 1:
            return super().columns(outputs, None)
        p = self._uniform(outputs)
        columns = softmax_columns(p, p.new_full(p.shape[:2], K), outputs[:1])
        expand = (len(outputs), *[-1] * outputs.dim())
        return Columns(columns.rank, lambda start, stop: columns.slice(start, stop).expand(expand))

    def goes_by_rows(self, rank: int) -> bool:
        """The classes are on axis 1."""
        return rank == 2

    def factor(self, outputs: Tensor, targets: Tensor | None) -> Factor:
        """Likewise, position by position."""
        K = self._classes(tuple(outputs.shape))
        if K == 1:
            return super().factor(outputs, None)
        p = self._uniform(outputs).expand(len(outputs), -1, -1)
        return SoftmaxRows(p, p.new_full(p.shape[:2], K), outputs, 1)

    def _uniform(self, outputs: Tensor) -> Tensor:
        """Probabilities 1/K at all positions of one sample: (1, positions, K)."""
        K = outputs.shape[1]
        return wide(outputs.new_ones(1, prod(outputs.shape[2:]), K)) / K
