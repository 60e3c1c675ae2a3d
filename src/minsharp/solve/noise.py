"""The program behind noise that grows with the weights: entries e in groups T that share one noise.

    minimise   f(z) = sum_T N_T(z) sum_{e in T} h_e exp(-2 (A z)_e)        over z, with h_e >= 0

where N_T is the sum, or the largest, of v_e exp(2 (A z)_e) over the group: the squared weights, rescaled. Sums are
minimised in `sums`, the largest in `largest`. Both are convex in z, and their dual has weights p, q >= 0 that add up to
one, with A^T p = A^T q and the same total in every group: then

    log f >= sum_e p_e log(h_e / p_e) + q_e log v_e  [ - q_e log(q_e / q_T) for sums ]

whatever z. A group without curvature, or without weights, has no part in f. The infimum may lie at infinity where an
entry has curvature and no weight: then what can be shrunk for ever, weights without curvature too, is left out, and the
answer says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

from .geometric import DENSE, Solution, towards_infinity, vanishing_terms
from .newton import Array, conjugate_gradients

RIDGE = 1e-14  # relative, for directions that change nothing
REFINEMENTS = 5


@dataclass(frozen=True, eq=False)
class Program:
    """log h and log v (entries; -inf for zero), the matrix A (entries, unknowns), the group of every entry."""

    log_h: Array
    log_v: Array
    A: Any
    group: Array

    @cached_property
    def member(self) -> Any:
        """(entries, groups), one where an entry is in a group."""
        count = len(self.group)
        ones, rows = np.ones(count), np.arange(count)
        return scipy.sparse.csr_array((ones, (rows, self.group)), shape=(count, self.group.max(initial=-1) + 1))

    def totals(self, of: Array) -> Array:
        """Sums over each group: (entries) -> (groups)."""
        return np.asarray(self.member.T @ of)

    def top(self, of: Array) -> Array:
        """The largest of each group: (entries) -> (groups)."""
        found = np.full(self.member.shape[1], -np.inf)
        np.maximum.at(found, self.group, of)
        return found

    def alive(self) -> Array:
        """The entries of groups that have both curvature and weights."""
        both = np.isfinite(self.top(self.log_h)) & np.isfinite(self.top(self.log_v))
        return np.asarray(both[self.group])

    def only(self, kept: Array) -> "Program":
        """Some of the entries, their groups numbered anew."""
        _, group = np.unique(self.group[kept], return_inverse=True)
        return Program(self.log_h[kept], self.log_v[kept], self.A[kept], group)

    def solver(self, d: Array, w: Array) -> Callable[[Array], Array]:
        """y -> x with S x = y for S = 4 sum_e d_e (a_e - c_T)(a_e - c_T)^T, c_T = sum of w_e a_e over the group.

        The matrix is a small difference of large ones where few entries of a group count: what it is factored for is
        only near it, and steps with S itself, which is applied without that cancellation, bring the rest.
        """
        A, member = self.A, self.member
        L = member.T @ (scipy.sparse.diags_array(w) @ A)  # (groups, unknowns)
        plain = 4 * (A.power(2).T @ d) + 1e-300

        def product(x: Array) -> Array:
            t = A @ x
            felt = d * (t - self.totals(w * t)[self.group])
            return np.asarray(4 * (A.T @ felt - L.T @ self.totals(felt)))

        if A.shape[1] > DENSE:
            return lambda y: conjugate_gradients(lambda x: product(x) + RIDGE * plain * x, plain, y)
        R, D = member.T @ (scipy.sparse.diags_array(d) @ A), scipy.sparse.diags_array(self.totals(d))
        cross = (L.T @ (R - 0.5 * (D @ L))).toarray()
        near = _factored(4 * ((A.T @ (scipy.sparse.diags_array(d) @ A)).toarray() - cross - cross.T), plain)
        return lambda y: _refined(product, near, y)


def _factored(S: Array, plain: Array) -> Callable[[Array], Array]:
    """y -> x with S x = y, with as little ridge, relative to a plain diagonal, as lets the factorisation through."""
    diagonal, ridge = S.diagonal().copy(), RIDGE
    while True:
        S[np.diag_indices_from(S)] = diagonal + ridge * plain
        try:
            factor = scipy.linalg.cho_factor(S, check_finite=False)
        except scipy.linalg.LinAlgError:
            if ridge > 1:
                raise
            ridge *= 10
        else:
            return lambda y: np.asarray(scipy.linalg.cho_solve(factor, y, check_finite=False))


def _refined(product: Callable[[Array], Array], near: Callable[[Array], Array], y: Array) -> Array:
    """x with product(x) = y, from a solver that is near, in steps that go on for as long as the error falls."""
    x = near(y)
    error = y - product(x)
    for _ in range(REFINEMENTS):
        moved = x + near(error)
        left = y - product(moved)
        if not np.abs(left).max(initial=0.0) < 0.5 * np.abs(error).max(initial=0.0):
            break
        x, error = moved, left
    return x


Method = Callable[[Program], tuple[Array, float, float, int]]
"""From a program in which every group is alive to z, log f there, a lower bound on it, and the number of steps."""


def minimise_noise(program: Program, method: Method) -> Solution:
    """The minimum by a method, once what can be shrunk for ever is left out; terms are the entries' h."""
    program = Program(program.log_h, program.log_v, scipy.sparse.csr_array(program.A), program.group)
    count, unknowns = program.A.shape
    vanishing, far = np.zeros(count, dtype=bool), np.zeros(unknowns)
    alive = program.alive()
    if unknowns and bool((alive & np.isfinite(program.log_h) & ~np.isfinite(program.log_v)).any()):
        vanishing, far, program = _without_vanishing(program, alive)
        alive = program.alive()
    if not alive.any():
        return Solution(far, -np.inf, -np.inf, vanishing, 0)
    z, value, bound, steps = method(program.only(alive))
    return Solution(z + far, value, min(bound, value), vanishing, steps)


def _without_vanishing(program: Program, alive: Array) -> tuple[Array, Array, Program]:
    """The entries that can be scaled away, a step that goes part of the way, and the program without them.

    What goes is an entry's curvature as the noise of its group has it, or its weight, as a part of that noise.

    With a number s_T for each group, f is a sum of h_e exp(2 s_T - 2 (A z)_e), and v_e exp(2 (A z)_e - 2 s_T) may not
    grow: both are terms of a geometric program in z and s.
    """
    h, v = alive & np.isfinite(program.log_h), alive & np.isfinite(program.log_v)
    above = scipy.sparse.hstack([program.A[h], -program.member[h]])
    below = scipy.sparse.hstack([-program.A[v], program.member[v]])
    lost, direction = vanishing_terms(scipy.sparse.csr_array(scipy.sparse.vstack([above, below])))
    gone_h, gone_v = np.zeros(len(h), dtype=bool), np.zeros(len(v), dtype=bool)
    gone_h[np.flatnonzero(h)[lost[: h.sum()]]] = True
    gone_v[np.flatnonzero(v)[lost[h.sum() :]]] = True
    log_h, log_v = np.where(gone_h, -np.inf, program.log_h), np.where(gone_v, -np.inf, program.log_v)
    dz, ds = np.split(direction, [program.A.shape[1]])
    rates = program.A @ dz - ds[program.group]
    rates = np.concatenate([rates[gone_h], -rates[gone_v]])
    rest = Program(log_h, log_v, program.A, program.group)
    return gone_h | gone_v, towards_infinity(dz, program.A, rates), rest
