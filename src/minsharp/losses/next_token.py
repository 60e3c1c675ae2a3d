"""The loss of causal language models: what stands at a position is judged by the token after it."""

import warnings
from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor

from ..errors import LossError, MinsharpWarning
from .columns import Columns
from .cross_entropy import CrossEntropy
from .factor import Factor
from .find import as_loss
from .loss import Criterion, Loss
from .wording import shape_of


class NextToken(Loss):
    """Cross-entropy of each token given those before it: targets are the tokens themselves, and are shifted here.

    This is what a causal language model is trained with if it is given ``labels`` that are its own inputs, with -100
    where nothing is to be predicted, and shifts them inside: position t of the logits meets label t + 1, the last
    position and the first label meet nothing, and the mean is over the labels that count. Labels that are shifted
    already belong to plain ``nn.CrossEntropyLoss()``. ``criterion`` is an ``nn.CrossEntropyLoss`` with options.

    Three tokens make two predictions, each of log 8 where the logits say nothing:

    >>> import torch
    >>> import minsharp as ms
    >>> loss = ms.losses.NextToken()
    >>> logits, tokens = torch.zeros(1, 8, 3), torch.tensor([[5, 1, 2]])  # (n, classes, positions), (n, positions)
    >>> loss.weight(logits, tokens), round(float(loss.total(logits, tokens)) / 2, 4)
    (2.0, 2.0794)
    """

    has_classes = True

    def __init__(self, criterion: Criterion | None = None):
        inner = as_loss(criterion)
        if not isinstance(inner, CrossEntropy):
            raise LossError(
                f"NextToken takes an nn.CrossEntropyLoss, as in NextToken(nn.CrossEntropyLoss()), got {inner.name}"
            )
        self.inner = inner
        self.mean = inner.mean
        self.name = f"NextToken({'' if criterion is None else inner.name})"

    @staticmethod
    def _without_last(outputs: Tensor) -> Tensor:
        """(n, K, T) -> (n, K, T - 1): nothing follows the last position."""
        return outputs[..., :-1]

    def judges(self, targets: Tensor) -> bool:
        """As the loss has it."""
        return self.inner.judges(targets)

    def judged(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """For each position the label after it, for the last what is ignored; and which of them are not."""
        return self.inner.judged(self._shifted(targets))

    def _shifted(self, targets: Tensor) -> Tensor:
        """(n, T) -> (n, T): the labels of the tokens that follow, and one that is ignored."""
        return F.pad(targets[:, 1:], (0, 1), value=self.inner.ignore)

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        """Labels for each position, the padding ignored: which ones count cannot be told without them."""
        if targets is None:
            raise LossError(
                f"{self.name} needs the labels, -100 where nothing is to be predicted: pass "
                '{"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}'
            )
        if outputs.dim() != 3 or outputs.shape[2] < 2:
            raise LossError(
                f"{self.name} expects logits (n, classes, positions) of two positions or more, got {shape_of(outputs)}"
            )
        if targets.dim() != 2 or targets.dtype.is_floating_point:
            raise LossError(f"{self.name} expects labels (n, positions), whole numbers, got {shape_of(targets)}")
        if targets.shape != (outputs.shape[0], outputs.shape[2]):
            raise LossError(
                f"{self.name} expects a label for each of {outputs.shape[2]} positions, unshifted, got "
                f"{shape_of(targets)}; labels that are shifted already belong to nn.CrossEntropyLoss()"
            )
        self.inner.check(self._without_last(outputs), targets[:, 1:])

    def rank(self, shape: tuple[int, ...]) -> int:
        """(1, K, T) -> K - 1 for each position but the last."""
        return self.inner.rank((*shape[:-1], shape[-1] - 1))

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        """The sum over all tokens that count of -log p(token | those before it)."""
        return self.inner.total(self._without_last(outputs), None if targets is None else targets[:, 1:])

    def weight(self, outputs: Tensor, targets: Tensor | None) -> float:
        """The number of tokens that are predicted, or their class weights."""
        return self.inner.weight(self._without_last(outputs), None if targets is None else targets[:, 1:])

    def columns(self, outputs: Tensor, targets: Tensor | None) -> Columns:
        """Those of the cross-entropy, (n, columns, K, T - 1), and zero at the last position."""
        found = self.inner.columns(self._without_last(outputs), None if targets is None else targets[:, 1:])
        return Columns(found.rank, lambda start, stop: F.pad(found.slice(start, stop), (0, 1)))

    def goes_by_rows(self, rank: int) -> bool:
        """As cross-entropy does."""
        return self.inner.goes_by_rows(rank)

    def factor(self, outputs: Tensor, targets: Tensor | None) -> Factor:
        """That of the cross-entropy, of which nothing is left at the last position."""
        return self.inner.factor(outputs, None if targets is None else self._shifted(targets))


def warn_unshifted(inputs: Iterable[Tensor], targets: Tensor | None) -> None:
    """Say so where no loss was named and labels are the very tokens that went in: they may be meant for `NextToken`."""
    if targets is None or targets.dim() != 2 or targets.shape[1] < 2 or targets.dtype.is_floating_point:
        return
    counts = targets >= 0
    for tokens in inputs:
        if tokens.shape == targets.shape and not tokens.dtype.is_floating_point:
            same = tokens.to(targets.device)[counts]
            if len(same.unique()) > 1 and same.equal(targets[counts].to(same.dtype)):
                warnings.warn(_UNSHIFTED, MinsharpWarning, stacklevel=2)
                return


_UNSHIFTED = (
    "the labels are the tokens that go in, and cross-entropy judges each position by its own. A causal language model "
    "is trained to predict the next: loss=minsharp.losses.NextToken(), or --loss next-token. If these labels are "
    "meant as they are, say loss=nn.CrossEntropyLoss()"
)
