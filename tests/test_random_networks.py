"""Random networks built from the supported operations, against the dense oracle."""

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import minsharp as ms
from tests.support import oracles
from tests.support.random_networks import COMMON, networks


def check(model: nn.Module, x: Tensor) -> None:
    """Exact, and equal to the dense Hessian, entry by entry."""
    n = len(x)
    targets = torch.zeros(n, dtype=torch.int64)
    net = ms.read(model, x)
    trace, diagonal = ms.hessian_trace(net, x), ms.hessian_diagonal(net, x, memory=50_000)
    assert trace.total == pytest.approx(diagonal.total, rel=1e-9, abs=1e-300)
    model.eval()
    for name, found in diagonal.by_parameter.items():
        expected = oracles.hessian_diagonal(model, x, targets, nn.CrossEntropyLoss(), name)
        scale = max(float(expected.abs().max()), 1e-4 * trace.total)
        assert float((found - expected).abs().max()) <= 1e-9 * scale, name


@settings(max_examples=100, derandomize=True, **COMMON)  # type: ignore[arg-type]
@given(networks())
def test_random_networks(case: tuple[nn.Module, Tensor]) -> None:
    check(*case)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))  # 5,000 in all, to be shared out between processes
@settings(max_examples=500, **COMMON)  # type: ignore[arg-type]
@given(case=networks())
def test_many_random_networks(part: int, case: tuple[nn.Module, Tensor]) -> None:
    check(*case)
