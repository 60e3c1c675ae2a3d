"""The metrics give the numbers of a direct call: over batches, in a collection, over processes."""

from typing import Any

import pytest
import torch
import torchmetrics
from torch import nn

import minsharp as ms
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.filterwarnings("ignore")

X = torch.randn(11, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(11) % 3


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def _collection(model: nn.Module) -> Any:
    from minsharp.integrations.torchmetrics import HessianTrace, MinimumSharpness

    return torchmetrics.MetricCollection({"trace": HessianTrace(model), "sharpness": MinimumSharpness(model)})


def _expected() -> tuple[float, float]:
    model = _model()
    return ms.hessian_trace(model, X).total, ms.minimum_sharpness(model, X).value


def test_over_batches() -> None:
    model = _model()
    metrics = _collection(model)
    assert not list(metrics.parameters()), "the model is not a part of the metric"
    for x, y in zip(X.split(4), Y.split(4), strict=True):
        metrics.update(x, y)
    found = metrics.compute()
    assert (float(found["trace"]), float(found["sharpness"])) == pytest.approx(_expected(), rel=1e-12)
    assert metrics["trace"].by_parameter == pytest.approx(ms.hessian_trace(model, X).by_parameter, rel=1e-12)
    metrics.reset()
    assert float(metrics(X[:3], Y[:3])["trace"]) == pytest.approx(ms.hessian_trace(model, X[:3]).total, rel=1e-12)


def test_options_and_nothing() -> None:
    from minsharp.integrations.torchmetrics import HessianTrace

    metric = HessianTrace(_model(), nn.MSELoss(), {"curvature": "ggn", "parameters": "0.*"})
    with pytest.raises(ms.InputError, match="nothing was measured on this process: update the metric"):
        metric.compute()
    targets = torch.nn.functional.one_hot(Y, 3).double()
    metric.update(X, targets)
    direct = ms.hessian_trace(_model(), (X, targets), nn.MSELoss(), curvature="ggn", parameters="0.*")
    assert float(metric.compute()) == pytest.approx(direct.total, rel=1e-12)


def _on_a_rank(rank: int, size: int) -> tuple[float, float]:
    metrics = _collection(_model())
    cut = 7 if rank else 0
    for x, y in zip(X[cut : 7 + 4 * rank].split(3), Y[cut : 7 + 4 * rank].split(3), strict=True):
        metrics.update(x, y)
    found = metrics.compute()
    return float(found["trace"]), float(found["sharpness"])


def test_over_processes() -> None:
    for found in on_ranks(_on_a_rank, 2, seconds=120):
        assert found == pytest.approx(_expected(), rel=1e-12)
