"""Knapsacks: the optimum against all selections and against an integer program, the bound, the limit."""

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

from minsharp.solve.knapsack import Selection, cheapest


def best(costs: Any, sizes: Any, limit: float) -> float:
    """By trying all."""
    rows = range(len(costs))
    totals = (
        (sum(sizes[r, k] for r, k in zip(rows, places, strict=True)), places)
        for places in itertools.product(range(costs.shape[1]), repeat=len(costs))
    )
    return min(
        sum(float(costs[r, k]) for r, k in zip(rows, places, strict=True)) for size, places in totals if size <= limit
    )


def held(found: Selection, costs: Any, sizes: Any, limit: float) -> None:
    """What a selection says of itself is so."""
    rows = np.arange(len(costs))
    assert found.cost == pytest.approx(costs[rows, found.places].sum(), rel=1e-12)
    assert sizes[rows, found.places].sum() <= limit
    assert found.bound <= found.cost


def rounded(rows: int, choices: Any, seed: int) -> tuple[Any, Any]:
    """Costs and sizes as rounding has them."""
    generator = np.random.default_rng(seed)
    weights = generator.choice([9, 27, 64, 144, 288, 576], rows)
    curvature = generator.lognormal(0, 2, rows) * weights
    levels = 2.0 ** (np.array(choices) - 1) - 1
    return curvature[:, None] / levels**2, np.outer(weights, choices)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6), st.floats(0, 1))
def test_no_selection_is_cheaper(rows: int, choices: int, seed: int, room: float) -> None:
    """Whatever the costs are: also some that are the same, or zero, or that grow with the size."""
    generator = np.random.default_rng(seed)
    costs = generator.choice([0.0, 1e-9, 0.5, 1.0, 1.0, 3.0, 1e3], (rows, choices)) * generator.choice(
        [1, 0.7], (rows, 1)
    )
    sizes = generator.integers(1, 9, (rows, choices))
    limit = int(sizes.min(1).sum() + room * (sizes.max(1) - sizes.min(1)).sum())
    found = cheapest(costs, sizes, limit)
    held(found, costs, sizes, limit)
    assert found.cost == pytest.approx(best(costs, sizes, limit), rel=1e-11)
    assert found.bound == found.cost


@pytest.mark.parametrize("mean", [2.0, 2.3, 4.0, 7.9, 8.0])
def test_an_integer_program_finds_no_cheaper_one(mean: float) -> None:
    costs, sizes = rounded(120, (2, 3, 4, 6, 8), seed=int(10 * mean))
    limit = mean * sizes[:, 0].sum() / 2
    found = cheapest(costs, sizes, limit)
    held(found, costs, sizes, limit)
    each = np.kron(np.eye(len(costs)), np.ones(costs.shape[1]))
    only = scipy.optimize.LinearConstraint(each, 1, 1)
    room = scipy.optimize.LinearConstraint(sizes.ravel(), 0, limit)
    whole = np.ones(costs.size)
    options = {"mip_rel_gap": 1e-9}
    program = scipy.optimize.milp(
        costs.ravel(), integrality=whole, bounds=(0, 1), constraints=[only, room], options=options
    )
    assert found.cost <= program.fun * (1 + 1e-9)
    assert found.cost >= program.mip_dual_bound * (1 - 1e-9)
    assert found.bound == found.cost


def test_thousands_of_rows() -> None:
    """Within a thousandth of a percent of Lagrange's bound, written out here; and the best, it says."""
    costs, sizes = rounded(20_000, (2, 3, 4, 8), seed=1)
    limit = 4 * sizes[:, 0].sum() / 2
    found = cheapest(costs, sizes, limit)
    held(found, costs, sizes, limit)

    def below(price: float) -> float:
        return float((costs + price * sizes).min(1).sum() - price * limit)

    prices = scipy.optimize.minimize_scalar(lambda log: -below(np.exp(log)), bounds=(-20, 20), method="bounded")
    assert -prices.fun <= found.cost <= -prices.fun * (1 + 1e-5)
    assert found.bound == found.cost


def test_little_memory_leaves_a_bound() -> None:
    """Where the search is cut short, the two numbers say how much is open."""
    costs, sizes = rounded(40, (2, 3, 4, 8), seed=2)
    limit = 4 * sizes[:, 0].sum() / 2
    whole, short = cheapest(costs, sizes, limit), cheapest(costs, sizes, limit, most=1)
    held(short, costs, sizes, limit)
    assert whole.bound == whole.cost
    assert short.bound < whole.cost <= short.cost <= 1.2 * whole.cost


def test_rows_that_are_all_alike() -> None:
    """What sizes have in common divides the limit: then the first bound is met, however many rows there are."""
    costs, sizes = np.ones((20_000, 1)) / (2.0 ** np.arange(1, 5) - 1) ** 2, np.outer(np.full(20_000, 9), (2, 3, 4, 5))
    for mean in (4.05, 4.1, 3.33333):
        limit = mean * 9 * 20_000
        found = cheapest(costs, sizes, limit)
        held(found, costs, sizes, limit * (1 + 1e-12))
        low, high = (int(mean) - 2, int(mean) - 1)
        more = int((mean - int(mean)) * 20_000 + 1e-6)
        assert found.cost == pytest.approx(more * costs[0, high] + (20_000 - more) * costs[0, low], rel=1e-12)
        assert found.bound == found.cost


@given(st.integers(2, 6), st.integers(0, 10**6), st.integers(1, 40))
def test_a_bound_holds_wherever_the_search_ends(rows: int, seed: int, most: int) -> None:
    """Rows that are alike, zeros and budgets that are met exactly: never above the optimum, nor is the answer below."""
    generator = np.random.default_rng(seed)
    weights = generator.choice([9, 27, 64], rows)
    costs = (
        generator.choice([0.0, 1.0, 1.0, 2.5, 1e12], (rows, 1)) * weights[:, None] / np.array([1.0, 9.0, 49.0, 225.0])
    )
    sizes = np.outer(weights, (2, 3, 4, 5))
    limit = round(float(generator.uniform(2, 5)), 1) * weights.sum()
    least = best(costs, sizes, limit * (1 + 1e-12))
    found = cheapest(costs, sizes, limit, most=most)
    assert found.bound <= least * (1 + 1e-12)
    assert found.cost >= least * (1 - 1e-12)
    assert sizes[np.arange(rows), found.places].sum() <= limit * (1 + 1e-12)
    if found.bound == found.cost:
        assert found.cost == pytest.approx(least, rel=1e-11)


def test_what_was_looked_at_raises_the_bound() -> None:
    """A search that ends early hands back the best that it met, and no less of a bound than it has shown."""
    costs, sizes = rounded(60, (2, 3, 4, 8), seed=5)
    limit = 4.1 * sizes[:, 0].sum() / 2
    whole = cheapest(costs, sizes, limit)
    ends = [cheapest(costs, sizes, limit, most=most) for most in (1, 100, 1000, 3000, 10_000)]
    assert all(found.bound <= whole.cost <= found.cost for found in ends)
    assert [found.bound for found in ends] == sorted(found.bound for found in ends)
    assert len({found.bound for found in ends}) > 2
