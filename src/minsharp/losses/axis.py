"""Which axis of the outputs runs over the classes: axis 1, as torch's criteria have it, or another."""

from torch import Tensor

from ..errors import LossError
from .columns import Columns
from .factor import Factor, Listed, Rows
from .loss import Loss

_UNTOLD = "which axis runs over the classes cannot be told"
_COARSE = 0.01
"""How far the sum of probabilities in bfloat16 may be from one."""
_WHICH = "the classes may be on axis 1 or on the last axis"
_CALLS = "class_axis=-1 if they are on the last axis, as language models have them, class_axis=1 if on axis 1"


class OnAxis(Loss):
    """A loss with classes, on outputs that have them on another axis than 1, as have targets of the outputs' own shape.

    >>> import torch
    >>> from torch import nn
    >>> import minsharp as ms
    >>> loss = OnAxis(ms.losses.as_loss(nn.CrossEntropyLoss()), -1)
    >>> logits, tokens = torch.zeros(2, 5, 8), torch.zeros(2, 5, dtype=torch.int64)  # (n, positions, classes)
    >>> round(float(loss.total(logits, tokens)) / loss.weight(logits, tokens), 4)  # log 8
    2.0794
    """

    def __init__(self, inner: Loss, axis: int):
        self.inner = inner
        self.axis = axis
        self.mean = inner.mean
        self.name = f"{inner.name} on axis {axis}"
        self.class_axis = axis

    def _moved(self, outputs: Tensor) -> Tensor:
        """Outputs (n, ..., K, ...) as (n, K, ...)."""
        return outputs.movedim(self.axis, 1)

    def _pair(self, outputs: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Both as the loss has them: a probability for each class is where its output is."""
        alike = targets is not None and targets.shape == outputs.shape
        return self._moved(outputs), self._moved(targets) if alike and targets is not None else targets

    @property
    def needs_targets(self) -> bool:
        """Whether the Hessian depends on the targets."""
        return self.inner.needs_targets

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """Refuse outputs and targets that do not go together."""
        self.inner.check(*self._pair(outputs, targets))

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """The sum of the terms of a batch."""
        return self.inner.total(*self._pair(outputs, targets))

    def weight(self, outputs: Tensor, targets: Tensor | None) -> float:
        """What a mean over this batch divides by."""
        return self.inner.weight(*self._pair(outputs, targets))

    def rank(self, shape: tuple[int, ...]) -> int:
        """The columns for outputs of this shape, (1, *output)."""
        rest = list(shape)
        return self.inner.rank((rest[0], rest.pop(self.axis), *rest[1:]))

    def any_targets(self, outputs: Tensor) -> Tensor:
        """Targets that fit."""
        return self.inner.any_targets(self._moved(outputs))

    def judges(self, targets: Tensor) -> bool:
        """As the loss has it."""
        return self.inner.judges(targets)

    def judged(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """As the loss has them."""
        return self.inner.judged(targets)

    def energy(self, outputs: Tensor) -> float:
        """How large the outputs are."""
        return self.inner.energy(self._moved(outputs))

    def columns(self, outputs: Tensor, targets: Tensor | None) -> Columns:
        """Those of the loss, with the classes where the outputs have them."""
        columns = self.inner.columns(*self._pair(outputs, targets))
        back = self.axis % outputs.dim() + 1  # after the axis of the columns
        return Columns(columns.rank, lambda start, stop: columns.slice(start, stop).movedim(2, back))

    def goes_by_rows(self, rank: int) -> bool:
        """Where the classes are on the last axis, and the loss goes row by row along it."""
        return self.axis % rank == rank - 1 and self.inner.goes_by_rows(2)

    def factor(self, outputs: Tensor, targets: Tensor | None) -> Factor:
        """That of the loss; one that goes row by row finds its way back by itself."""
        factor = self.inner.factor(*self._pair(outputs, targets))
        if isinstance(factor, Rows):
            return factor.on(outputs, self.axis)
        return Listed(self.columns(outputs, targets))


def on_axis(loss: Loss, shape: tuple[int, ...], targets: Tensor | None, class_axis: int | None) -> Loss:
    """The loss with its classes on the axis that is asked for, or that the targets tell by their shape.

    ``shape`` is that of the outputs; how many samples it says does not matter. A probability for each class tells by
    its sums. Where two axes would do, the user is asked: nothing is guessed.
    """
    if class_axis is not None:
        return _asked(loss, shape, class_axis)
    if not loss.has_classes or len(shape) <= 2:
        return loss
    if targets is not None and tuple(targets.shape[1:]) == shape[1:]:  # a probability for each class
        return _by_sums(loss, shape, targets)
    places = None if targets is None else tuple(targets.shape[1:])
    first, last = places == shape[2:], places == shape[1:-1]
    if first == last:
        raise LossError(f"{_given(loss, shape, targets)}: {_WHICH if first else _UNTOLD}. Say it: {_CALLS}")
    return OnAxis(loss, -1) if last else loss


def _by_sums(loss: Loss, shape: tuple[int, ...], targets: Tensor) -> Loss:
    """The loss on the one axis along which targets of the outputs' own shape sum to one, or that alone is longer."""
    if all(size == 1 for size in shape[2:]):
        return loss  # no other axis has classes
    wide = targets.double()
    ones = [a for a in range(1, len(shape)) if bool((wide.sum(a) - 1).abs().le(_COARSE).all())]
    if len(ones) != 1:
        why = "they sum to one along none of the axes, or along several"
        raise LossError(f"{_given(loss, shape, targets)}: {_UNTOLD}, {why}. Say it: {_CALLS}")
    return _asked(loss, shape, ones[0])


def _given(loss: Loss, shape: tuple[int, ...], targets: Tensor | None) -> str:
    what = "without targets" if targets is None else f"with targets of shape {tuple(targets.shape)}"
    return f"{loss.name} on outputs of shape {_named(shape)} {what}"


def _asked(loss: Loss, shape: tuple[int, ...], class_axis: int) -> Loss:
    if not isinstance(class_axis, int) or isinstance(class_axis, bool):
        raise LossError(f"class_axis={class_axis!r}: expected a number; {_CALLS}")
    if not loss.has_classes:
        raise LossError(f"class_axis={class_axis}: {loss.name} has no classes; leave it out")
    if not -len(shape) < class_axis < len(shape) or class_axis == 0:
        raise LossError(
            f"class_axis={class_axis}: the outputs have the shape {_named(shape)}, with the samples on axis 0; {_CALLS}"
        )
    return loss if class_axis % len(shape) == 1 else OnAxis(loss, class_axis)


def _named(shape: tuple[int, ...]) -> str:
    return f"({', '.join(['n', *map(str, shape[1:])])})"
