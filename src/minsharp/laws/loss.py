"""What holds for every loss: its columns are a factor of the Hessian of its value, and both add up over samples."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import LossError
from ..losses import Criterion, Loss, as_loss
from .close import close, equal

TOLERANCE = 1e-7
"""Between a closed form and autograd's second derivative, relative to the largest entry, in double precision."""


class Example(NamedTuple):
    """A loss on one batch, in double precision."""

    loss: Loss
    outputs: Tensor
    targets: Tensor | None

    def part(self, start: int, stop: int) -> "Example":
        """Some of the samples."""
        return Example(self.loss, self.outputs[start:stop], None if self.targets is None else self.targets[start:stop])

    @property
    def value_targets(self) -> Tensor:
        """The targets, or any that fit where none were given."""
        return self.loss.any_targets(self.outputs) if self.targets is None else self.targets

    def total(self, outputs: Tensor | None = None) -> Tensor:
        """The sum of the terms."""
        return self.loss.total(self.outputs if outputs is None else outputs, self.value_targets)

    def factor(self) -> Tensor:
        """S^T of each sample: (n, rank, entries)."""
        columns = self.loss.columns(self.outputs, self.targets)
        return columns.slice(0, columns.rank).reshape(len(self.outputs), columns.rank, -1)


def check_loss(loss: Criterion | None, outputs: Tensor, targets: Tensor | None = None) -> list[str]:
    """Hold a loss to its laws on a batch of outputs, two samples or more; returns every violation in a line of text.

        accepts    `check` lets this batch pass, and one without targets only if the Hessian does not depend on them
        total      one number, and autograd can take its second derivative
        columns    (n, columns, *output) in the type of the outputs, the same however they are sliced
        factor     S S^T is autograd's Hessian of each sample's term, and no term depends on another sample
        adds up    `total` and `weight` of a batch are the sums of those of its parts
        untouched  outputs and targets are not written to

    >>> from torch import nn
    >>> check_loss(nn.CrossEntropyLoss(), torch.randn(4, 3), torch.tensor([0, 2, 1, 1]))
    []

    A loss with a factor that is not that of its value:

    >>> import minsharp as ms
    >>> class Wrong(ms.losses.Separate):
    ...     def total(self, outputs, targets):
    ...         return (outputs - targets).pow(4).sum()
    ...     def second_derivative(self, outputs, targets):
    ...         return 4 * (outputs - targets).pow(2)
    >>> print(*check_loss(Wrong(), torch.ones(2, 3), torch.zeros(2, 3)))
    factor: S S^T of Wrong() is not the Hessian of its total: in sample 0 an entry is 4, autograd's 12
    """
    found = as_loss(loss).double()
    wide = targets.double() if targets is not None and targets.dtype.is_floating_point else targets
    example = Example(found, outputs.detach().double(), wide)
    kept = example.outputs.clone(), None if wide is None else wide.clone()
    violations: list[str] = []
    for name, law in _LAWS.items():
        try:
            violations += [f"{name}: {what}" for what in law(example)]
        except Exception as error:
            cause = next(iter(str(error).splitlines()), "")
            violations.append(f"{name}: raised {type(error).__name__}: {cause}")
    for what, now, before in (("outputs", example.outputs, kept[0]), ("targets", wide, kept[1])):
        if now is not None and before is not None and not equal(now, before):
            violations.append(f"untouched: the {what} have changed")
    return violations


def _accepts(example: Example) -> Iterator[str]:
    loss, outputs, targets = example
    loss.check(outputs, targets)
    try:
        loss.check(outputs, None)
    except LossError as error:
        if not loss.needs_targets and outputs.dim() <= 2:
            yield f"needs_targets is False, and yet check refuses a batch without them: {error}"
    else:
        if loss.needs_targets:
            yield "needs_targets is True, and yet check lets a batch without them pass"
    if not loss.needs_targets:
        loss.check(outputs, loss.any_targets(outputs))


def _total(example: Example) -> Iterator[str]:
    total = example.total()
    if not isinstance(total, Tensor) or total.numel() != 1:
        given = f"shape {tuple(total.shape)}" if isinstance(total, Tensor) else type(total).__name__
        yield f"returns {given}, expected one number as a tensor"
    elif not bool(total.isfinite()):
        yield f"is {float(total)}"


def _columns(example: Example) -> Iterator[str]:
    loss, outputs, targets = example
    for given in (outputs, outputs.float()):
        floats = targets is not None and targets.dtype.is_floating_point
        columns = loss.columns(given, targets.to(given) if targets is not None and floats else targets)
        whole = columns.slice(0, columns.rank)
        expected = (len(given), columns.rank, *given.shape[1:])
        if whole.shape != expected or whole.dtype != given.dtype:
            yield f"come as {tuple(whole.shape)} {whole.dtype}, expected {expected} {given.dtype}"
            return
        for size in (1, 2):
            starts = range(0, columns.rank, size)
            parts = [columns.slice(start, min(start + size, columns.rank)) for start in starts]
            if parts and not equal(torch.cat(parts, 1), whole):
                yield f"are not the same taken {size} at a time and all at once"
                return
        most = loss.rank((1, *given.shape[1:]))
        if columns.rank > most:
            yield f"are {columns.rank}, more than the {most} that rank() promises"


def _factor(example: Example) -> Iterator[str]:
    n = len(example.outputs)
    shape = example.outputs.shape
    S = example.factor()  # (n, rank, entries)
    H = torch.autograd.functional.hessian(
        lambda flat: example.total(flat.view(shape)).reshape(()), example.outputs.flatten()
    )
    H = H.view(n, S.shape[2], n, S.shape[2])
    blocks = H[range(n), :, range(n)]  # (n, entries, entries)
    between = H.clone()
    between[range(n), :, range(n)] = 0
    if not close(between, torch.zeros_like(between), 0.0, TOLERANCE * float(blocks.abs().amax())):
        yield f"the total of {example.loss.name} is no sum over samples: the term of one depends on another's outputs"
    found = S.mT @ S
    if not close(found, blocks, TOLERANCE):
        i, j, k = torch.unravel_index((found - blocks).abs().argmax(), found.shape)
        yield (
            f"S S^T of {example.loss.name} is not the Hessian of its total: in sample {int(i)} an entry is "
            f"{float(found[i, j, k]):.6g}, autograd's {float(blocks[i, j, k]):.6g}"
        )
    if not example.loss.needs_targets and example.outputs.dim() <= 2:
        without, given = (Example(*example[:2], y).factor() for y in (None, example.loss.any_targets(example.outputs)))
        if not close(without.mT @ without, given.mT @ given, TOLERANCE):
            yield "needs_targets is False, and yet S S^T is another without them"


def _adds_up(example: Example) -> Iterator[str]:
    n = len(example.outputs)
    parts = [example.part(0, 1), example.part(1, n)]
    if not close(sum((p.total() for p in parts), torch.zeros(())).double(), example.total().double(), TOLERANCE):
        yield "the totals of two parts are not the total of the batch: return a sum over samples, not a mean"
    weights = [p.loss.weight(p.outputs, p.targets) for p in (*parts, example)]
    if abs(weights[0] + weights[1] - weights[2]) > TOLERANCE * abs(weights[2]):
        yield f"the weights of two parts, {weights[0]:g} and {weights[1]:g}, are not the {weights[2]:g} of the batch"


_LAWS: dict[str, Callable[[Example], Iterator[str]]] = {
    "accepts": _accepts,
    "total": _total,
    "columns": _columns,
    "factor": _factor,
    "adds up": _adds_up,
}
