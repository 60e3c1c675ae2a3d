"""The geometric program where every factor has to be a power of two.

    minimise   f(z) = sum_e c_e exp(-2 (A z)_e)        over z with (A z)_e / log 2 a whole number for every e

Such z form a lattice, z = log 2 B k with k whole. Where every term compares two scales, or one with the fixed one, B is
the identity; coefficients such as 1/2, or sums of scales, make it finer or coarser (`lattice`).

The search starts around the minimum k* over all numbers: rounded to the nearest, and k* + h rounded down for many h,
which keeps numbers together that are close (f is made of their differences). From the best of these it goes down by
steps of one, of single numbers and (where there are few) of pairs, as long as any helps. k = 0 is a candidate: the
answer is never worse.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from .geometric import log_sum
from .lattice import lattice
from .newton import Array

LOG_2 = float(np.log(2))
PAIRS = 1 << 23  # up to this many terms times pairs of numbers, try pairs too
STARTS = 16  # roundings to compare
DESCENTS = 4  # of the best of them to go down from
REACH = 16  # steps that a number may go from its start, where going on for ever would help
ENOUGH = 1e-13  # what a step has to gain, relative


def minimise_powers(log_c: Array, A: Any, near: Array) -> Array:
    """The best z found whose factors are powers of two, around a minimum without that condition."""
    A = scipy.sparse.csr_array(A)
    B = lattice(A)
    M = scipy.sparse.csc_array(A @ B)
    whole = np.round(M.data)
    if np.abs(M.data - whole).max(initial=0.0) > 1e-6:
        raise RuntimeError("the lattice of powers of two: a factor would not be one")
    M.data = whole
    M.eliminate_zeros()
    present = np.isfinite(log_c)
    if not A.shape[1] or not present.any():
        return np.zeros(A.shape[1])
    search = _Search(log_c[present], M[present])
    k = search.best(np.asarray(scipy.sparse.linalg.spsolve(B, near / LOG_2)).reshape(-1))
    return LOG_2 * (B @ k)


class _Search:
    """Going down over whole numbers k: f = sum exp(log_c) 4^(-M k)."""

    def __init__(self, log_c: Array, M: Any):
        self.log_c, self.M = log_c, scipy.sparse.csc_array(M)
        self.count = self.M.shape[1]
        self.dense = self.M.toarray() if self.M.shape[0] * self.count**2 <= PAIRS else None

    def log_value(self, k: Array) -> float:
        """log f."""
        return log_sum(self.log_c - 2 * LOG_2 * (self.M @ k))

    def best(self, near: Array) -> Array:
        """The best that descents from a few roundings find; zero if none is better."""
        starts = sorted(_roundings(near), key=self.log_value)[:DESCENTS]
        found = [self.descend(k) for k in starts]
        zero = np.zeros(self.count)
        best = min(found, key=self.log_value)
        return best if self.log_value(best) < self.log_value(zero) - ENOUGH else zero

    def descend(self, k: Array) -> Array:
        """Steps of one, as long as any helps."""
        x = self.log_c - 2 * LOG_2 * (self.M @ k)
        self.k, self.start = k.copy(), k
        self.w = np.exp(x - x.max())
        while self._singles() or self._pairs():
            pass
        return self.k

    def _singles(self) -> bool:
        """Let each number that gains by a step take as many as help; the others' gains are known from the start."""
        moved = False
        enough = -ENOUGH * float(self.w.sum())
        for sign in (1, -1):
            gains = self._changes(sign).T @ self.w
            for j in np.flatnonzero(gains < enough)[np.argsort(gains[gains < enough])]:
                moved |= self._run(int(j), sign, enough)
        return moved

    def _changes(self, sign: int) -> Any:
        """By how much of itself each term changes with a step of each number."""
        changes = np.exp2(-2 * sign * self.M.data) - 1
        return scipy.sparse.csc_array((changes, self.M.indices, self.M.indptr), self.M.shape)

    def _run(self, j: int, sign: int, enough: float) -> bool:
        """Steps of one number while they help; touches its own terms alone."""
        own = slice(self.M.indptr[j], self.M.indptr[j + 1])
        terms, factor = self.M.indices[own], np.exp2(-2 * sign * self.M.data[own])
        w, steps = self.w[terms], 0
        while float(w @ (factor - 1)) < enough and abs(self.k[j] + sign - self.start[j]) <= REACH:
            w, steps = w * factor, steps + 1
            self.k[j] += sign
        self.w[terms] = w
        return steps > 0

    def _far(self, step: int) -> Array:
        """The numbers that may not take a step."""
        return np.abs(self.k + step - self.start) > REACH

    def _pairs(self) -> bool:
        """The step of two numbers at once that gains the most, if one does."""
        if self.dense is None:
            return False
        best, step = -ENOUGH * float(self.w.sum()), None
        for i in range(self.count - 1):
            for sign in (1, -1):
                moves = self.dense[:, i, None] + sign * self.dense[:, i + 1 :]  # (terms, partners)
                for direction in (1, -1):
                    far = self._far(direction)[i] | self._far(direction * sign)[i + 1 :]
                    gains = np.where(far, np.inf, self.w @ (np.exp2(-2 * direction * moves) - 1))
                    j = int(gains.argmin())
                    if gains[j] < best:
                        best, step = float(gains[j]), (i, i + 1 + j, direction, direction * sign)
        if step is None:
            return False
        i, j, a, b = step
        self.k[i] += a
        self.k[j] += b
        self.w *= np.exp2(-2 * (a * self.dense[:, i] + b * self.dense[:, j]))
        return True


def _roundings(near: Array) -> Iterator[Array]:
    """The nearest whole numbers, and those below near + h for h between the fractions that occur."""
    yield np.round(near)
    edges = np.unique(np.append(np.mod(-near, 1.0), (0.0, 1.0)))
    if len(edges) > STARTS + 1:
        edges = np.linspace(0.0, 1.0, STARTS + 1)
    for low, high in pairwise(edges):
        yield np.floor(near + (low + high) / 2)
