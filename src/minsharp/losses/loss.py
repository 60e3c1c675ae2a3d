"""What a loss is: a sum, or a mean, of convex terms, one per sample, with the factor of each term's output Hessian."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from math import prod
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..errors import LossError
from .columns import Columns
from .factor import Factor, Listed
from .wording import shape_of


class Loss(ABC):
    """A loss that is a sum, or a mean, of convex terms, one per sample: write `total` and `columns`, and pass it.

    ``columns`` returns S with S S^T = d²term/do² for each sample, o its outputs. Everything else has a default: a mean
    over samples, whose Hessian may depend on the targets. `minsharp.laws.check_loss` tells whether the two agree.

    The squared distance to the target in a metric M = A A^T of one's own, (o - y)^T M (o - y) / 2, has S = A. One
    layer of weights has the trace tr(M) ||x||^2, here (4 + 1) * 9:

    >>> import minsharp as ms
    >>> class Metric(ms.losses.Loss):
    ...     needs_targets = False
    ...     def __init__(self, A):
    ...         self.A = A
    ...     def total(self, outputs, targets):
    ...         return ((outputs - targets) @ self.A.to(outputs)).square().sum() / 2
    ...     def columns(self, outputs, targets):
    ...         return ms.losses.Columns.of(self.A.to(outputs).mT.expand(len(outputs), -1, -1))
    >>> loss = Metric(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    >>> x = torch.tensor([[1.0, 2.0, 2.0]])
    >>> round(ms.hessian_trace(nn.Linear(3, 2, bias=False), x, loss=loss).total, 4)
    45.0
    """

    mean: bool = True
    """Whether the criterion divides by the `weight` of all the data."""
    has_classes: bool = False
    """Whether one axis of the outputs runs over classes: axis 1, unless `OnAxis` moves it."""
    class_axis: int = 1

    @cached_property
    def name(self) -> str:
        """What was measured, options included: results add up only if it is the same. By default, class and options."""
        given = {key: value for key, value in vars(self).items() if not key.startswith("_")}
        plain = {k: v.tolist() if isinstance(v, Tensor) else v for k, v in given.items()}
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in plain.items())})"

    @abstractmethod
    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """The sum of the terms of a batch, differentiable."""

    @abstractmethod
    def columns(self, outputs: Tensor, targets: Tensor | None) -> Columns:
        """The factor S of each sample's term, in the type of the outputs."""

    @property
    def needs_targets(self) -> bool:
        """Whether the Hessian depends on the targets."""
        return True

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """Refuse outputs and targets that do not go together."""
        if targets is None:
            if self.needs_targets:
                raise LossError(f"{self.name} needs targets: pass data=(inputs, targets)")
        elif targets.dim() == 0 or len(targets) != len(outputs):
            raise LossError(f"expected one target for each of {len(outputs)} samples, got {shape_of(targets)}")

    def factor(self, outputs: Tensor, targets: Tensor | None) -> Factor:
        """The same columns, or others with the same S S^T, in a form in which they can be mixed."""
        return Listed(self.columns(outputs, targets))

    def goes_by_rows(self, rank: int) -> bool:
        """Whether the factor for outputs with so many axes goes row by row along the last of them: see `Rows`."""
        return False

    def weight(self, outputs: Tensor, targets: Tensor | None) -> float:
        """What a mean over this batch divides by: the number of samples."""
        return float(len(outputs))

    def rank(self, shape: tuple[int, ...]) -> int:
        """The most columns that outputs of this shape, (1, *output), can have: one per entry."""
        return prod(shape)

    def any_targets(self, outputs: Tensor) -> Tensor:
        """Targets that fit, for losses whose Hessian does not depend on them."""
        return torch.zeros_like(outputs)

    def judged(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The class that each prediction is held against, and which of them count: all."""
        return targets, torch.ones_like(targets, dtype=torch.bool)

    def judges(self, targets: Tensor) -> bool:
        """Whether the targets are classes, which predictions are right or wrong about: whole numbers, or all 0 or 1."""
        return not targets.dtype.is_floating_point or bool(((targets == 0) | (targets == 1)).all())

    def energy(self, outputs: Tensor) -> float:
        """How large the outputs are, where a measure sets the curvature in relation to that; summed over a batch."""
        return 0.0

    def double(self) -> Self:
        """The same loss with its own tensors in double precision."""
        wide = copy.copy(self)
        wide.__dict__.update({key: _doubled(value) for key, value in vars(self).items()})
        wide.__dict__["name"] = self.name  # of the same options
        return wide


def _doubled(value: Any) -> Any:
    if isinstance(value, Loss):
        return value.double()
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    return value.detach().double() if isinstance(value, Tensor) and value.dtype.is_floating_point else value


Criterion = nn.Module | Callable[[Tensor, Tensor], Tensor] | Loss
