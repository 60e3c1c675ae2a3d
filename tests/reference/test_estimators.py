"""The reference code agrees with the oracle, and the estimates with what they estimate."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.reference import estimators
from tests.support import oracles
from tests.support.zoo import BY_NAME

CRITERION = nn.CrossEntropyLoss(label_smoothing=0.1)


@pytest.mark.parametrize(
    "name", ["mlp", "gelu", "residual_batch_norm", "dict_input", "tied_in_a_row", "lstm", "frozen"]
)
def test_the_baseline_is_the_dense_hessian(name: str) -> None:
    """Also where the engine would refuse: it needs no linearity."""
    entry = BY_NAME[name]
    inputs, targets = entry.data()
    result = estimators.baseline_diagonal(entry.model(), (inputs, targets), CRITERION)
    model = entry.model().eval()
    for parameter, diagonal in result.by_parameter.items():
        expected = oracles.hessian_diagonal(model, inputs, targets, CRITERION, parameter)
        assert torch.allclose(diagonal, expected, rtol=1e-10, atol=1e-14), parameter
    assert all(result.exact.values())


def test_batches_of_different_sizes() -> None:
    entry = BY_NAME["mlp"]
    inputs, targets = entry.data()
    assert isinstance(inputs, Tensor)
    split = [(inputs[:1], targets[:1]), (inputs[1:], targets[1:])]
    whole = estimators.baseline_diagonal(entry.model(), (inputs, targets))
    parts = estimators.baseline_diagonal(entry.model(), split)
    assert whole.total == pytest.approx(parts.total, rel=1e-12)
    assert whole.total == pytest.approx(ms.hessian_trace(entry.model(), inputs).total, rel=1e-12)


@pytest.mark.parametrize("name", ["mlp", "gelu"])
def test_hutchinson_within_its_standard_error(name: str) -> None:
    entry = BY_NAME[name]
    exact = estimators.baseline_diagonal(entry.model(), entry.data()).total
    estimate = estimators.hutchinson_trace(entry.model(), entry.data(), probes=400, seed=3)
    assert 0 < estimate.standard_error < 0.2 * exact
    assert abs(estimate.value - exact) < 4 * estimate.standard_error
    again = estimators.hutchinson_trace(entry.model(), entry.data(), probes=400, seed=3)
    assert again.probes == estimate.probes
    assert "400 probes" in repr(estimate)


def _smooth() -> nn.Module:
    """No kinks for a finite difference to trip over, and no small weight: the ICML form divides by them."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        size = 0.5 + torch.rand(parameter.shape, generator=generator)
        parameter.data = size * (torch.randint(2, parameter.shape, generator=generator) * 2 - 1)
    return model.double()


@pytest.mark.parametrize("approximate", [estimators.tsuzuku_arxiv_diagonal, estimators.tsuzuku_icml_diagonal])
def test_tsuzukus_approximations_converge(approximate: Any) -> None:
    """Averaged over many probes at a small radius they approach the diagonal; the ICML one clips negative entries."""
    model = _smooth()
    x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    data = (x, torch.arange(8) % 3)
    exact = estimators.baseline_diagonal(model, data).by_parameter
    found = approximate(model, data, probes=1000, radius=1e-4).by_parameter
    scale = max(float(d.abs().max()) for d in exact.values())
    for name, diagonal in exact.items():
        expected = diagonal.clamp_min(0) if "icml" in approximate.__name__ else diagonal
        assert float((found[name] - expected).abs().max()) < 0.12 * scale, name


def test_too_few_probes() -> None:
    entry = BY_NAME["mlp"]
    with pytest.raises(ms.InputError, match="at least 2"):
        estimators.hutchinson_trace(entry.model(), entry.data(), probes=1)
    with pytest.raises(ms.InputError, match="at least 1"):
        estimators.tsuzuku_icml_diagonal(entry.model(), entry.data(), probes=0)


def test_missing_targets() -> None:
    entry = BY_NAME["mlp"]
    with pytest.raises(ms.LossError, match="needs targets"):
        estimators.baseline_diagonal(entry.model(), entry.data()[0])
