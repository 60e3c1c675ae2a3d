"""Data that does not stay as it is: buffers that are written again, transforms that draw anew."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import minsharp as ms

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)).double()
Y = torch.arange(12) % 3


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()


def one_buffer() -> Iterator[tuple[Tensor, Tensor]]:
    """Each batch where the last one was, as loaders that save memory do it."""
    x, y = torch.empty(3, 4).double(), torch.empty(3, dtype=torch.int64)
    for start in range(0, 12, 3):
        x.copy_(X[start : start + 3])
        y.copy_(Y[start : start + 3])
        yield x, y


@pytest.mark.parametrize("tolerance", [0.0, 0.2])
def test_a_buffer_that_is_written_again(tolerance: float) -> None:
    options: Any = {"tolerance": tolerance} if tolerance else {}
    whole = ms.hessian_trace(network(), (X, Y), **options)
    assert ms.hessian_trace(network(), one_buffer(), **options).total == pytest.approx(whole.total, rel=1e-12)


def test_measures_that_hold_all_batches() -> None:
    table = ms.compare(network(), one_buffer(), measures=["trace", "training loss"], rescalings=0)
    expected = ms.compare(network(), (X, Y), measures=["trace", "training loss"], rescalings=0)
    for name in ("trace", "training loss"):
        assert table[name].value == pytest.approx(expected[name].value, rel=1e-12)
    assert ms.measures.training_loss(network(), one_buffer()).value == pytest.approx(expected["training loss"].value)


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Another image every time it is asked for."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return X[i] + 0.1 * torch.randn(4, generator=self.generator).double(), Y[i]


class Shrinking:
    """A loader that has fewer batches every time."""

    def __init__(self) -> None:
        self.batches = 5

    def __iter__(self) -> Iterator[Tensor]:
        self.batches -= 1
        yield from X.split(3)[: self.batches]


def test_what_changes_between_passes_is_refused() -> None:
    with pytest.raises(ms.InputError, match=r"changed between two passes.*other numbers.*data=list\(loader\)"):
        ms.hessian_trace(network(), DataLoader(Noisy(), batch_size=5), curvature="margin")
    with pytest.raises(ms.InputError, match=r"changed between two passes: \d+ samples in the first, \d+ in the second"):
        ms.hessian_trace(network(), Shrinking(), curvature="margin")
    pairs = [(x, y) for x, y in zip(X, Y, strict=True)]
    shuffled: Any = DataLoader(pairs, batch_size=5, shuffle=True)  # type: ignore[arg-type]
    found = ms.hessian_trace(network(), shuffled, curvature="margin").total
    assert found == pytest.approx(ms.hessian_trace(network(), X, curvature="margin").total, rel=1e-12)
