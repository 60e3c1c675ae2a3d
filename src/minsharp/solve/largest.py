"""Noise as large as the largest weight of its group: N_T is a maximum, and an interior point method finds the least f.

With s_T >= log v_e + 2 (A z)_e for the maximum, and u = s - 2 A z, the noise as each entry feels it,

    minimise   sum_e h_e exp(u_e)    over z and s, with u_e >= log v_e

Primal and dual steps by Mehrotra's rule: r = u - log v is the room that is left, l the multipliers, and B^T (p - l) = 0
with B x = u, p the terms' shares of f, says that both are right. Multipliers are kept in units of f. Each group goes
towards its own multiple of r l, for the groups' shares of f differ by many orders of magnitude.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np
import scipy.sparse

from .geometric import log_sum
from .newton import Array
from .noise import Program
from .sums import FAR, near_sums

STEPS = 150
PRECISION = 1e-10
PATIENCE = 8  # steps without a better bound or value, after which rounding rules
SHORT = 0.99  # of the way to where a room or a multiplier ends
WIDE = 20.0  # room that is not made any wider: where nothing holds a scale, it would go to infinity
BALANCE = 0.3  # of how far B^T (p - l) is from zero: what r l add up to at least, or there is no way left to mend it
GROWTH = 3.0  # how many times larger f may become in one step

Pair = tuple[Array, Array]


def minimise_largest(program: Program) -> tuple[Array, float, float, int]:
    """z, log f, a lower bound, and the steps, for N_T = the largest v_e exp(2 (A z)_e) of the group."""
    point = _start(program)
    best, value, bound, idle = point.z, point.value, -np.inf, 0
    if not len(best):
        return best, value, value, 0
    for steps in range(STEPS):
        if not point.inside:
            return best, value, bound, steps
        found = point.bound()
        idle = 0 if found > bound or point.value < value else idle + 1
        bound = max(bound, found)
        if point.value < value:
            best, value = point.z, point.value
        if value - bound <= PRECISION or idle > PATIENCE:
            return best, value, bound, steps
        point = point.next()
    return best, value, bound, STEPS


def _start(program: Program) -> "_Point":
    """Near the minimum for sums, with room for every entry; the multipliers share out what each group has of f."""
    z = near_sums(program)
    top = program.top(program.log_v + 2 * (program.A @ z))
    point = _Point(program, z, top + 1.0, np.zeros(len(program.group)))
    inverse = 1 / point.room
    share = program.totals(point.p) / program.totals(inverse)
    return _Point(program, z, point.s, share[program.group] * inverse)


class _Point:
    """Unknowns z and s, and the multipliers l of all entries: zero where there is no weight, and the room infinite."""

    def __init__(self, program: Program, z: Array, s: Array, multipliers: Array):
        self.program, self.z, self.s, self.l = program, z, s, multipliers
        u = self._felt(z, s)
        x = program.log_h + u
        self.log_sum = log_sum(x)
        self.p = np.exp(x - self.log_sum)
        self.room = u - program.log_v

    def _felt(self, z: Array, s: Array) -> Array:
        """u = B (z, s) = s_T - 2 A z: (entries)."""
        return np.asarray(s[self.program.group] - 2 * (self.program.A @ z))

    def _back(self, weights: Array) -> Pair:
        """B^T, (entries) -> (unknowns), (groups)."""
        return -2 * (self.program.A.T @ weights), self.program.totals(weights)

    @property
    def inside(self) -> bool:
        """Whether there is room left for every entry; at the end rounding may take it."""
        return bool((self.room > 0).all() and np.isfinite(self.log_sum))

    @cached_property
    def value(self) -> float:
        """log f at z, with s as small as it may be."""
        s = self.program.top(self.program.log_v + 2 * (self.program.A @ self.z))
        return log_sum(self.program.log_h + self._felt(self.z, s))

    @cached_property
    def _step(self) -> Callable[[Array], Pair]:
        """For a slope B^T weights Newton's step in z and s, by d = p + l / r; s is eliminated, group by group."""
        program, d = self.program, self.p + self.l / self.room
        totals = program.totals(d)
        C = program.member.T @ (scipy.sparse.diags_array(d) @ program.A)  # (groups, unknowns)
        solve = program.solver(d, d / totals[program.group])

        def step(weights: Array) -> Pair:
            slope_z, slope_s = self._back(weights)
            dz = solve(-(slope_z + 2 * (C.T @ (slope_s / totals))))
            return dz, (2 * (C @ dz) - slope_s) / totals

        return step

    def bound(self) -> float:
        """The dual at p and l, moved by one Newton step onto B^T (p - l) = 0."""
        du = self._felt(*self._step(self.p - self.l))
        p = np.maximum(self.p * (1 + du), 0)
        q = np.maximum(self.l * (1 - du / self.room), 0)
        some, others = p > 0, q > 0
        dual = p[some] @ (self.program.log_h[some] - np.log(p[some] / p.sum()))
        dual += q[others] @ self.program.log_v[others]
        over_z, over_s = self._back(p - q)
        rest = np.abs(over_z) @ (np.abs(self.z) + FAR) + np.abs(over_s) @ (np.abs(self.s) + FAR)
        return float(dual - rest) / float(p.sum()) - 1e-15

    def next(self) -> "_Point":
        """A step straight on tells how far the products r l can shrink; the one that is taken aims there, and bends."""
        present = np.isfinite(self.room)
        room = np.where(present, self.room, 0.0)
        du, dl = self._straight()
        left = (self.l + _most(self.l, dl) * dl) @ (room + np.where(present, _most(self.room, du) * du, 0.0))
        gaps = self.l * room
        unbalanced = sum(float(np.abs(part).sum()) for part in self._back(self.p - self.l))
        shrink = max((float(left) / float(gaps.sum())) ** 3, min(BALANCE * unbalanced / float(gaps.sum()), 0.9))
        means = self.program.totals(gaps) / self.program.totals(present.astype(float))
        aim = (shrink * means[self.program.group] - du * dl) / self.room  # what l would be, by r l alone
        aim = np.where(self.room < WIDE, aim, 0.0)
        dz, ds = self._step(self.p - aim)
        du = self._felt(dz, ds)
        dl = aim - self.l * (1 + du / self.room)
        size = min(_most(self.room, du), _most(self.l, dl))
        while float(self.p @ np.exp(np.minimum(size * du, 700.0))) > GROWTH:
            size /= 2
        there = _Point(self.program, self.z + size * dz, self.s + size * ds, self.l + size * dl)
        there.l = there.l * np.exp(self.log_sum - there.log_sum)  # in units of f
        return there

    def _straight(self) -> Pair:
        """How u and l change in a step that aims at r l = 0."""
        du = self._felt(*self._step(self.p))
        return du, -self.l * (1 + du / self.room)


def _most(of: Array, step: Array) -> float:
    """How much of a step may be taken until the first of some positive numbers would be zero."""
    down = step < 0
    return min(1.0, SHORT * float((-of[down] / step[down]).min(initial=np.inf)))
