"""Batches as collators hand them over: mappings of any kind, with labels, masks, and names that hold nothing."""

from collections import UserDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.subject.batches import batches

IDS = torch.randint(5, (4, 3), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]])
LABELS = torch.tensor([0, 1, 1, 0])


class Encoding(UserDict[str, Any]):
    """A tokenizer's result: a mapping that is no dict."""


class Pooled(nn.Module):
    """A mean over the tokens that the mask leaves in."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        assert token_type_ids is None
        x = self.embed(input_ids)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return self.head((x * mask.unsqueeze(-1)).sum(1))


def test_a_mapping_of_any_kind() -> None:
    given = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": None, "labels": LABELS}
    expected = ms.hessian_trace(pooled(), ((IDS, MASK), LABELS)).total
    for data in (given, Encoding(given), [Encoding(given)], (Encoding({**given, "labels": None}), LABELS)):
        assert ms.hessian_trace(pooled(), data).total == pytest.approx(expected, rel=1e-12)
        (batch,) = batches(data)
        assert type(batch.inputs) is dict
        assert batch.targets is not None
    assert ms.hessian_trace(pooled(), {"input_ids": IDS}).total != pytest.approx(expected, rel=1e-3)  # the mask counts


def pooled() -> Pooled:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Pooled().double()


def test_lists_of_numbers_are_named() -> None:
    with pytest.raises(ms.InputError, match=r"'input_ids' among the inputs of a batch is list of \(list"):
        ms.hessian_trace(pooled(), Encoding({"input_ids": IDS.tolist()}))


def test_nothing_but_labels() -> None:
    with pytest.raises(ms.InputError, match=r"the inputs of a batch are \{\}; expected a tensor"):
        ms.hessian_trace(pooled(), {"input_ids": None, "labels": LABELS})
