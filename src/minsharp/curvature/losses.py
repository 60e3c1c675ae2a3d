"""The Hessian of a loss with respect to the outputs, as a factor: S S^T = d²loss/do² for each sample.

Each loss knows the sum of its terms over a batch (`total`), what the criterion divides that sum by (`weight`, one
number per batch, added over batches), and the columns of S. So the curvature of the criterion over a whole data set is
a sum over batches of any size, divided at the end.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
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


@cache
def default_loss() -> Loss:
    """Cross-entropy, for who names no loss."""
    return as_loss(nn.CrossEntropyLoss())


def as_loss(criterion: Criterion | None) -> Loss:
    """The loss behind a torch criterion."""
    if criterion is None:
        return default_loss()
    known: dict[Any, type[nn.Module]] = {
        F.cross_entropy: nn.CrossEntropyLoss,
        F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
        F.mse_loss: nn.MSELoss,
    }
    if not callable(criterion):
        raise LossError(f"expected a criterion such as nn.CrossEntropyLoss(), got {criterion!r}")
    if not isinstance(criterion, nn.Module) and criterion in known:
        criterion = known[criterion]()
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
    return AnyConvex(criterion)


def _described(criterion: nn.Module, *options: str) -> str:
    """The criterion with the options that are not at their defaults."""
    plain = type(criterion)()
    given = {name: getattr(criterion, name) for name in options}
    odd = [
        f"{name}={value.tolist() if isinstance(value, Tensor) else repr(value)}"
        for name, value in given.items()
        if value is not None and (isinstance(value, Tensor) or value != getattr(plain, name))
    ]
    return f"{type(criterion).__name__}({', '.join(odd)})" if odd else type(criterion).__name__


def _name(criterion: Any) -> str:
    return type(criterion).__name__ if isinstance(criterion, nn.Module) else getattr(criterion, "__name__", "loss")


def _shape(tensor: Tensor | None) -> str:
    return "none" if tensor is None else f"{tuple(tensor.shape)} {tensor.dtype}"


def _wide_type(tensor: Tensor) -> torch.dtype:
    """float64 where the device has it, else float32."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(_wide_type(tensor))


def _refuse_guess(name: str, outputs: Tensor) -> None:
    """Which axis of several runs over the classes is not for us to say."""
    if outputs.dim() > 2:
        raise LossError(
            f"{name} on outputs of shape {tuple(outputs.shape)} without targets: which axis runs over the classes "
            "cannot be told. Pass targets of shape (n, *positions) as well, with the classes on axis 1 of the outputs "
            "as nn.CrossEntropyLoss has them; if they are on the last axis, wrap the model in a module whose forward "
            f"returns outputs.{_to_axis_1(outputs)}"
        )


def _to_axis_1(outputs: Tensor) -> str:
    return "transpose(1, 2)" if outputs.dim() == 3 else "movedim(-1, 1)"


def _check_class_axis(outputs: Tensor, targets: Tensor) -> None:
    """Refuse one target per position for outputs whose positions come before the classes."""
    if outputs.dim() > 2 and targets.shape == outputs.shape[:-1] != (outputs.shape[0], *outputs.shape[2:]):
        raise LossError(
            f"outputs of shape {tuple(outputs.shape)} with targets of shape {tuple(targets.shape)}: the classes have "
            "to be on axis 1, as nn.CrossEntropyLoss has them, and here they are on the last axis. Wrap the model in a "
            f"module whose forward returns outputs.{_to_axis_1(outputs)}"
        )


class CrossEntropy(Loss):
    """Softmax cross-entropy on logits (n, K) or (n, K, *positions), with everything nn.CrossEntropyLoss takes."""

    def __init__(self, criterion: nn.CrossEntropyLoss):
        self.class_weight = criterion.weight
        self.smoothing = criterion.label_smoothing
        self.ignore = criterion.ignore_index
        self.mean = criterion.reduction == "mean"
        self.name = _described(criterion, "weight", "label_smoothing", "ignore_index", "reduction")
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
            _refuse_guess("CrossEntropyLoss", outputs)
            return
        _check_class_axis(outputs, targets)
        if targets.dtype.is_floating_point:
            if targets.shape != outputs.shape:
                raise LossError(
                    f"expected targets as class indices {(outputs.shape[0], *outputs.shape[2:])} or probabilities "
                    f"{tuple(outputs.shape)}, got {_shape(targets)}; if that is a second input, pass ((a, b), None)"
                )
            if not bool(((targets >= 0) & targets.isfinite()).all()):
                raise LossError("CrossEntropyLoss expects probabilities as targets, some are negative or not finite")
            return
        expected = (outputs.shape[0], *outputs.shape[2:])
        if targets.shape != expected or targets.dtype not in (torch.int64, torch.uint8):
            hint = "" if targets.dtype.is_floating_point or targets.shape != expected else ": use targets.long()"
            raise LossError(
                f"expected targets of shape {expected} and type torch.int64 for outputs "
                f"{tuple(outputs.shape)}, got {_shape(targets)}{hint}"
            )
        labels = targets.long()
        wrong = labels[self._kept(targets) & ((labels < 0) | (labels >= classes))]
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
        chosen = w.flatten()[torch.where(kept, targets.long(), 0)]
        return kept * ((1 - self.smoothing) * chosen + self.smoothing * w.mean())

    def columns(self, outputs: Tensor, targets: Tensor | None) -> Columns:
        """The factor of diag(p) - pp^T at every position, times the root of what the target weighs."""
        n, K = outputs.shape[:2]
        logits = outputs.flatten(2).movedim(1, -1) if outputs.dim() > 2 else outputs
        p = logits.softmax(-1, dtype=_wide_type(outputs)).view(n, -1, K)
        return _softmax_columns(p, self._coefficient(outputs, targets), outputs)


def _softmax_columns(p: Tensor, coefficient: Tensor | None, outputs: Tensor) -> Columns:
    """The triangular factor of diag(p) - pp^T in closed form, for probabilities p (n, positions, K).

    With s_j = the sum of p_i over i <= j and f_j = sqrt(p_j / (s_j s_{j-1})), column j = 1, ..., K - 1 holds
    L_jj = f_j s_{j-1}, and L_ij = -f_j p_i for i < j. In float64 the sums have no cancellation, and where s_{j-1}
    underflows so does the column.
    """
    n, positions, K = p.shape
    sums = p.cumsum(-1).clamp_min_(torch.finfo(p.dtype).tiny)
    before = sums[..., :-1]
    f = (p[..., 1:] / sums[..., 1:]).div_(before).sqrt_()
    if coefficient is not None:
        f *= coefficient.reshape(n, -1, 1).sqrt()
    corners = (f * before).flatten(1)  # (n, columns)
    factors = f.flatten(1)  # large where the sum is small, and so are the probabilities that it multiplies

    def slice(start: int, stop: int) -> Tensor:
        factor, corner = factors[:, start:stop, None], corners[:, start:stop]
        if positions == 1:
            signs = p.new_full((stop - start, K), -1).tril_(start)  # a product: tril_ of every sample takes longer
            L = (factor * p).mul_(signs).to(outputs.dtype)
            L.diagonal(start + 1, 1, 2).copy_(corner)
            return L.reshape(n, stop - start, *outputs.shape[1:])
        column = torch.arange(start, stop, device=p.device)
        position, j = column // (K - 1), column % (K - 1) + 1
        L = (factor * p[:, position]).neg_().to(outputs.dtype)
        L.masked_fill_(torch.arange(K, device=p.device) >= j.unsqueeze(1), 0)
        L[:, column - start, j] = corner.to(outputs.dtype)
        full = L.new_zeros(n, stop - start, K, positions)
        full[:, column - start, :, position] = L.transpose(0, 1)
        return full.unflatten(3, outputs.shape[2:])

    return Columns((K - 1) * positions, slice)


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
        if targets is None:
            if self.needs_targets:
                raise LossError(f"{self.name} with pos_weight needs targets: pass data=(inputs, targets)")
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
        self.name = _described(criterion, "weight", "pos_weight", "reduction")
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
        self.name = _described(criterion, "reduction")

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """As torch computes it."""
        if targets is None:
            raise LossError("the value of MSELoss needs targets: pass data=(inputs, targets)")
        return F.mse_loss(outputs, targets, reduction="sum")

    def second_derivative(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """Two."""
        return torch.full_like(outputs, 2.0)


class Centred(_Separate):
    """No loss: half the squared norm of the centred outputs c = o - mean(o), whose factor is S = I - 11^T/K.

    This is ``curvature="jacobian"``: the curvature is E ||dc/dP||^2, whatever the loss and the labels. The mean is over
    classes, the axis after the samples'; a single output has nothing to be centred on, and stays as it is.
    """

    mean = True
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
        """Any targets will do, where there is one axis of classes; of several, their shape tells which."""
        if targets is None:
            _refuse_guess("the centring of classes", outputs)
        elif outputs.dim() > 2:
            _check_class_axis(outputs, targets)
            if targets.shape not in (outputs.shape, (outputs.shape[0], *outputs.shape[2:])):
                _refuse_guess("the centring of classes", outputs)

    def weight(self, outputs: Tensor, targets: Tensor | None) -> float:
        """Samples, times positions."""
        return float(outputs.numel() // self._classes(tuple(outputs.shape)))

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """Half of ||c||^2, summed."""
        centred = outputs - outputs.mean(1, keepdim=True) if self._classes(tuple(outputs.shape)) > 1 else outputs
        return centred.square().sum() / 2

    def energy(self, outputs: Tensor) -> float:
        """||c||^2, summed."""
        return 2 * float(self.total(_wide(outputs), None))

    def second_derivative(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """One, where nothing is centred."""
        return torch.ones_like(outputs)

    def columns(self, outputs: Tensor, targets: Tensor | None) -> Columns:
        """I - 11^T/K is K times the softmax's matrix at p = 1/K."""
        K = self._classes(tuple(outputs.shape))
        if K == 1:
            return super().columns(outputs, None)
        positions = prod(outputs.shape[2:])
        p = _wide(outputs.new_ones(1, positions, K)) / K
        columns = _softmax_columns(p, p.new_full((1, positions), K), outputs[:1])
        expand = (len(outputs), *[-1] * outputs.dim())
        return Columns(columns.rank, lambda start, stop: columns.slice(start, stop).expand(expand))


class AnyConvex(Loss):
    """Any other criterion that is a mean or a sum of convex per-sample terms, through its own output Hessian."""

    needs_targets = True

    def __init__(self, criterion: Callable[[Tensor, Tensor], Tensor]):
        self.criterion = criterion
        self.name = repr(criterion) if isinstance(criterion, nn.Module) else _name(criterion)
        self.mean = getattr(criterion, "reduction", "mean") == "mean"
        self._seen: tuple[Tensor, Tensor] | None = None

    def rank(self, shape: tuple[int, ...]) -> int:
        """At most one column per entry of the outputs."""
        return prod(shape)

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """The criterion of the batch has to be the mean, or the sum, of its samples'."""
        if targets is None:
            raise LossError(f"{self.name} needs targets: pass data=(inputs, targets)")
        first = (outputs[:1].detach(), targets[:1])
        if self._seen is not None:  # together with a sample of earlier data: weights per class show only in mixtures
            outputs, targets = (torch.cat([old, new]) for old, new in zip(self._seen, (outputs, targets), strict=True))
        self._seen = self._seen or first
        try:
            whole = self.criterion(outputs, targets)
            each = [self.criterion(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(outputs))]
        except Exception as error:
            raise LossError(
                f"{self.name} failed on outputs {_shape(outputs)} and targets {_shape(targets)}: {error}"
            ) from error
        if not isinstance(whole, Tensor) or whole.numel() != 1:
            given = f"shape {tuple(whole.shape)}" if isinstance(whole, Tensor) else type(whole).__name__
            raise LossError(f"{self.name} returns {given}, expected one number as a tensor")
        terms = torch.stack([e.reshape(()) for e in each])
        expected = terms.mean() if self.mean else terms.sum()
        if float((whole.reshape(()) - expected).abs()) > 1e-4 * float(
            terms.abs().sum() / (len(terms) if self.mean else 1)
        ):
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
            try:
                H = torch.autograd.functional.hessian(
                    lambda flat, y=y: self.criterion(flat.view(1, *shape), y.unsqueeze(0)).reshape(()),
                    o.flatten(),
                )
            except Exception as error:
                raise LossError(f"{self.name} has no second derivative that autograd can take: {error}") from error
            eigenvalues, vectors = torch.linalg.eigh(_wide(H))
            if bool(eigenvalues[0] < -1e-5 * eigenvalues.abs().amax()):
                raise LossError(
                    f"{self.name} is not convex in the outputs: its Hessian has the eigenvalue "
                    f"{float(eigenvalues[0]):.3g}. The curvature factor needs a convex loss"
                )
            roots.append((vectors * eigenvalues.clamp_min(0).sqrt()).mT)  # (rank, entries)
        S = torch.stack(roots).to(outputs.dtype)
        return Columns(S.shape[1], lambda start, stop: S[:, start:stop].reshape(len(S), -1, *shape))
