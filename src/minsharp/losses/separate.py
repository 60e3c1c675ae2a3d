"""Losses that are sums over the entries of the outputs: squared error, and binary cross-entropy."""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import LossError
from .columns import Columns
from .factor import Factor, SeparateRows
from .loss import Loss
from .wording import described, shape_of, wide


class Separate(Loss):
    """A loss that is a sum over the entries of the outputs: its Hessian is diagonal, `second_derivative` tells it all.

    As in torch, a mean divides by the number of entries, and targets are shaped like the outputs.
    """

    @abstractmethod
    def second_derivative(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """d²term/do² of each entry, shaped like the outputs, which come in double precision."""

    def weight(self, outputs: Tensor, targets: Tensor | None) -> float:
        """torch averages over entries, not over samples."""
        return float(outputs.numel())

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """Targets are shaped like the outputs."""
        if targets is None:
            if self.needs_targets:
                raise LossError(f"{self.name} needs targets: pass data=(inputs, targets)")
        elif targets.shape != outputs.shape:
            raise LossError(
                f"expected targets of shape {tuple(outputs.shape)}, as the outputs, got {shape_of(targets)}"
            )
        elif not targets.dtype.is_floating_point:
            raise LossError(f"expected floating point targets, got {targets.dtype}: use targets.float()")

    def _root(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        return self.second_derivative(wide(outputs), None if targets is None else wide(targets)).sqrt()

    def goes_by_rows(self, rank: int) -> bool:
        """Every entry is by itself."""
        return True

    def factor(self, outputs: Tensor, targets: Tensor | None) -> Factor:
        """A diagonal."""
        return SeparateRows(self._root(outputs, targets), outputs)

    def columns(self, outputs: Tensor, targets: Tensor | None) -> Columns:
        """One nonzero per column."""
        root = self._root(outputs, targets).reshape(len(outputs), -1).to(outputs.dtype)
        n, entries = root.shape

        def slice(start: int, stop: int) -> Tensor:
            full = root.new_zeros(n, stop - start, entries)
            full[:, :, start:stop] = torch.diag_embed(root[:, start:stop])
            return full.view(n, stop - start, *outputs.shape[1:])

        return Columns(entries, slice)


class BinaryCrossEntropy(Separate):
    """nn.BCEWithLogitsLoss: weight * (1 + (pos_weight - 1) y) * sigmoid'(o), entry by entry."""

    def __init__(self, criterion: nn.BCEWithLogitsLoss):
        self.entry_weight = criterion.weight
        self.pos_weight = criterion.pos_weight
        self.mean = criterion.reduction == "mean"
        self.name = described(criterion, "weight", "pos_weight", "reduction")
        for name, given in self._weights().items():
            if not bool((given >= 0).all() & given.isfinite().all()):
                raise LossError(f"BCEWithLogitsLoss has a {name} that is negative or not finite: not convex")

    def _weights(self) -> dict[str, Tensor]:
        both = {"weight": self.entry_weight, "pos_weight": self.pos_weight}
        return {name: given for name, given in both.items() if given is not None}

    @property
    def needs_targets(self) -> bool:
        """Only a pos_weight tells the two classes apart."""
        return self.pos_weight is not None

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """And probabilities: outside [0, 1] the loss need not be convex."""
        super().check(outputs, targets)
        if targets is not None and bool(((targets < 0) | (targets > 1)).any()):
            raise LossError("BCEWithLogitsLoss expects targets between 0 and 1")
        for name, given in self._weights().items():
            try:
                given.expand(outputs.shape[1:])
            except RuntimeError:
                raise LossError(
                    f"BCEWithLogitsLoss has a {name} of shape {tuple(given.shape)}, expected one that broadcasts to "
                    f"the outputs of a sample, {tuple(outputs.shape[1:])}; weights per sample do not survive batching"
                ) from None

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """torch's own value, reduction="sum"."""
        if targets is None:
            raise LossError("the value of BCEWithLogitsLoss needs targets: pass data=(inputs, targets)")
        weights = (None if w is None else w.to(outputs) for w in (self.entry_weight, self.pos_weight))
        return F.binary_cross_entropy_with_logits(
            outputs, targets, next(weights), pos_weight=next(weights), reduction="sum"
        )

    def second_derivative(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """The derivative of the sigmoid, weighted."""
        result = outputs.sigmoid() * (-outputs).sigmoid()
        if self.pos_weight is not None and targets is not None:
            result = result * (1 + (self.pos_weight.to(outputs) - 1) * targets)
        return result if self.entry_weight is None else result * self.entry_weight.to(outputs)


class SquaredError(Separate):
    """nn.MSELoss: the second derivative is 2."""

    needs_targets = False

    def __init__(self, criterion: nn.MSELoss):
        self.mean = criterion.reduction == "mean"
        self.name = described(criterion, "reduction")

    def judges(self, targets: Tensor) -> bool:
        """Numbers to come near to are no classes, not even 0 and 1."""
        return False

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """torch's own value, reduction="sum"."""
        if targets is None:
            raise LossError("the value of MSELoss needs targets: pass data=(inputs, targets)")
        return F.mse_loss(outputs, targets, reduction="sum")

    def second_derivative(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """(n, *output) -> (n, *output), all 2."""
        return torch.full_like(outputs, 2.0)
