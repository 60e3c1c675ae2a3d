"""The least trace over scales and matrices, against an optimiser that knows nothing of closed forms."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from minsharp.solve.frames import Terms, bounded_mean, geometric_mean, least_trace, minimise_with_frames


def gram(rng: np.random.Generator, h: int, rank: int) -> np.ndarray:
    g = rng.normal(size=(h, rank)) * np.exp(rng.normal(size=(h, 1)))
    return g @ g.T


def objective(log_c: Tensor, A: Tensor, frames: list[Terms], z: Tensor, matrices: list[Tensor]) -> Tensor:
    """The sum itself: every term by its definition."""
    total = (log_c - 2 * A @ z).exp().sum()
    for terms, B in zip(frames, matrices, strict=True):
        inverse = torch.linalg.inv(B)
        for M, row, contra in zip(terms.matrices, terms.rows, terms.inverse, strict=True):
            moved = B if contra else inverse.mT
            total = total + (-2 * torch.from_numpy(row) @ z).exp() * (moved @ torch.from_numpy(M) @ moved.mT).trace()
    return total


def descended(log_c: np.ndarray, A: np.ndarray, frames: list[Terms], seed: int) -> float:
    """Plain descent (L-BFGS) on numbers z and matrices B, from a random start."""
    torch.manual_seed(seed)
    c, a = torch.from_numpy(log_c), torch.from_numpy(A)
    z = (0.3 * torch.randn(A.shape[1], dtype=torch.float64)).requires_grad_()
    sizes = [terms.matrices.shape[1] for terms in frames]
    Bs = [(torch.eye(h) + 0.2 * torch.randn(h, h)).double().requires_grad_() for h in sizes]
    options: dict[str, Any] = {"max_iter": 300, "tolerance_grad": 1e-14, "tolerance_change": 1e-16, "history_size": 50}
    optimiser = torch.optim.LBFGS([z, *Bs], line_search_fn="strong_wolfe", **options)

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = objective(c, a, frames, z, Bs).log()
        value.backward()
        return value

    optimiser.step(closure)
    return float(objective(c, a, frames, z, Bs).detach())


def problem(seed: int, h: int = 4, rank: int = 9) -> tuple[np.ndarray, np.ndarray, list[Terms]]:
    """Two chained scales, three plain terms, two frames of which one has two scales on a side."""
    rng = np.random.default_rng(seed)
    A = np.array([[1.0, 0.0], [-1.0, 1.0], [0.0, -1.0]])
    rows = [np.array([[1.0, 0.0], [0.0, 0.0], [-1.0, 0.5]]), np.array([[0.0, 1.0], [0.0, -1.0]])]
    frames = [
        Terms(np.stack([gram(rng, h, rank) for _ in rows[0]]), rows[0], np.array([False, False, True])),
        Terms(np.stack([gram(rng, h, rank) for _ in rows[1]]), rows[1], np.array([False, True])),
    ]
    return rng.normal(size=3), A, frames


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_minimum_that_descent_finds_and_never_above(seed: int) -> None:
    log_c, A, frames = problem(seed)
    found = minimise_with_frames(log_c, A, frames, 1e12)
    least = min(descended(log_c, A, frames, start) for start in range(2))
    value = float(np.exp(found.log_value))
    assert value <= least * (1 + 1e-12)
    assert value == pytest.approx(least, rel=1e-7)
    assert 0 <= found.log_value - found.log_bound < 1e-10
    Bs = [torch.linalg.cholesky(torch.from_numpy(P)).mT for P in found.P]
    there = objective(torch.from_numpy(log_c), torch.from_numpy(A), frames, torch.from_numpy(found.z), Bs)
    assert float(there) == pytest.approx(value, rel=1e-12)
    assert not found.vanishing.any()
    assert not any(found.bounded)


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_lies_below_every_network(seed: int) -> None:
    log_c, A, frames = problem(seed)
    bound = np.exp(minimise_with_frames(log_c, A, frames, 1e12).log_bound)
    for k in range(50):
        torch.manual_seed(k)
        z, Bs = torch.randn(2, dtype=torch.float64), [torch.randn(4, 4, dtype=torch.float64) for _ in frames]
        assert float(objective(torch.from_numpy(log_c), torch.from_numpy(A), frames, z, Bs)) >= bound


def test_a_wrong_place_gives_a_low_bound() -> None:
    """The bound is honest: away from the minimum it does not come near the value."""
    from minsharp.solve.frames import _Place, _Problem

    log_c, A, frames = problem(0)
    best = minimise_with_frames(log_c, A, frames, 1e12)
    away = _Place(_Problem(log_c, A, frames), best.z + 0.01)
    assert away.bound < best.log_value < away.value


@pytest.mark.parametrize(("rank_out", "rank_in"), [(2, 9), (9, 2), (2, 2), (1, 3), (0, 9), (9, 0), (0, 0)])
def test_singular_matrices_have_an_infimum_and_finite_matrices_near_it(rank_out: int, rank_in: int) -> None:
    rng = np.random.default_rng(5)
    S_out, S_in = gram(rng, 4, rank_out), gram(rng, 4, rank_in)
    condition = 1e12
    P, attained = bounded_mean(S_out, S_in, condition)
    assert np.linalg.cond(P) <= condition * 1.01
    there = np.trace(np.linalg.solve(P, S_out)) + np.trace(P @ S_in)
    least, scale = least_trace(S_out, S_in), np.trace(S_out) + np.trace(S_in)
    assert least * (1 - 1e-9) <= there <= least + 1e-4 * scale
    assert attained == ((rank_out, rank_in) in [(0, 0), (2, 2)])  # the ranges of the latter fill the space together
    terms = Terms(np.stack([S_out, S_in]), np.zeros((2, 0)), np.array([False, True]))
    found = minimise_with_frames(np.zeros(0), np.zeros((0, 0)), [terms], condition)
    assert np.exp(found.log_value) == pytest.approx(least, rel=1e-6, abs=1e-12 * max(scale, 1e-300))
    assert found.log_bound <= found.log_value


def test_ranges_that_fill_the_space_only_together_leave_no_matrix_singular() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        S_out, S_in = gram(rng, 6, 3), gram(rng, 6, 3)
        P, attained = bounded_mean(S_out, S_in, 1e12)
        assert np.linalg.eigvalsh(P)[0] > 0, seed
        assert np.trace(np.linalg.solve(P, S_out)) + np.trace(P @ S_in) < least_trace(S_out, S_in) + 1e-4, seed
        assert attained, seed


def test_the_infimum_of_singular_matrices_is_approached_by_descent() -> None:
    rng = np.random.default_rng(6)
    terms = Terms(np.stack([gram(rng, 3, 1), gram(rng, 3, 9)]), np.zeros((2, 0)), np.array([False, True]))
    found = minimise_with_frames(np.zeros(0), np.zeros((0, 0)), [terms], 1e12)
    least = min(descended(np.zeros(0), np.zeros((0, 0)), [terms], start) for start in range(2))
    assert np.exp(found.log_value) <= least * (1 + 1e-9)
    assert least == pytest.approx(np.exp(found.log_value), rel=1e-3)
    assert found.bounded == [True]


def test_one_number_is_the_paper_s_theorem() -> None:
    """Two weights in a row: 2 sqrt(a b)."""
    terms = Terms(np.array([[[3.0]], [[5.0]]]), np.zeros((2, 0)), np.array([False, True]))
    found = minimise_with_frames(np.zeros(0), np.zeros((0, 0)), [terms], 1e12)
    assert np.exp(found.log_value) == pytest.approx(2 * 15**0.5, rel=1e-14)


def test_a_term_that_vanishes_is_left_out() -> None:
    """One plain term that nothing holds against: it is scaled away, and the frame keeps its own minimum."""
    rng = np.random.default_rng(7)
    terms = Terms(np.stack([gram(rng, 3, 9), gram(rng, 3, 9)]), np.zeros((2, 1)), np.array([False, True]))
    found = minimise_with_frames(np.array([1.0]), np.array([[1.0]]), [terms], 1e12)
    assert found.vanishing.tolist() == [True]
    assert np.exp(found.log_value) == pytest.approx(least_trace(*terms.matrices), rel=1e-12)
    assert 0 < found.z[0] < np.log(1e6) + 1e-9


def test_the_closed_form_balances() -> None:
    rng = np.random.default_rng(8)
    S_out, S_in = gram(rng, 5, 9), gram(rng, 5, 9)
    P, least = geometric_mean(S_out, S_in)
    assert np.allclose(P @ S_in @ P, S_out, rtol=1e-9, atol=1e-9 * np.abs(S_out).max())
    assert least == pytest.approx(least_trace(S_out, S_in), rel=1e-12)


def test_frames_with_one_matrix_on_each_side_are_exponentials_together() -> None:
    rng = np.random.default_rng(7)
    A, log_c = np.concatenate([np.eye(2), -np.eye(2)]), rng.normal(size=4)
    rows = rng.normal(size=(2, 2))
    frames = [Terms(np.stack([gram(rng, h, 9), gram(rng, h, 9)]), rows, np.array([False, True])) for h in (1, 1, 1, 3)]
    found = minimise_with_frames(log_c, A, frames, 1e12)
    least = min(descended(log_c, A, frames, start) for start in range(2))
    assert np.exp(found.log_value) == pytest.approx(least, rel=1e-9)
    assert np.exp(found.log_value) <= least * (1 + 1e-12)
    assert 0 <= found.log_value - found.log_bound < 1e-10


def test_matrices_that_rounding_left_with_negative_eigenvalues_have_a_minimum() -> None:
    rng = np.random.default_rng(8)
    scales = np.exp(-np.linspace(0, 12, 6))[:, None]
    half = [(scales * rng.normal(size=(6, 40))).astype(np.float32) for _ in range(4)]
    M = np.stack([(g @ g.T).astype(np.float64) for g in half])
    assert min(np.linalg.eigvalsh(m)[0] / np.trace(m) for m in M) < 1e-9
    terms = Terms(M, rng.normal(size=(4, 2)), np.array([False, False, True, True]))
    found = minimise_with_frames(rng.normal(size=3), rng.normal(size=(3, 2)), [terms], 1e12)
    assert np.isfinite(found.log_value)
    assert found.log_bound <= found.log_value
    assert all(np.isfinite(P).all() for P in found.P)
