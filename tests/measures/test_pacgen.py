"""pacGen against its formula."""

from math import log, sqrt

import pytest
from torch import nn

import minsharp as ms
from minsharp.measures.pacgen import pacgen
from tests.support import oracles
from tests.support.dense import CE
from tests.support.zoo import BY_NAME


@pytest.mark.parametrize(("gamma", "epsilon", "rho"), [(0.1, 0.1, 1.0), (0.5, 2.0, 0.0), (0.0, 3.0, 0.1)])
def test_pacgen_is_its_formula(gamma: float, epsilon: float, rho: float) -> None:
    entry = BY_NAME["mlp"]
    inputs, targets = entry.data()
    model = entry.model().eval()
    m = sum(p.numel() for p in model.parameters())
    expected, curved = 0.0, 0
    for name, parameter in model.named_parameters():
        H = oracles.hessian_diagonal(model, inputs, targets, CE, name)
        for t, h in zip(parameter.flatten().tolist(), H.flatten().tolist(), strict=True):
            k = gamma * abs(t) + epsilon
            curved += sqrt(h + rho * sqrt(m) * k) > 1 / k
            expected += log((abs(t) + k) * max(sqrt(h + rho * sqrt(m) * k), 1 / k))
    score = pacgen(model, (inputs, None), gamma=gamma, epsilon=epsilon, rho=rho)
    assert score.value == pytest.approx(expected, rel=1e-10)
    assert score.details["m"] == m
    assert curved or gamma == 0.1, "some entries take the other side of the maximum"


def test_pacgen_from_a_diagonal() -> None:
    entry = BY_NAME["gelu"]
    inputs, _ = entry.data()
    model = entry.model()
    diagonal = ms.hessian_diagonal(model, inputs, curvature="ggn")
    whole = pacgen(model, inputs, curvature="ggn")
    assert pacgen(model, (), diagonal=diagonal) == whole
    with pytest.raises(ms.NotExactError, match='curvature="ggn"'):
        pacgen(model, inputs)
    with pytest.raises(ms.InputError, match=r"the diagonal is not of this model: \['2.weight', '2.bias'\]"):
        pacgen(nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3)), inputs, diagonal=diagonal)
