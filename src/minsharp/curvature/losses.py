"""The Hessian of a loss with respect to the outputs, as a factor: S S^T = d²loss/do² for each sample.

Each loss knows the sum of its terms over a batch (`total`), what the criterion divides that sum by (`weight`, one
number per batch, added over batches), and the columns of S. So the curvature of the criterion over a whole data set is
a sum over batches of any size, divided at the end.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import LossError

Criterion = nn.Module | Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Columns:
    """The columns of S for one batch, made a few at a time: ``slice(start, stop) -> (n, stop - start, *output)``."""

    rank: int
    slice: Callable[[int, int], Tensor]


class Loss(ABC):
    """A loss that is a sum, or a mean, of convex terms, one per sample."""

    mean: bool

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

    @abstractmethod
    def rank(self, shape: tuple[int, ...]) -> int:
        """The number of columns for outputs of this shape (for one sample)."""


def as_loss(criterion: Criterion) -> Loss:
    """The loss behind a torch criterion."""
    known: dict[Any, Criterion] = {
        F.cross_entropy: nn.CrossEntropyLoss(),
        F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss(),
        F.mse_loss: nn.MSELoss(),
    }
    if not isinstance(criterion, nn.Module):
        criterion = known.get(criterion, criterion)
    if getattr(criterion, "reduction", "mean") not in ("mean", "sum"):
        raise LossError(
            f"{_name(criterion)} has reduction={criterion.reduction!r}; expected 'mean' or 'sum', as in "  # type: ignore[union-attr]
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
    if not callable(criterion):
        raise LossError(f"expected a criterion such as nn.CrossEntropyLoss(), got {criterion!r}")
    return AnyConvex(criterion)


def _name(criterion: Any) -> str:
    return type(criterion).__name__ if isinstance(criterion, nn.Module) else getattr(criterion, "__name__", "loss")


def _shape(tensor: Tensor | None) -> str:
    return "none" if tensor is None else f"{tuple(tensor.shape)} {tensor.dtype}"


def _wide(tensor: Tensor) -> Tensor:
    """In float64 where the device has it."""
    return tensor if tensor.device.type == "mps" else tensor.double()


class CrossEntropy(Loss):
    """Softmax cross-entropy on logits (n, K) or (n, K, *positions), with everything nn.CrossEntropyLoss takes."""

    def __init__(self, criterion: nn.CrossEntropyLoss):
        self.class_weight = criterion.weight
        self.smoothing = criterion.label_smoothing
        self.ignore = criterion.ignore_index
        self.mean = criterion.reduction == "mean"
        if self.class_weight is not None and bool((self.class_weight < 0).any()):
            raise LossError("CrossEntropyLoss has a negative class weight: the loss is not convex in the outputs")

    @property
    def needs_targets(self) -> bool:
        """Without class weights every sample weighs the same, whatever its label."""
        return self.class_weight is not None

    def rank(self, shape: tuple[int, ...]) -> int:
        """K - 1 per position."""
        return (shape[1] - 1) * prod(shape[2:])

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """Class indices (n, *positions), or class probabilities shaped like the outputs."""
        if outputs.dim() < 2:
            raise LossError(f"CrossEntropyLoss expects outputs (n, classes), got {_shape(outputs)}")
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
                    f"{tuple(outputs.shape)}, got {_shape(targets)}"
                )
            return
        if targets.shape != (outputs.shape[0], *outputs.shape[2:]) or targets.dtype not in (
            torch.int64,
            torch.uint8,
        ):
            raise LossError(
                f"expected targets of shape {(outputs.shape[0], *outputs.shape[2:])} and type torch.int64 for outputs "
                f"{tuple(outputs.shape)}, got {_shape(targets)}"
            )
        wrong = targets[(targets != self.ignore) & ((targets < 0) | (targets >= classes))]
        if wrong.numel():
            raise LossError(f"target {int(wrong[0])} is not a class: the outputs have {classes} classes")

    def any_targets(self, outputs: Tensor) -> Tensor:
        """The first class throughout."""
        return torch.zeros_like(outputs[:, 0], dtype=torch.int64)

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """As torch computes it."""
        if targets is None:
            raise LossError("the value of CrossEntropyLoss needs targets: pass data=(inputs, targets)")
        return F.cross_entropy(
            outputs,
            targets,
            weight=self._on(outputs),
            ignore_index=self.ignore,
            reduction="sum",
            label_smoothing=self.smoothing,
        )

    def _on(self, outputs: Tensor) -> Tensor | None:
        return None if self.class_weight is None else self.class_weight.to(outputs)

    def _kept(self, targets: Tensor) -> Tensor:
        return targets != self.ignore

    def weight(self, outputs: Tensor, targets: Tensor | None) -> float:
        """The class weights of the targets; the number of targets where there are none."""
        if targets is None or targets.dtype.is_floating_point:
            return float(outputs.numel() // outputs.shape[1])
        kept = self._kept(targets)
        if self.class_weight is None:
            return float(kept.sum())
        return float(_wide(self.class_weight.to(outputs.device))[targets[kept].long()].sum())

    def _coefficient(self, outputs: Tensor, targets: Tensor | None) -> Tensor | None:
        """How much of diag(p) - pp^T each target adds: the class weights of its (smoothed) distribution."""
        if targets is None:
            return None
        classes = outputs.shape[1]
        w = torch.ones(classes) if self.class_weight is None else self.class_weight
        w = _wide(w.to(outputs.device)).view(-1, *[1] * (outputs.dim() - 2))
        if targets.dtype.is_floating_point:
            smooth = _wide(targets) * (1 - self.smoothing) + self.smoothing / classes
            return (smooth * w).sum(1)
        kept = self._kept(targets)
        if self.class_weight is None and bool(kept.all()):
            return None
        chosen = w.flatten()[torch.where(kept, targets, 0).long()]
        return kept * ((1 - self.smoothing) * chosen + self.smoothing * w.mean())

    def columns(self, outputs: Tensor, targets: Tensor | None) -> Columns:
        """The lower-triangular factor of diag(p) - pp^T in closed form.

        With q_j = sum of p_i over i > j, q_{-1} = 1: L_jj = sqrt(p_j q_j / q_{j-1}), and L_ij = -L_jj p_i / q_j
        below it. In float64 the suffix sums have no cancellation, and where q_j underflows so does the column.
        """
        n, K = outputs.shape[:2]
        p = _wide(outputs).flatten(2).movedim(1, -1).softmax(-1) if outputs.dim() > 2 else _wide(outputs).softmax(-1)
        p = p.view(n, -1, K)  # (n, positions, K)
        tails = p.flip(-1).cumsum(-1).flip(-1).clamp_min(torch.finfo(p.dtype).tiny)
        q = tails[..., 1:]
        diagonal = (p[..., :-1] * (q / tails[..., :-1])).sqrt()
        coefficient = self._coefficient(outputs, targets)
        if coefficient is not None:
            diagonal = diagonal * coefficient.reshape(n, -1, 1).sqrt()
        below = torch.ones(K - 1, K, dtype=p.dtype, device=p.device).triu(1)  # (j, i): i > j
        share = p.unsqueeze(-2) * below / q.unsqueeze(-1)  # (n, positions, j, i)
        L = diagonal.unsqueeze(-1) * (torch.eye(K - 1, K, dtype=p.dtype, device=p.device) - share)
        L = L.to(outputs.dtype).flatten(1, 2)  # (n, columns, K)

        def slice(start: int, stop: int) -> Tensor:
            if outputs.dim() == 2:
                return L[:, start:stop]
            column = torch.arange(start, stop, device=L.device)
            full = L.new_zeros(n, stop - start, K, p.shape[1])
            full[:, column - start, :, column // (K - 1)] = L[:, start:stop].transpose(0, 1)
            return full.unflatten(3, outputs.shape[2:])

        return Columns(L.shape[1], slice)


class _Separate(Loss):
    """A loss that is a sum over the entries of the outputs: its Hessian is diagonal."""

    @abstractmethod
    def second_derivative(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """Entry by entry."""

    def rank(self, shape: tuple[int, ...]) -> int:
        """One column per entry."""
        return prod(shape)

    def weight(self, outputs: Tensor, targets: Tensor | None) -> float:
        """torch averages over entries, not over samples."""
        return float(outputs.numel())

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """Targets are shaped like the outputs."""
        name = type(self).__name__
        if targets is None:
            if self.needs_targets:
                raise LossError(f"{name} with pos_weight needs targets: pass data=(inputs, targets)")
        elif targets.shape != outputs.shape:
            raise LossError(f"expected targets of shape {tuple(outputs.shape)}, as the outputs, got {_shape(targets)}")
        elif not targets.dtype.is_floating_point:
            raise LossError(f"expected floating point targets, got {targets.dtype}: use targets.float()")

    def columns(self, outputs: Tensor, targets: Tensor | None) -> Columns:
        """One nonzero per column."""
        root = self.second_derivative(_wide(outputs), None if targets is None else _wide(targets)).sqrt()
        root = root.reshape(len(outputs), -1).to(outputs.dtype)
        n, entries = root.shape

        def slice(start: int, stop: int) -> Tensor:
            full = root.new_zeros(n, stop - start, entries)
            full[:, :, start:stop] = torch.diag_embed(root[:, start:stop])
            return full.view(n, stop - start, *outputs.shape[1:])

        return Columns(entries, slice)


class BinaryCrossEntropy(_Separate):
    """nn.BCEWithLogitsLoss: weight * (1 + (pos_weight - 1) y) * sigmoid'(o), entry by entry."""

    def __init__(self, criterion: nn.BCEWithLogitsLoss):
        self.entry_weight = criterion.weight
        self.pos_weight = criterion.pos_weight
        self.mean = criterion.reduction == "mean"
        for name, given in (("weight", self.entry_weight), ("pos_weight", self.pos_weight)):
            if given is not None and bool((given < 0).any()):
                raise LossError(f"BCEWithLogitsLoss has a negative {name}: the loss is not convex in the outputs")

    @property
    def needs_targets(self) -> bool:
        """Only a pos_weight tells the two classes apart."""
        return self.pos_weight is not None

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """And probabilities: outside [0, 1] the loss need not be convex."""
        super().check(outputs, targets)
        if targets is not None and bool(((targets < 0) | (targets > 1)).any()):
            raise LossError("BCEWithLogitsLoss expects targets between 0 and 1")
        for name, given in (("weight", self.entry_weight), ("pos_weight", self.pos_weight)):
            if (
                given is not None
                and given.dim()
                and given.shape[0] == outputs.shape[0] != 1
                and outputs.dim() == given.dim()
            ):
                raise LossError(f"a {name} per sample cannot be split into batches; give one per output")

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """As torch computes it."""
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


class SquaredError(_Separate):
    """nn.MSELoss: the second derivative is 2."""

    needs_targets = False

    def __init__(self, criterion: nn.MSELoss):
        self.mean = criterion.reduction == "mean"

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """As torch computes it."""
        if targets is None:
            raise LossError("the value of MSELoss needs targets: pass data=(inputs, targets)")
        return F.mse_loss(outputs, targets, reduction="sum")

    def second_derivative(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """Two."""
        return torch.full_like(outputs, 2.0)


class AnyConvex(Loss):
    """Any other criterion that is a mean or a sum of convex per-sample terms, through its own output Hessian."""

    needs_targets = True

    def __init__(self, criterion: Callable[[Tensor, Tensor], Tensor]):
        self.criterion = criterion
        self.name = _name(criterion)
        self.mean = getattr(criterion, "reduction", "mean") == "mean"

    def rank(self, shape: tuple[int, ...]) -> int:
        """At most one column per entry of the outputs."""
        return prod(shape)

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """The criterion of the batch has to be the mean, or the sum, of its samples'."""
        if targets is None:
            raise LossError(f"{self.name} needs targets: pass data=(inputs, targets)")
        try:
            whole = self.criterion(outputs, targets)
            each = [self.criterion(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(outputs))]
        except Exception as error:
            raise LossError(
                f"{self.name} failed on outputs {_shape(outputs)} and targets {_shape(targets)}: {error}"
            ) from error
        if whole.numel() != 1:
            raise LossError(f"{self.name} returns shape {tuple(whole.shape)}, expected one number")
        total = torch.stack([e.reshape(()) for e in each]).sum()
        expected = total / len(outputs) if self.mean else total
        if not torch.allclose(whole.reshape(()), expected, rtol=1e-4, atol=1e-6):
            how = "mean" if self.mean else "sum"
            raise LossError(
                f"{self.name} of a batch is {float(whole):.6g}, the {how} of its samples {float(expected):.6g}: "
                "not a per-sample loss"
            )

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """The criterion of the batch, times its size where it is a mean."""
        assert targets is not None
        value = self.criterion(outputs, targets)
        return value * len(outputs) if self.mean else value

    def weight(self, outputs: Tensor, targets: Tensor | None) -> float:
        """Samples."""
        return float(len(outputs))

    def columns(self, outputs: Tensor, targets: Tensor | None) -> Columns:
        """Eigenvectors times the roots of the eigenvalues, which must not be negative."""
        assert targets is not None
        shape = outputs.shape[1:]
        roots = []
        for o, y in zip(outputs, targets, strict=True):
            H = torch.autograd.functional.hessian(
                lambda flat, y=y: self.criterion(flat.view(1, *shape), y.unsqueeze(0)).reshape(()),
                o.flatten(),
            )
            eigenvalues, vectors = torch.linalg.eigh(_wide(H))
            if bool(eigenvalues[0] < -1e-5 * eigenvalues.abs().amax()):
                raise LossError(
                    f"{self.name} is not convex in the outputs: its Hessian has the eigenvalue "
                    f"{float(eigenvalues[0]):.3g}. The curvature factor needs a convex loss"
                )
            roots.append((vectors * eigenvalues.clamp_min(0).sqrt()).mT)  # (rank, entries)
        S = torch.stack(roots).to(outputs.dtype)
        return Columns(S.shape[1], lambda start, stop: S[:, start:stop].unflatten(2, shape))
