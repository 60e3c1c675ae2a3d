"""A factor S of the output Hessian whose columns may be mixed, without writing all of them out.

Where the loss is a sum over positions, as cross-entropy on (n, positions, classes) is, S falls into one block per
position: `Rows`. With K classes it has K columns there, one more than it needs, but each product with it takes K
multiplications instead of K².
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from math import prod
from typing import Self

import torch
from torch import Tensor

from .columns import Columns
from .wording import wide


class Factor(ABC):
    """S with S S^T = d²term/do² for each sample of a batch; a column of S for each of its ``entries``."""

    @property
    @abstractmethod
    def entries(self) -> tuple[int, ...]:
        """How the columns of a sample are counted: one size, or positions and classes."""

    @property
    @abstractmethod
    def energies(self) -> Tensor:
        """The squared length of every column: (n, *entries). They add up to the trace of the output Hessian."""

    @abstractmethod
    def mixed(self, coefficients: Tensor) -> Tensor:
        """Sums of columns: (n, R, *entries) -> (n, R, *output)."""


class Listed(Factor):
    """Columns that are there as they are: (n, R, *output)."""

    def __init__(self, columns: Columns):
        self.columns = columns

    @property
    def entries(self) -> tuple[int, ...]:
        """The number of columns."""
        return (self.columns.rank,)

    @cached_property
    def _made(self) -> Tensor:
        return self.columns.slice(0, self.columns.rank)

    @property
    def _flat(self) -> Tensor:
        return self._made.reshape(*self._made.shape[:2], prod(self._made.shape[2:]))

    @cached_property
    def energies(self) -> Tensor:
        """(n, R, *output) -> (n, R)."""
        return wide(self._flat).square().sum(2)

    def mixed(self, coefficients: Tensor) -> Tensor:
        """(n, R, columns) -> (n, R, *output)."""
        mixed = coefficients.to(self._made) @ self._flat
        return mixed.reshape(*mixed.shape[:2], *self._made.shape[2:])


class Rows(Factor):
    """One block for each row, that is, each position of each sample: (n, positions, K).

    ``like`` are the outputs, and ``axis`` is theirs that K runs along; all others but the first are positions.
    """

    def __init__(self, like: Tensor, axis: int):
        self.like = like
        self.axis = axis % like.dim()

    @property
    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonal of the output Hessian: (n, positions, K), wide."""

    @abstractmethod
    def times(self, weight: Tensor, sample: int) -> Tensor:
        """S^T W for the rows of one sample: (K, d) -> (positions, K, d), in the type of the weight."""

    @abstractmethod
    def apply(self, coefficients: Tensor) -> Tensor:
        """S E at every row: (n, R, positions, K) -> (n, R, positions, K), wide."""

    @property
    def entries(self) -> tuple[int, ...]:
        """Positions and classes."""
        return self.diagonal.shape[1], self.diagonal.shape[2]

    def on(self, outputs: Tensor, axis: int) -> Self:
        """The same rows for outputs that have K on another axis, and everything else in the same order."""
        other = copy(self)
        Rows.__init__(other, outputs, axis)
        return other

    def mixed(self, coefficients: Tensor) -> Tensor:
        """(n, R, positions, K) -> (n, R, *output)."""
        made = self.apply(coefficients).to(self.like.dtype)
        shape = list(self.like.shape[1:])
        K = shape.pop(self.axis - 1)
        return made.view(*made.shape[:2], *shape, K).movedim(-1, self.axis + 1)


class SeparateRows(Rows):
    """A diagonal: S = diag(root), for roots shaped like the outputs. Every entry is by itself; the last axis counts."""

    def __init__(self, root: Tensor, like: Tensor):
        super().__init__(like if like.dim() > 1 else like.unsqueeze(1), -1)
        self.root = root.reshape(len(like), -1, self.like.shape[-1])
        self.shape = like.shape[1:]

    @cached_property
    def diagonal(self) -> Tensor:
        """The second derivatives."""
        return self.root.square()

    @property
    def energies(self) -> Tensor:
        """The same: each column has one entry."""
        return self.diagonal

    def times(self, weight: Tensor, sample: int) -> Tensor:
        """Each row of the weight times its root."""
        return self.root[sample].to(weight.dtype).unsqueeze(2) * weight

    def apply(self, coefficients: Tensor) -> Tensor:
        """Entry by entry."""
        return self.root.unsqueeze(1) * coefficients

    def mixed(self, coefficients: Tensor) -> Tensor:
        """(n, R, positions, K) -> (n, R, *output)."""
        made = self.apply(coefficients).to(self.like.dtype)
        return made.view(*made.shape[:2], *self.shape)


class SoftmaxRows(Rows):
    """weight (diag p - p p^T), for probabilities p (n, positions, K): S = (diag(p) - p p^T) diag(p)^-1/2.

    Where one probability is all but one, differences with it lose all digits. So they are never taken: its complement
    is the sum of all others, and every column of S adds up to zero.
    """

    def __init__(self, p: Tensor, weight: Tensor | None, like: Tensor, axis: int):
        super().__init__(like, axis)
        self.p = p
        root = p.sqrt()
        self.root = root if weight is None else root * weight.reshape(*p.shape[:2], 1).sqrt()
        self.top = p.argmax(-1, keepdim=True)  # (n, positions, 1)

    @cached_property
    def _complement(self) -> Tensor:
        """1 - p: (n, positions, K)."""
        rest = self.p.scatter(-1, self.top, 0.0).sum(-1, keepdim=True)
        return (1 - self.p).scatter_(-1, self.top, rest)

    @cached_property
    def diagonal(self) -> Tensor:
        """p (1 - p), weighted."""
        return self.root.square() * self._complement

    @cached_property
    def energies(self) -> Tensor:
        """||S e_k||² = p_k ((1 - p_k)² + the sum of p_j² over the others)."""
        squares = self.p.square()
        others = squares.sum(-1, keepdim=True) - squares
        rest = squares.scatter(-1, self.top, 0.0).sum(-1, keepdim=True)
        return self.root.square() * (self._complement.square() + others.scatter_(-1, self.top, rest))

    def times(self, weight: Tensor, sample: int) -> Tensor:
        """sqrt(p_k) (W_k - p^T W), with W taken from its row of the largest probability."""
        p, top = self.p[sample].to(weight.dtype), self.top[sample, :, 0]  # (positions, K), (positions,)
        shifted = weight - weight[top].unsqueeze(1)  # (positions, K, d)
        mean = p.unsqueeze(1) @ shifted  # (positions, 1, d)
        return (shifted - mean).mul_(self.root[sample].to(weight.dtype).unsqueeze(2))

    def apply(self, coefficients: Tensor) -> Tensor:
        """sqrt(p) e - p <sqrt(p), e>; the largest is what the others leave."""
        scaled = self.root.unsqueeze(1) * coefficients  # (n, R, positions, K)
        made = scaled - self.p.unsqueeze(1) * scaled.sum(-1, keepdim=True)
        top = self.top.unsqueeze(1).expand(-1, made.shape[1], -1, -1)
        made.scatter_(-1, top, 0.0)
        return made.scatter_(-1, top, -made.sum(-1, keepdim=True))


def blocks(factor: Tensor, shape: Sequence[int]) -> Columns:
    """One column for each position and each of its r rows: (n, positions, r, d) -> columns (n, R, *positions, d)."""
    n, positions, r, d = factor.shape

    def slice(start: int, stop: int) -> Tensor:
        column = torch.arange(start, stop, device=factor.device)
        position, j = column // r, column % r
        full = factor.new_zeros(n, stop - start, positions, d)
        full[:, column - start, position] = factor[:, position, j]
        return full.view(n, stop - start, *shape, d)

    return Columns(positions * r, slice)
