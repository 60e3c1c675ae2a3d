"""Noise that grows with the weights: closed forms, bounds that hold everywhere, and what can be scaled away."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse

from minsharp.solve.largest import minimise_largest
from minsharp.solve.noise import Program, minimise_noise
from minsharp.solve.sums import minimise_sums

METHODS = (minimise_sums, minimise_largest)


def program(h: Any, v: Any, A: Any, group: Any) -> Program:
    with np.errstate(divide="ignore"):
        log_h, log_v = (np.log(np.asarray(x, dtype=float)) for x in (h, v))
        return Program(log_h, log_v, scipy.sparse.csr_array(np.asarray(A, dtype=float)), np.asarray(group))


def value(p: Program, z: Any, method: Any) -> float:
    """f by its definition."""
    t = p.A @ np.asarray(z, dtype=float)
    total = 0.0
    for k in np.unique(p.group):
        own = p.group == k
        noise = np.exp(p.log_v[own] + 2 * t[own])
        total += (noise.sum() if method is minimise_sums else noise.max()) * np.exp(p.log_h[own] - 2 * t[own]).sum()
    return float(total)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (1e-3, 5.0), (1e8, 1e-8)])
def test_two_weights_in_a_group(a: float, b: float) -> None:
    """(a x + b)(1 / x + 1) is least at (sqrt a + sqrt b)²; max(a x, b)(1 / x + 1) where both are equal, at a + b."""
    p = program([1, 1], [a, b], [[1], [0]], [0, 0])
    sums, largest = (minimise_noise(p, method) for method in METHODS)
    assert np.exp(sums.log_value) == pytest.approx((a**0.5 + b**0.5) ** 2, rel=1e-9)
    assert np.exp(largest.log_value) == pytest.approx(a + b, rel=1e-6)
    assert largest.log_bound <= np.log(a + b) + 1e-12
    assert largest.attained


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_everywhere_and_are_met(method: Any, seed: int) -> None:
    """Random programs, sizes over ten orders of magnitude, some entries without curvature."""
    rng = np.random.default_rng(seed)
    entries, unknowns, groups = rng.integers(5, 60), rng.integers(1, 8), rng.integers(1, 5)
    A = rng.integers(-1, 2, (entries, unknowns))
    h = np.exp(rng.normal(0, 4, entries)) * (rng.random(entries) > 0.1)
    v = np.exp(rng.normal(0, 4, entries))
    p = program(h, v, A, rng.integers(0, groups, entries))
    found = minimise_noise(p, method)
    assert value(p, found.z, method) == pytest.approx(np.exp(found.log_value), rel=1e-6)
    assert 0 <= found.log_value - found.log_bound <= 1e-6
    for _ in range(50):
        z = found.z + rng.normal(0, rng.choice([1e-3, 0.1, 1.0]), unknowns)
        assert np.log(value(p, z, method)) >= found.log_bound - 1e-12


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_a_weight_without_curvature_is_scaled_away(method: Any, size: float) -> None:
    """(a x + 1 [or their maximum]) (1 + 1 + 1/y): 2 is approached, though a is large, by a step that is taken."""
    p = program([0, 1, 1, 1], [size, 1, 0, 1], [[1, 0], [0, 0], [0, 1], [0, 0]], [0, 0, 0, 1])
    found = minimise_noise(p, method)
    assert not found.attained
    assert value(p, found.z, method) == pytest.approx(np.exp(found.log_value), rel=1e-3)
    assert np.exp(found.log_value) == pytest.approx(2, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(40))
def test_what_is_called_attained_is(method: Any, seed: int) -> None:
    """Random programs, some entries without curvature, some without weights."""
    rng = np.random.default_rng(seed)
    entries, unknowns = rng.integers(2, 40), rng.integers(1, 8)
    A = rng.integers(-1, 2, (entries, unknowns)) * (rng.random((entries, unknowns)) < 0.3)
    h, v = (np.exp(rng.normal(0, 1, entries)) * (rng.random(entries) > share) for share in (0.4, 0.2))
    p = program(h, v, A, rng.integers(0, 3, entries))
    found = minimise_noise(p, method)
    there = value(p, found.z, method)
    assert there >= np.exp(found.log_bound) * (1 - 1e-9)
    if found.attained and there:
        assert there == pytest.approx(np.exp(found.log_value), rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_curvature_without_a_weight_is_scaled_away(method: Any) -> None:
    """b (1 / x + 1), the other weight zero: b is approached, not attained."""
    p = program([1, 1], [0, 3], [[1], [0]], [0, 0])
    found = minimise_noise(p, method)
    assert not found.attained
    assert found.vanishing.tolist() == [True, False]
    assert np.exp(found.log_value) == pytest.approx(3, rel=1e-9)
    assert value(p, found.z, method) == pytest.approx(3, rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_groups_that_have_no_part(method: Any) -> None:
    """No curvature, or no weights: no noise that counts."""
    p = program([0, 0, 2, 1], [1, 5, 0, 4], [[1], [0], [0], [0]], [0, 0, 1, 2])
    found = minimise_noise(p, method)
    assert np.exp(found.log_value) == pytest.approx(4, rel=1e-9)
    nothing = minimise_noise(program([0.0], [1.0], [[1]], [0]), method)
    assert nothing.log_value == nothing.log_bound == -np.inf


@pytest.mark.parametrize("method", METHODS)
def test_more_unknowns_than_are_factored(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conjugate gradients find the same, if less sharply, and do not claim more than they know."""
    rng = np.random.default_rng(0)
    A = rng.integers(-1, 2, (60, 6))
    p = program(rng.random(60) + 0.1, rng.random(60) + 0.1, A, rng.integers(0, 3, 60))
    exact = minimise_noise(p, method)
    monkeypatch.setattr("minsharp.solve.noise.DENSE", 2)
    found = minimise_noise(p, method)
    assert found.log_bound <= exact.log_value + 1e-9
    assert found.log_value == pytest.approx(exact.log_value, abs=1e-5)
