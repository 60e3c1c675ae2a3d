"""Factors whose columns can be mixed: the same S S^T as the columns, written out."""

from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minsharp.losses import Centred, Loss, NextToken, as_loss
from minsharp.losses.axis import OnAxis
from minsharp.losses.factor import Rows, SoftmaxRows, blocks

D = torch.float64
WEIGHTED = as_loss(nn.CrossEntropyLoss(torch.tensor([0.5, 2.0, 1.0, 0.0, 3.0]), label_smoothing=0.1))


def logits(*shape: int) -> Tensor:
    return 3 * torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(0))


def classes(*shape: int) -> Tensor:
    return torch.randint(5, shape, generator=torch.Generator().manual_seed(1))


CASES: dict[str, tuple[Loss, Tensor, Tensor | None]] = {
    "cross-entropy": (as_loss(None), logits(3, 5), None),
    "positions": (as_loss(None), logits(3, 5, 4, 2), None),
    "last axis": (OnAxis(as_loss(None), -1), logits(3, 4, 5), classes(3, 4)),
    "class weights": (OnAxis(WEIGHTED, -1), logits(3, 4, 5), classes(3, 4)),
    "next token": (OnAxis(NextToken(), -1), logits(3, 4, 5), classes(3, 4)),
    "ignored": (as_loss(nn.CrossEntropyLoss(ignore_index=2)), logits(4, 5), classes(4)),
    "squared error": (as_loss(nn.MSELoss()), logits(3, 4, 2), None),
    "one output": (as_loss(nn.MSELoss()), logits(3), None),
    "binary": (as_loss(nn.BCEWithLogitsLoss()), logits(3, 4), None),
    "centred": (Centred(), logits(3, 4, 2), None),
    "centred, last axis": (OnAxis(Centred(), -1), logits(3, 4, 2), None),
    "centred, one output": (Centred(), logits(3, 1), None),
    "any convex": (as_loss(nn.SmoothL1Loss()), logits(3, 4), logits(3, 4) + 0.1),
}


def flat(S: Tensor) -> Tensor:
    return S.reshape(*S.shape[:2], prod(S.shape[2:]))


def written_out(loss: Loss, outputs: Tensor, targets: Tensor | None) -> Tensor:
    """S S^T of the columns: (n, output, output)."""
    columns = loss.columns(outputs, targets)
    S = flat(columns.slice(0, columns.rank))
    return S.mT @ S


def units(factor: Any, n: int) -> Tensor:
    """Every column by itself: (n, columns, *entries)."""
    count = prod(factor.entries)
    return torch.eye(count, dtype=D).view(1, count, *factor.entries).expand(n, -1, *factor.entries)


@pytest.mark.parametrize("case", CASES)
def test_mixed_columns_have_the_same_squares(case: str) -> None:
    loss, outputs, targets = CASES[case]
    factor = loss.factor(outputs, targets)
    S = factor.mixed(units(factor, len(outputs)))
    assert S.shape[2:] == outputs.shape[1:]
    H = flat(S).mT @ flat(S)
    torch.testing.assert_close(H, written_out(loss, outputs, targets), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(factor.energies.flatten(1), flat(S).square().sum(2), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("case", CASES)
def test_rows_are_announced_and_know_their_diagonal(case: str) -> None:
    loss, outputs, targets = CASES[case]
    factor = loss.factor(outputs, targets)
    if loss.goes_by_rows(outputs.dim()):
        assert isinstance(factor, Rows)
        expected = written_out(loss, outputs, targets).diagonal(dim1=1, dim2=2).view_as(outputs)
        torch.testing.assert_close(factor.diagonal.view_as(outputs), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "case", [name for name, (loss, o, _) in CASES.items() if loss.goes_by_rows(o.dim()) and o.dim() > 1]
)
def test_a_product_with_a_weight_is_that_of_every_row(case: str) -> None:
    loss, outputs, targets = CASES[case]
    factor: Any = loss.factor(outputs, targets)
    K = factor.entries[1]
    W = torch.randn(K, 3, dtype=D, generator=torch.Generator().manual_seed(2))
    for i in range(len(outputs)):
        product = factor.times(W, i)  # (positions, K, 3)
        H = written_out(loss, outputs, targets)[i].view(-1, K, outputs[i].numel() // K, K)
        expected = torch.stack([W.T @ H[t, :, t] @ W for t in range(len(product))])
        torch.testing.assert_close(product.mT @ product, expected, rtol=1e-10, atol=1e-12)


def test_saturated_probabilities_keep_their_digits() -> None:
    """One minus what is all but one: 1e-20 away from it, in a type with 16 digits."""
    outputs = torch.tensor([[0.0, -46.0, -47.0]], dtype=D)
    factor: Any = as_loss(None).factor(outputs, None)
    p = outputs.exp()[0]
    assert isinstance(factor, SoftmaxRows)
    torch.testing.assert_close(factor.diagonal[0, 0], torch.stack([p[1] + p[2], p[1], p[2]]), rtol=1e-12, atol=0)
    W = torch.tensor([[1.0], [2.0], [4.0]], dtype=D)
    expected = p[1] * 1 + p[2] * 9  # the variance of W under p
    torch.testing.assert_close(factor.times(W, 0).square().sum(), expected, rtol=1e-12, atol=0)
    signs = torch.ones(1, 1, 1, 3, dtype=D)
    assert float(factor.mixed(signs).sum().abs()) < 1e-24  # the columns add up to zero


def test_blocks_put_each_factor_at_its_position() -> None:
    factor = torch.arange(1.0, 13).view(1, 3, 2, 2)  # (n, positions, r, d)
    columns = blocks(factor, (3,))
    S = columns.slice(0, columns.rank)
    assert S.shape == (1, 6, 3, 2)
    for t in range(3):
        for j in range(2):
            expected = torch.zeros(3, 2)
            expected[t] = factor[0, t, j]
            assert torch.equal(S[0, 2 * t + j], expected)
    assert torch.equal(columns.slice(1, 4), S[:, 1:4])


def test_a_loss_of_ones_own_is_mixed_from_its_columns() -> None:
    loss = as_loss(lambda o, y: (F.softplus(o.sum(1)) + (o - y).square().sum(1)).mean())
    outputs, targets = logits(2, 3), logits(2, 3)
    factor = loss.factor(outputs, targets)
    signs = torch.tensor([1.0, -1.0, 1.0], dtype=D).expand(2, 1, 3)
    columns = loss.columns(outputs, targets).slice(0, 3)
    torch.testing.assert_close(factor.mixed(signs)[:, 0], columns[:, 0] - columns[:, 1] + columns[:, 2])
