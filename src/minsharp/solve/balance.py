"""The two scaling problems behind normalized sharpness, for matrices H, W >= 0 of shape (groups, rows, columns).

    pairs     min over u, v   sum_ij  H_ij exp(v_i + u_j) + W_ij exp(-v_i - u_j)
    products  min over u      sum_i  (sum_j H_ij exp(u_j)) (sum_k W_ik exp(-u_k))

Both are sums of terms c_e exp(+-(x_head - x_tail)): convex, and at the minimum what flows into each node flows out of
it. Newton's method with conjugate gradients, so that no matrix of unknowns by unknowns is ever formed.

The terms' shares of the value, corrected by the last Newton step y, are a feasible point of the dual: with the slope g,
the curvature L and F the value, log F* >= log F + log T - (g.y + y.Ly) / (F T), T = 1 + g.y / F, wherever no share
becomes negative; it follows from (1 + e) log(1 + e) <= e + e^2.

A term that can be made to vanish while no other grows is left out beforehand: those whose two ends are not strongly
connected in the graph with an edge from row to column for each H_ij > 0, and back for each W_ij > 0.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .cycles import strong_parts
from .newton import Array, conjugate_gradients, descend

SWEEPS = 10
NEWTON_STEPS = 200
PRECISION = 1e-15
RIDGE = 1e-10  # relative, against drift along shifts that change nothing


@dataclass(frozen=True)
class Balance:
    """The minimum, a lower bound on it, and whether it is attained or only an infimum."""

    value: float
    lower_bound: float
    attained: bool


def minimise_pairs(H: Array, W: Array) -> Balance:
    """min <exp(v), H exp(u)> + <exp(-v), W exp(-u)>."""
    return _minimise(_Pairs, H, W)


def minimise_products(H: Array, W: Array) -> Balance:
    """min sqrt( sum_i (H exp(u))_i (W exp(-u))_i )."""
    result = _minimise(_Products, H, W)
    return Balance(result.value**0.5, result.lower_bound**0.5, result.attained)


def _minimise(problem: type["_Problem"], H: Array, W: Array) -> Balance:
    kept = _strongly_connected(H > 0, W > 0)
    attained = not (((H > 0) | (W > 0)) & ~kept).any()
    H, W = np.where(kept, H, 0.0), np.where(kept, W, 0.0)
    if not H.any():
        return Balance(0.0, 0.0, attained)
    tops = H.max(), W.max()  # scaling H or W scales the value: keep away from the ends of the range
    value, bound = problem(H / tops[0], W / tops[1]).solve()
    unit = problem.unit(*tops)
    return Balance(unit * value, unit * bound, attained)


def _strongly_connected(H: Array, W: Array) -> Array:
    """Where row and column belong together: both H and W lead from one to the other and back."""
    groups, rows, columns = H.shape
    if H.all() and W.all():
        return H
    row = np.arange(groups * rows).reshape(groups, rows, 1) + np.zeros_like(H, dtype=int)
    column = groups * rows + np.arange(groups * columns).reshape(groups, 1, columns) + np.zeros_like(H, dtype=int)
    tails = np.concatenate([row[H], column[W]])
    heads = np.concatenate([column[H], row[W]])
    nodes = groups * (rows + columns)
    part = strong_parts(tails, heads, nodes)
    return part[row] == part[column]


@dataclass(frozen=True)
class _Place:
    """The sum at one x: its value, its slope, its curvature as a map, and the curvature's diagonal."""

    value: float
    slope: Array  # (groups, unknowns), as the diagonal and what the curvature takes and gives
    curvature: Callable[[Array], Array]
    diagonal: Array

    def step(self) -> Array:
        """Newton's, by conjugate gradients: no matrix of unknowns by unknowns is formed."""
        ridge = RIDGE * self.diagonal
        return conjugate_gradients(lambda y: self.curvature(y) + ridge * y, self.diagonal + ridge, -self.slope)


class _Problem(ABC):
    """A sum of exponentials of differences between the numbers x, one row of them per group."""

    H: Array
    W: Array

    def __init__(self, H: Array, W: Array):
        self.H, self.W = H, W
        self.u, self.v = self._sweeps()

    def _sweeps(self) -> tuple[Array, Array]:
        """A start: each row, then each column, at its best for `pairs` given the others."""
        u = np.zeros((len(self.H), self.H.shape[2]))
        v = np.zeros(self.H.shape[:2])
        for _ in range(SWEEPS):
            v = _half_log_ratio(_rows(self.W, np.exp(-u)), _rows(self.H, np.exp(u)))
            u = _half_log_ratio(_columns(self.W, np.exp(-v)), _columns(self.H, np.exp(v)))
        return u, v

    @staticmethod
    @abstractmethod
    def unit(top_h: float, top_w: float) -> float:
        """How the value scales with H and W."""

    @abstractmethod
    def start(self) -> Array:
        """The numbers x to begin with."""

    @abstractmethod
    def at(self, x: Array) -> _Place:
        """What is known at x."""

    @abstractmethod
    def reach(self, y: Array) -> float:
        """The largest relative change of a term along a step y, to first order."""

    def solve(self) -> tuple[float, float]:
        """The minimum and a lower bound on it."""
        found = descend(self.at, self.start(), most=NEWTON_STEPS, enough=lambda value: PRECISION * value)
        return found.place.value, self._bound(found.x, found.place)

    def _bound(self, x: Array, place: _Place) -> float:
        y = place.step()
        bent = place.curvature(y)
        first, second = float((place.slope * y).sum()) / place.value, float((y * bent).sum()) / place.value
        total = 1 + first
        if self.reach(y) >= 1 or total <= 0:
            return 0.0
        unbalanced = float(np.abs((place.slope + bent) * x).sum()) / (place.value * total)
        return place.value * min(1.0, total * float(np.exp(-(first + second) / total - unbalanced)))


class _Pairs(_Problem):
    """x = (v, u) side by side, (groups, rows + columns)."""

    @staticmethod
    def unit(top_h: float, top_w: float) -> float:
        """A factor of H or W is shared by both sums at the minimum: its root."""
        return float(np.sqrt(top_h) * np.sqrt(top_w))

    def start(self) -> Array:
        """What the sweeps found."""
        return np.concatenate([self.v, self.u], axis=1)

    def at(self, x: Array) -> _Place:
        """The terms themselves are formed, once per point."""
        rows = self.H.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):  # too long a step is taken back
            factor = np.exp(x[:, :rows])[:, :, None] * np.exp(x[:, rows:])[:, None, :]
            up, down = self.H * factor, np.divide(self.W, factor, out=np.zeros_like(factor), where=self.W > 0)
        both = up + down
        diagonal = np.concatenate([both.sum(2), both.sum(1)], axis=1)
        difference = up - down
        slope = np.concatenate([difference.sum(2), difference.sum(1)], axis=1)

        def curvature(y: Array) -> Array:
            a, b = y[:, :rows], y[:, rows:]
            return diagonal * y + np.concatenate([_rows(both, b), _columns(both, a)], axis=1)

        return _Place(float(both.sum()), slope, curvature, diagonal)

    def reach(self, y: Array) -> float:
        """|y_i + y_j| is at most the sum of the largest; shifting one side against the other changes nothing."""
        rows = self.H.shape[1]
        v, u = y[:, :rows], y[:, rows:]
        shift = (u.max(1) + u.min(1) - v.max(1) - v.min(1))[:, None] / 4
        return float((np.abs(v + shift).max(1) + np.abs(u - shift).max(1)).max())


class _Products(_Problem):
    """x = u, (groups, columns); the terms H_ij W_ik exp(u_j - u_k) are never formed."""

    @staticmethod
    def unit(top_h: float, top_w: float) -> float:
        """The product is linear in H and in W."""
        return float(top_h) * float(top_w)

    def start(self) -> Array:
        """What is best for `pairs`."""
        return self.u

    def at(self, x: Array) -> _Place:
        """Through the row sums a = H exp(u) and b = W exp(-u)."""
        with np.errstate(over="ignore", invalid="ignore"):  # too long a step is taken back
            P, Q = self.H * np.exp(x)[:, None, :], self.W * np.exp(-x)[:, None, :]
        a, b = P.sum(2), Q.sum(2)
        up, down = _columns(P, b), _columns(Q, a)
        itself = 2 * (P * Q).sum(1)

        def curvature(y: Array) -> Array:
            return (up + down) * y - _columns(P, _rows(Q, y)) - _columns(Q, _rows(P, y))

        return _Place(float((a * b).sum()), up - down, curvature, up + down - itself)

    def reach(self, y: Array) -> float:
        """The largest difference."""
        return float(np.ptp(y, axis=1).max())


def _rows(matrix: Array, columns: Array) -> Array:
    """(groups, rows, columns) times (groups, columns)."""
    return np.einsum("gij,gj->gi", matrix, columns, optimize=True)


def _columns(matrix: Array, rows: Array) -> Array:
    """(groups, rows, columns), transposed, times (groups, rows)."""
    return np.einsum("gij,gi->gj", matrix, rows, optimize=True)


def _half_log_ratio(above: Array, below: Array) -> Array:
    """Half of log(above / below), zero for a node that has no term."""
    present = (above > 0) & (below > 0)
    return np.log(np.where(present, above, 1.0) / np.where(present, below, 1.0)) / 2
