"""Any other convex loss, through autograd."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..errors import LossError
from .columns import Columns
from .loss import Loss
from .wording import name_of, shape_of, wide


class AnyConvex(Loss):
    """Any other criterion that is a mean or a sum of convex per-sample terms, through its own output Hessian."""

    def __init__(self, criterion: Callable[[Tensor, Tensor], Tensor]):
        self.criterion = criterion
        self.name = repr(criterion) if isinstance(criterion, nn.Module) else name_of(criterion)
        self.mean = getattr(criterion, "reduction", "mean") == "mean"
        self._seen: tuple[Tensor, Tensor] | None = None

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """The criterion of the batch has to be the mean, or the sum, of its samples'."""
        if targets is None:
            raise LossError(f"{self.name} needs targets: pass data=(inputs, targets)")
        first = (outputs[:1].detach(), targets[:1])
        if self._seen is not None and self._seen[0].shape[1:] != outputs.shape[1:]:  # of another network
            self._seen = None
        if self._seen is not None:  # together with a sample of earlier data: weights per class show only in mixtures
            outputs, targets = (torch.cat([old, new]) for old, new in zip(self._seen, (outputs, targets), strict=True))
        self._seen = self._seen or first
        try:
            whole = self.criterion(outputs, targets)
            each = [self.criterion(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(outputs))]
        except Exception as error:
            raise LossError(
                f"{self.name} failed on outputs {shape_of(outputs)} and targets {shape_of(targets)}: {error}"
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
            eigenvalues, vectors = torch.linalg.eigh(wide(H))
            least, most = float(eigenvalues[0]), float(eigenvalues.abs().amax())
            if least < -1e-5 * most and least < -64 * torch.finfo(o.dtype).eps * self._slope(o, y):
                raise LossError(
                    f"{self.name} is not convex in the outputs: its Hessian has the eigenvalue "
                    f"{least:.3g}. The curvature factor needs a convex loss"
                )
            roots.append((vectors * eigenvalues.clamp_min(0).sqrt()).mT)  # (rank, entries)
        S = torch.stack(roots).to(outputs.dtype)
        return Columns(S.shape[1], lambda start, stop: S[:, start:stop].reshape(len(S), -1, *shape))

    def _slope(self, o: Tensor, y: Tensor) -> float:
        """The largest derivative of one sample's term: where the loss is all but linear, its Hessian is rounding."""
        with torch.enable_grad():
            leaf = o.detach().clone().requires_grad_()
            (slope,) = torch.autograd.grad(self.criterion(leaf.unsqueeze(0), y.unsqueeze(0)).reshape(()), leaf)
        return float(slope.abs().amax())
