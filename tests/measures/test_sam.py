"""SAM and ASAM against searches of the ball, and their averages against quadrature."""

from collections.abc import Callable
from itertools import product
from math import sqrt

import numpy as np
import pytest
import torch
from torch import nn

from minsharp.measures.sam import asam_sharpness, sam_sharpness
from minsharp.measures.score import Score
from tests.support.dense import Dense, sphere, three

Measure = Callable[..., Score]


@pytest.mark.parametrize(("measure", "rho"), [(sam_sharpness, 0.05), (sam_sharpness, 1.0), (asam_sharpness, 0.5)])
@pytest.mark.parametrize("seed", range(4))
def test_sam_against_a_search_of_the_ball(measure: Measure, rho: float, seed: int) -> None:
    """A dense grid of directions and radii finds nothing higher than many steps do, and one step is Foret's."""
    model, data = three(seed)
    dense = Dense(model, data)
    unit = dense.t.abs() if measure is asam_sharpness else torch.ones(3).double()
    directions = sphere()
    most = max(float(dense.many(dense.t + unit * rho * r * directions).max()) for r in (1.0, 0.7, 0.4)) - dense.value
    found = measure(model, data, rho=rho, steps=100)
    assert found.value >= most * (1 - 1e-6)
    assert found.value <= most * (1 + 1e-3)
    slope = unit * dense.gradient
    step = rho * unit * slope / slope.norm()
    expected = float(dense(dense.t + step)) - dense.value
    assert measure(model, data, rho=rho).value == pytest.approx(max(expected, 0), rel=1e-9)
    assert found.value >= expected
    assert found.details == {"rho": rho, "steps": 100}


@pytest.mark.parametrize("measure", [sam_sharpness, asam_sharpness])
def test_average_sharpness_against_quadrature(measure: Measure) -> None:
    """Gauss and Hermite integrate the three Gaussians exactly; the draws come within their standard error."""
    model, data = three(3)
    dense = Dense(model, data)
    unit = dense.t.abs() if measure is asam_sharpness else torch.ones(3).double()
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    grid = torch.tensor(list(product(nodes, repeat=3))).double()
    weight = torch.tensor([a * b * c for a, b, c in product(weights, repeat=3)]).double() / sqrt(2 * torch.pi) ** 3
    expected = float(weight @ dense.many(dense.t + 0.3 * unit * grid)) - dense.value
    found = measure(model, data, rho=0.3, average=True, samples=3000, seed=5)
    assert found.standard_error is not None
    assert 0 < found.standard_error < 0.2 * abs(expected)
    assert abs(found.value - expected) < 4 * found.standard_error
    assert measure(model, data, rho=0.3, average=True, samples=20, seed=5) == measure(
        model, data, rho=0.3, average=True, samples=20, seed=5
    )
    assert (
        measure(model, data, rho=0.3, average=True).value != measure(model, data, rho=0.3, average=True, seed=1).value
    )


def test_sam_where_the_gradient_is_zero() -> None:
    """From a minimum the first step is random, and the next ones find the top eigenvalue: rho^2 / 2 of it."""
    model, (x, _) = three()
    data = (x, model(x).detach())
    top = float(torch.linalg.eigvalsh(Dense(model, data, nn.MSELoss()).hessian)[-1])
    found = sam_sharpness(model, data, nn.MSELoss(), rho=1e-4, steps=200)
    assert found.value == pytest.approx(top * 1e-8 / 2, rel=1e-3)
    assert sam_sharpness(model, data, nn.MSELoss(), rho=1e-4).value > 0
