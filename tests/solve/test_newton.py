"""Damped Newton on functions whose minimum is known."""

from dataclasses import dataclass

import numpy as np
import pytest

from minsharp.solve.newton import Array, conjugate_gradients, descend, polish


@dataclass(frozen=True)
class Cosh:
    """sum cosh(3 (x - 2)), minimum len(x) at 2: full steps from afar overshoot, so they have to be cut."""

    x: Array

    @property
    def value(self) -> float:
        return float(np.cosh(3 * (self.x - 2)).sum())

    @property
    def slope(self) -> Array:
        return 3 * np.sinh(3 * (self.x - 2))

    def step(self) -> Array:
        return -self.slope / (9 * np.cosh(3 * (self.x - 2)))


@dataclass(frozen=True)
class Root(Cosh):
    """sum sqrt(1 + (x - 2)^2): from |x - 2| > 1 an undamped Newton step goes farther away."""

    @property
    def value(self) -> float:
        return float(np.sqrt(1 + (self.x - 2) ** 2).sum())

    @property
    def slope(self) -> Array:
        return (self.x - 2) / np.sqrt(1 + (self.x - 2) ** 2)

    def step(self) -> Array:
        return -self.slope * np.sqrt(1 + (self.x - 2) ** 2) ** 3


@pytest.mark.parametrize("function", [Cosh, Root])
def test_the_minimum_is_found_from_afar(function: type[Cosh]) -> None:
    found = descend(function, np.array([6.0, -3.0]), most=100, enough=lambda value: 1e-16 * value)
    assert found.arrived
    assert found.place.value == pytest.approx(2, abs=1e-14)
    assert np.abs(polish(function, found.x) - 2).max() <= np.abs(found.x - 2).max()
    assert np.abs(polish(function, found.x) - 2).max() < 1e-14


def test_it_tells_that_it_has_not_arrived() -> None:
    found = descend(Cosh, np.array([20.0]), most=3, enough=lambda value: 1e-16 * value)
    assert not found.arrived
    assert found.steps == 3
    assert found.place.value < Cosh(np.array([20.0])).value


def test_conjugate_gradients_bear_scales_far_apart() -> None:
    rng = np.random.default_rng(0)
    sizes = np.append(10.0 ** rng.uniform(-8, 8, 39), 0.0)  # the last unknown has no equation
    half = rng.standard_normal((40, 40))
    matrix = sizes[:, None] * (half @ half.T + 40 * np.eye(40)) * sizes
    expected = np.append(rng.standard_normal(39), 0.0) / np.where(sizes > 0, sizes, 1.0)
    y = (matrix @ expected).reshape(4, 10)
    x = conjugate_gradients(lambda v: (matrix @ v.ravel()).reshape(4, 10), matrix.diagonal().reshape(4, 10), y)
    assert x.shape == (4, 10)
    np.testing.assert_allclose(x.ravel(), expected, rtol=1e-7)
