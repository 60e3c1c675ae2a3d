"""The solver against closed forms and against scipy, and where there is no minimum to be found."""

from typing import Any

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from minsharp.solve.geometric import minimise

Array = Any


def chain(depth: int, biases: bool = False) -> Array:
    """The exponents of a chain of layers in terms of the scales between them."""
    weights = np.eye(depth, depth - 1) - np.eye(depth, depth - 1, -1)
    return np.vstack([weights, np.eye(depth, depth - 1)]) if biases else weights


@pytest.mark.parametrize("depth", [*range(1, 13), 20, 35, 50])
@pytest.mark.parametrize("spread", [1, 30, 300])
def test_chains_without_biases(depth: int, spread: float) -> None:
    """The paper's Theorem 1: D (prod c)^(1/D), at alpha_d^2 = c_d / (prod c)^(1/D)."""
    log_c = spread * np.random.default_rng(depth).standard_normal(depth)
    A = chain(depth)
    solution = minimise(log_c, A)
    assert solution.log_value == pytest.approx(np.log(depth) + log_c.mean(), rel=1e-13, abs=1e-13)
    assert A @ solution.z == pytest.approx((log_c - log_c.mean()) / 2, abs=1e-12, rel=1e-12)
    assert solution.log_value - solution.log_bound < 1e-12
    assert solution.attained


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(2, 8), st.integers(0, 10**6), st.sampled_from([1.0, 20.0]))
def test_against_scipy(unknowns: int, seed: int, spread: float) -> None:
    """Random programs with a bounded minimum: never above scipy's, from several starts."""
    rng = np.random.default_rng(seed)
    A = rng.integers(-2, 3, (3 * unknowns, unknowns)).astype(float)
    A = np.vstack([A, -A.sum(0)])  # the rows add up to zero: a minimum exists
    log_c = spread * rng.standard_normal(len(A))
    solution = minimise(log_c, A)

    def f(z: Array) -> tuple[float, Array]:
        x = log_c - 2 * A @ z
        top = x.max()
        w = np.exp(x - top)
        return top + np.log(w.sum()), -2 * A.T @ (w / w.sum())

    starts = [np.zeros(unknowns), *(rng.standard_normal((3, unknowns)))]
    best = min(scipy.optimize.minimize(f, z, jac=True, method="BFGS", options={"gtol": 1e-12}).fun for z in starts)
    assert solution.log_value <= best + 1e-9
    assert solution.log_value == pytest.approx(best, abs=1e-6)
    assert 0 <= solution.log_value - solution.log_bound < 1e-9


def test_numbers_at_both_ends_of_float64() -> None:
    log_c = np.log([1e300, 1e-300, 1e300, 1e-300])
    solution = minimise(log_c, chain(4))
    assert np.exp(solution.log_value) == pytest.approx(4, rel=1e-12)
    biased = minimise(np.log([1e300, 1e-300, 1e-300, 1e300, 1e-300, 1.0]), chain(3, biases=True))
    assert biased.attained
    assert biased.log_value - biased.log_bound < 1e-9


def test_a_dead_layer_has_an_infimum_of_zero() -> None:
    solution = minimise(np.array([0.0, -np.inf, 1.0]), chain(3))
    assert solution.log_value == -np.inf
    assert not solution.attained
    assert np.isfinite(solution.z).all()
    shrunk = chain(3) @ solution.z
    assert shrunk[0] > 1
    assert shrunk[2] > 1
    assert np.abs(shrunk).max() < np.log(1.1e6)


def test_part_of_the_terms_vanish() -> None:
    """Two separate pairs, one of them with a dead half: the other keeps its own minimum."""
    A = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    solution = minimise(np.array([0.0, 2.0, 3.0, -np.inf]), A)
    assert solution.vanishing.tolist() == [False, False, True, False]
    assert solution.log_value == pytest.approx(np.log(2) + 1)
    assert np.isfinite(solution.z).all()


def test_vanishing_terms_where_no_graph_helps() -> None:
    """A term that shrinks with the sum of two scales: a linear program finds the direction."""
    A = np.array([[1.0, 1], [1, -1], [-1, 1]])
    solution = minimise(np.zeros(3), A)
    assert solution.vanishing.tolist() == [True, False, False]
    assert solution.log_value == pytest.approx(np.log(2))


def test_nothing_to_choose() -> None:
    solution = minimise(np.log([1.0, 2.0]), np.zeros((2, 0)))
    assert np.exp(solution.log_value) == pytest.approx(3)
    assert solution.attained


def test_a_large_problem_by_conjugate_gradients() -> None:
    """A chain longer than the dense solver takes."""
    depth = 1800
    log_c = np.random.default_rng(0).standard_normal(depth)
    solution = minimise(log_c, chain(depth))
    assert solution.log_value == pytest.approx(np.log(depth) + log_c.mean(), rel=1e-9)
    assert solution.log_value - solution.log_bound < 1e-9
