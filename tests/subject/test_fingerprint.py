"""Fingerprints tell tensors apart."""

import pytest
import torch
from torch import Tensor

from minsharp.subject.fingerprint import fingerprint

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def tensor(dtype: torch.dtype, *shape: int) -> Tensor:
    torch.manual_seed(0)
    return (torch.randn(shape) * 9).round().to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (64, 7), (300, 64)])
def test_copies_are_alike_and_each_entry_counts(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    held = tensor(dtype, *shape)
    assert fingerprint(held) == fingerprint(held.clone())
    for i in range(0, held.numel(), max(1, held.numel() // 40)):
        other = held.clone()
        other.view(-1)[i] = not other.view(-1)[i] if dtype == torch.bool else other.view(-1)[i] + 1
        assert fingerprint(other) != fingerprint(held)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_signs_and_order_count(dtype: torch.dtype) -> None:
    held = tensor(dtype, 64, 128) + 0.5
    rows, columns = held.clone(), held.clone()
    rows[[0, 1]], columns[:, [2, 3]] = held[[1, 0]], held[:, [3, 2]]
    one = held.clone()
    one[5] = -one[5]
    others = [held, -held, one, rows, columns, held.flip(0), held.mT.contiguous().view(64, 128), held.view(128, 64)]
    assert len({fingerprint(other) for other in others}) == len(others)


def test_where_it_lies_in_memory_does_not_count() -> None:
    held = tensor(torch.float16, 1000)
    other = torch.cat([torch.zeros(1, dtype=torch.float16), held])[1:]
    assert other.storage_offset() == 1
    assert fingerprint(other) == fingerprint(held) == fingerprint(held.view(20, 50).mT.contiguous().mT.reshape(-1))


def test_the_same_everywhere() -> None:
    assert fingerprint(torch.arange(1000.0)) == "f55b0c409d9b1fce"
