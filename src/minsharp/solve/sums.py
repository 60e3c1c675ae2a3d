"""Noise as large as the root mean square of its group: N_T is a sum, f a posynomial, and Newton's method does it."""

from functools import cached_property

import numpy as np

from .geometric import log_sum
from .newton import Array, Descent, descend, polish
from .noise import Program

STEPS = 200
PRECISION = 1e-13
FAR = 50.0  # how far off, as a logarithm, the minimum is at most, where its weights are wrong by rounding


def minimise_sums(program: Program) -> tuple[Array, float, float, int]:
    """z, log f, a lower bound, and the steps, for N_T = sum of v_e exp(2 (A z)_e) over the group."""
    found = _descent(program, STEPS, PRECISION)
    if not len(found.x):
        return found.x, found.place.value, found.place.value, 0
    place = _Place(program, polish(lambda z: _Place(program, z), found.x))
    return place.z, place.value, place.bound(), found.steps


def near_sums(program: Program) -> Array:
    """z not far from the minimum for sums: a start for others."""
    return _descent(program, 50, 1e-2).x


def _descent(program: Program, most: int, enough: float) -> "Descent[_Place]":
    start = np.zeros(program.A.shape[1])
    return descend(lambda z: _Place(program, z), start, most=most if len(start) else 0, enough=lambda _: enough)


class _Place:
    """log f at one z: x = log h + log N_T - 2 A z are the terms' logarithms, p their shares, q those of the sums."""

    def __init__(self, program: Program, z: Array):
        self.program, self.z = program, z
        t = 2 * (program.A @ z)
        y = program.log_v + t
        top = program.top(y)
        parts = np.exp(y - top[program.group])
        sums = program.totals(parts)
        self.log_noise = top + np.log(sums)  # (groups)
        x = program.log_h + self.log_noise[program.group] - t
        self.value = log_sum(x)
        self.p = np.exp(x - self.value)
        self.q = parts / sums[program.group]  # adds up to one in each group
        self.share = program.totals(self.p)  # of each group

    @cached_property
    def slope(self) -> Array:
        """2 A^T (P_T q - p)."""
        return 2 * (self.program.A.T @ (self.share[self.program.group] * self.q - self.p))

    def step(self) -> Array:
        """By the curvature of f itself, 4 sum (p + P_T q) (a - m_T)(a - m_T)^T, m_T the mean of a by q."""
        weights = self.share[self.program.group] * self.q
        return self.program.solver(self.p + weights, self.q)(-self.slope)

    def bound(self) -> float:
        """The dual at the shares, moved by one Newton step onto A^T p = A^T q."""
        program, group = self.program, self.program.group
        t = 2 * (program.A @ self.step())
        mean = program.totals(self.q * t)[group]
        p = np.maximum(self.p * (1 + mean - t), 0)
        total = program.totals(p)[group]
        q = np.maximum(total * self.q + self.share[group] * self.q * (t - mean), 0)
        some, others = p > 0, q > 0
        dual = p[some] @ (program.log_h[some] - np.log(p[some] / p.sum()))
        dual += q[others] @ (program.log_v[others] - np.log(q[others] / total[others]))
        rest = 2 * np.abs(program.A.T @ (q - p)) @ (np.abs(self.z) + FAR)
        return float(dual - rest) / float(p.sum()) - 1e-15
