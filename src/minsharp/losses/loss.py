"""What a loss is: a sum, or a mean, of convex terms, one per sample, with the factor of each term's output Hessian."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Criterion = nn.Module | Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Columns:
    """The columns of S for one batch, made a few at a time: ``slice(start, stop) -> (n, stop - start, *output)``."""

    rank: int
    slice: Callable[[int, int], Tensor]


class Loss(ABC):
    """A loss that is a sum, or a mean, of convex terms, one per sample."""

    mean: bool
    name: str
    """What was measured, options included: results add up only if it is the same."""

    @abstractmethod
    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """Refuse outputs and targets that do not go together."""

    @abstractmethod
    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """The sum of the terms of a batch, differentiable."""

    @abstractmethod
    def weight(self, outputs: Tensor, targets: Tensor | None) -> float:
        """What a mean over this batch divides by."""

    @abstractmethod
    def columns(self, outputs: Tensor, targets: Tensor | None) -> Columns:
        """The factor S of each sample's term."""

    @property
    @abstractmethod
    def needs_targets(self) -> bool:
        """Whether the Hessian depends on the targets."""

    def any_targets(self, outputs: Tensor) -> Tensor:
        """Targets that fit, for losses whose Hessian does not depend on them."""
        return torch.zeros_like(outputs)

    def energy(self, outputs: Tensor) -> float:
        """How large the outputs are, where a measure sets the curvature in relation to that; summed over a batch."""
        return 0.0

    @abstractmethod
    def rank(self, shape: tuple[int, ...]) -> int:
        """The number of columns for outputs of this shape (for one sample)."""
