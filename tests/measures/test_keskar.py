"""Keskar's sharpness against searches of the box."""

from itertools import product

import pytest
import torch
from torch import nn

from minsharp.measures.keskar import keskar_sharpness
from tests.support.dense import Dense, small, three


@pytest.mark.parametrize("epsilon", [1e-3, 0.5])
@pytest.mark.parametrize("seed", range(4))
def test_keskar_against_a_search_of_the_box(seed: int, epsilon: float) -> None:
    """All the corners, and many points in between, find nothing higher; and the corners come close."""
    model, data = three(seed)
    dense = Dense(model, data)
    corners = torch.tensor(list(product([-1.0, 0.0, 1.0], repeat=3))).double()
    inside = 2 * torch.rand(20000, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
    points = dense.t + epsilon * (dense.t.abs() + 1) * torch.cat([corners, inside])
    most = 100 * (float(dense.many(points).max()) - dense.value) / (1 + dense.value)
    score = keskar_sharpness(model, data, epsilon=epsilon)
    assert score.value >= most * (1 - 1e-9)
    assert score.value <= most * 1.02


@pytest.mark.parametrize("seed", range(3))
def test_keskar_beats_random_corners(seed: int) -> None:
    model, data = small(seed)
    dense = Dense(model, data)
    signs = torch.randint(2, (20000, dense.t.numel()), generator=torch.Generator().manual_seed(seed)).double() * 2 - 1
    corner = dense.gradient.sign()[None]
    for epsilon in (1e-3, 0.1):
        width = epsilon * (dense.t.abs() + 1)
        score = keskar_sharpness(model, data, epsilon=epsilon)
        found = score.value * (1 + dense.value) / 100
        assert found >= float(dense.many(dense.t + width * torch.cat([signs, corner])).max()) - dense.value - 1e-12
        if epsilon == 1e-3:  # to first order <|g|, width>, and curvature adds little
            assert found == pytest.approx(float(dense.gradient.abs() @ width), rel=0.1)


def test_keskar_where_the_gradient_is_zero() -> None:
    """Squared error with the outputs as targets: a minimum, which the ascent has to leave by itself."""
    model, (x, _) = three()
    data = (x, model(x).detach())
    dense = Dense(model, data, nn.MSELoss())
    assert float(dense.gradient.abs().max()) == 0
    corners = torch.tensor(list(product([-1.0, 1.0], repeat=3))).double()
    most = 100 * float(dense.many(dense.t + 1e-2 * (dense.t.abs() + 1) * corners).max())
    score = keskar_sharpness(model, data, nn.MSELoss(), epsilon=1e-2)
    assert 0.2 * most < score.value <= most * (1 + 1e-9)


def test_keskar_of_a_constant() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    data = (torch.zeros(3, 2).double(), torch.ones(3, 1).double())
    assert keskar_sharpness(model, data, nn.MSELoss()).value == 0
