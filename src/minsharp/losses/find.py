"""Which loss a torch criterion is."""

from functools import cache
from typing import Any

import torch.nn.functional as F
from torch import nn

from ..errors import LossError
from .convex import AnyConvex
from .cross_entropy import CrossEntropy
from .loss import Criterion, Loss
from .separate import BinaryCrossEntropy, SquaredError
from .wording import name_of


@cache
def default_loss() -> Loss:
    """Cross-entropy, for who names no loss."""
    return as_loss(nn.CrossEntropyLoss())


def as_loss(criterion: Criterion | None) -> Loss:
    """The loss behind a torch criterion; a `Loss` is one already."""
    if criterion is None:
        return default_loss()
    if isinstance(criterion, Loss):
        return criterion
    known: dict[Any, type[nn.Module]] = {
        F.cross_entropy: nn.CrossEntropyLoss,
        F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
        F.mse_loss: nn.MSELoss,
    }
    if isinstance(criterion, type):
        raise LossError(f"got the class {criterion.__name__}, expected one of its kind: loss={criterion.__name__}(...)")
    if not callable(criterion):
        raise LossError(
            f"expected a criterion such as nn.CrossEntropyLoss() or a minsharp.losses.Loss, got {criterion!r}"
        )
    if not isinstance(criterion, nn.Module) and criterion in known:
        criterion = known[criterion]()
    if getattr(criterion, "reduction", "mean") not in ("mean", "sum"):
        raise LossError(
            f"{name_of(criterion)} has reduction={criterion.reduction!r}; expected 'mean' or 'sum', as in "  # type: ignore[union-attr]
            f"{type(criterion).__name__}(reduction='mean')"
        )
    if type(criterion) is nn.CrossEntropyLoss:
        return CrossEntropy(criterion)
    if type(criterion) is nn.BCEWithLogitsLoss:
        return BinaryCrossEntropy(criterion)
    if type(criterion) is nn.MSELoss:
        return SquaredError(criterion)
    if type(criterion) is nn.NLLLoss:
        raise LossError(
            "NLLLoss on log-probabilities hides the softmax inside the network. Let the network return logits and "
            "use loss=nn.CrossEntropyLoss(): the same loss"
        )
    return AnyConvex(criterion)
