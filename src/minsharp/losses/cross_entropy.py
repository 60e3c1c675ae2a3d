"""Softmax cross-entropy."""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import LossError
from .columns import Columns
from .factor import Factor, SoftmaxRows
from .loss import Loss
from .softmax import softmax_columns
from .wording import described, shape_of, wide, wide_type


class CrossEntropy(Loss):
    """Softmax cross-entropy on logits (n, K) or (n, K, *positions), with everything nn.CrossEntropyLoss takes."""

    has_classes = True

    def __init__(self, criterion: nn.CrossEntropyLoss):
        self.class_weight = criterion.weight
        self.smoothing = criterion.label_smoothing
        self.ignore = criterion.ignore_index
        self.mean = criterion.reduction == "mean"
        self.name = described(criterion, "weight", "label_smoothing", "ignore_index", "reduction")
        if self.class_weight is not None and not bool(
            (self.class_weight >= 0).all() & self.class_weight.isfinite().all()
        ):
            raise LossError(
                "CrossEntropyLoss has a class weight that is negative or not finite: not convex in the outputs"
            )

    @property
    def needs_targets(self) -> bool:
        """Without class weights every sample weighs the same, whatever its label."""
        return self.class_weight is not None

    def rank(self, shape: tuple[int, ...]) -> int:
        """(1, K, *positions) -> K - 1 per position."""
        if len(shape) < 2:
            raise LossError(
                "CrossEntropyLoss expects outputs (n, classes), got (n,): one number for each sample has no classes. "
                "For two classes told by one number, loss=nn.BCEWithLogitsLoss()"
            )
        return (shape[1] - 1) * prod(shape[2:])

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """Class indices (n, *positions), or class probabilities shaped like the outputs."""
        if outputs.dim() < 2:
            raise LossError(f"CrossEntropyLoss expects outputs (n, classes), got {shape_of(outputs)}")
        classes = outputs.shape[1]
        if self.class_weight is not None and self.class_weight.numel() != classes:
            raise LossError(
                f"CrossEntropyLoss has {self.class_weight.numel()} class weights, the outputs {classes} classes"
            )
        if targets is None:
            if self.needs_targets:
                raise LossError("CrossEntropyLoss with class weights needs targets: pass data=(inputs, targets)")
            return
        if targets.dtype.is_floating_point:
            if targets.shape != outputs.shape:
                raise LossError(
                    f"expected targets as class indices {(outputs.shape[0], *outputs.shape[2:])} or probabilities "
                    f"{tuple(outputs.shape)}, got {shape_of(targets)}; if that is a second input, pass ((a, b), None)"
                )
            if not bool(((targets >= 0) & targets.isfinite()).all()):
                raise LossError("CrossEntropyLoss expects probabilities as targets, some are negative or not finite")
            return
        expected = (outputs.shape[0], *outputs.shape[2:])
        if targets.shape != expected or targets.dtype not in (torch.int64, torch.uint8):
            hint = "" if targets.dtype.is_floating_point or targets.shape != expected else ": use targets.long()"
            raise LossError(
                f"expected targets of shape {expected} and type torch.int64 for outputs "
                f"{tuple(outputs.shape)}, got {shape_of(targets)}{hint}"
            )
        labels = targets.long()
        wrong = labels[self._kept(targets) & ((labels < 0) | (labels >= classes))]
        if wrong.numel():
            raise LossError(f"target {int(wrong[0])} is not a class: the outputs have {classes} classes")

    def any_targets(self, outputs: Tensor) -> Tensor:
        """The first class throughout."""
        return torch.zeros_like(outputs[:, 0], dtype=torch.int64)

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """torch's own value, reduction="sum"."""
        if targets is None:
            raise LossError("the value of CrossEntropyLoss needs targets: pass data=(inputs, targets)")
        return F.cross_entropy(
            outputs,
            targets if targets.dtype.is_floating_point else targets.long(),
            weight=self._on(outputs),
            ignore_index=self.ignore,
            reduction="sum",
            label_smoothing=self.smoothing,
        )

    def _on(self, outputs: Tensor) -> Tensor | None:
        return None if self.class_weight is None else self.class_weight.to(outputs)

    def _kept(self, targets: Tensor) -> Tensor:
        return targets.long() != self.ignore  # a byte compared with -100 is compared with 156

    def judged(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The targets, and which of them are not ignored."""
        return targets, self._kept(targets)

    def weight(self, outputs: Tensor, targets: Tensor | None) -> float:
        """The class weights of the targets; the number of targets where there are none."""
        if targets is None or targets.dtype.is_floating_point:
            return float(outputs.numel() // outputs.shape[1])
        kept = self._kept(targets)
        if self.class_weight is None:
            return float(kept.sum())
        return float(wide(self.class_weight.to(outputs.device))[targets[kept].long()].sum())

    def _coefficient(self, outputs: Tensor, targets: Tensor | None) -> Tensor | None:
        """How much of diag(p) - pp^T each target adds: the class weights of its (smoothed) distribution."""
        if targets is None:
            return None
        classes = outputs.shape[1]
        w = torch.ones(classes) if self.class_weight is None else self.class_weight
        w = wide(w.to(outputs.device)).view(-1, *[1] * (outputs.dim() - 2))
        if targets.dtype.is_floating_point:
            smooth = wide(targets) * (1 - self.smoothing) + self.smoothing / classes
            return (smooth * w).sum(1)
        kept = self._kept(targets)
        if self.class_weight is None and bool(kept.all()):
            return None
        chosen = w.flatten()[torch.where(kept, targets.long(), 0)]
        return kept * ((1 - self.smoothing) * chosen + self.smoothing * w.mean())

    def columns(self, outputs: Tensor, targets: Tensor | None) -> Columns:
        """The factor of diag(p) - pp^T at every position, times the root of what the target weighs."""
        return softmax_columns(_probabilities(outputs), self._coefficient(outputs, targets), outputs)

    def goes_by_rows(self, rank: int) -> bool:
        """The classes are on axis 1."""
        return rank == 2

    def factor(self, outputs: Tensor, targets: Tensor | None) -> Factor:
        """The same matrices, position by position."""
        return SoftmaxRows(_probabilities(outputs), self._coefficient(outputs, targets), outputs, 1)


def _probabilities(outputs: Tensor) -> Tensor:
    """(n, K, *positions) -> (n, positions, K), wide."""
    n, K = outputs.shape[:2]
    logits = outputs.flatten(2).movedim(1, -1) if outputs.dim() > 2 else outputs
    return logits.softmax(-1, dtype=wide_type(outputs)).view(n, -1, K)
