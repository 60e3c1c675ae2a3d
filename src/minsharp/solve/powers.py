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
from fractions import Fraction
from itertools import pairwise
from math import gcd, lcm
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg

from .geometric import Array, log_sum

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


# The lattice


def lattice(A: Any) -> Any:
    """B such that A z is whole if and only if z = B k + (what A does not see) with k whole.

    A term with one coefficient of ±1 makes that number whole; with two, it makes one number a whole number away from
    plus or minus the other. Along a tree of such terms all numbers follow from the tree's root, up to whole numbers.
    What is left are conditions on the roots, and on numbers with fractions as coefficients: few, and solved exactly.
    """
    A = scipy.sparse.csr_array(A)
    A.eliminate_zeros()
    size = A.shape[1]
    counts = np.diff(A.indptr)
    if counts.max(initial=0) <= 2 and np.isin(A.data, (1.0, -1.0)).all():
        sums = np.abs(A.sum(axis=1))[counts == 2]
        if not sums.any():
            return scipy.sparse.eye_array(size, format="csc")
    S, roots = _forest(A, counts)
    rest = scipy.sparse.csr_array(A @ S)
    rest.data = np.where(roots[rest.indices], rest.data, rest.data - np.round(rest.data))
    rest.data[np.abs(rest.data) < 1e-9] = 0.0
    rest.eliminate_zeros()
    return scipy.sparse.csc_array(S @ _dual(rest, roots))


def _forest(A: Any, counts: Array) -> tuple[Any, Array]:
    """S with z = S y, where y_i is a whole number for all i but the roots, and which are roots."""
    size = A.shape[1]
    ones = np.bincount(np.repeat(np.arange(len(counts)), counts), np.abs(A.data) == 1.0, len(counts))
    plain = np.flatnonzero((counts <= 2) & (counts > 0) & (ones == counts))
    single, double = plain[counts[plain] == 1], plain[counts[plain] == 2]
    first, second = A.indptr[double], A.indptr[double] + 1
    tails = np.append(A.indices[first], A.indices[A.indptr[single]])
    heads = np.append(A.indices[second], np.full(len(single), size))
    signs = np.append(-A.data[first] * A.data[second], np.ones(len(single)))
    pairs = np.unique(np.sort(np.stack([tails, heads]), axis=0), axis=1, return_index=True)[1]
    tails, heads, signs = tails[pairs], heads[pairs], signs[pairs]
    edges = scipy.sparse.coo_array((np.arange(1, len(signs) + 1), (tails, heads)), shape=(size + 1, size + 1)).tocsr()
    edges = edges + edges.T
    root, sign = np.arange(size + 1), np.ones(size + 1)
    seen = np.zeros(size + 1, dtype=bool)
    for start in (size, *range(size)):
        if seen[start]:
            continue
        order, before = scipy.sparse.csgraph.breadth_first_order(edges, start, directed=False)
        seen[order] = True
        for node in order[1:]:
            root[node] = start
            sign[node] = sign[before[node]] * signs[edges[before[node], node] - 1]
    roots = (root[:size] == np.arange(size)) & (root[:size] != size)
    below = np.flatnonzero((root[:size] != size) & ~roots)
    S = scipy.sparse.eye_array(size, format="coo") + scipy.sparse.coo_array(
        (sign[below], (below, root[below])), shape=(size, size)
    )
    return S, roots


def _dual(rows: Any, roots: Array) -> Any:
    """The numbers y for which all rows, and all y_i but the roots, are whole: y = B k with k whole."""
    size = len(roots)
    columns = np.union1d(np.unique(rows.indices), np.flatnonzero(roots))
    place = {int(c): i for i, c in enumerate(columns)}
    found = {
        tuple((place[int(c)], Fraction(float(v)).limit_denominator(1 << 12)) for c, v in zip(*row, strict=True))
        for row in _rows_of(rows)
    }
    conditions = [dict(row) for row in found if row]
    conditions += [{place[int(c)]: Fraction(1)} for c in columns if not roots[c]]
    inverse = _inverse(_triangular(conditions), len(columns))
    entries = [(columns[i], columns[j], float(v)) for i, row in inverse.items() for j, v in row.items()]
    others = np.setdiff1d(np.arange(size), columns)
    entries += [(i, i, 1.0) for i in others]
    i, j, v = (np.array(part) for part in zip(*entries, strict=True))
    return scipy.sparse.coo_array((v, (i, j)), shape=(size, size)).tocsr()


def _rows_of(rows: Any) -> Iterator[tuple[Array, Array]]:
    """Columns and values of the different rows: those that differ along a random direction."""
    rows.sort_indices()
    along = rows @ np.random.default_rng(0).standard_normal(rows.shape[1])
    for r in np.unique(along, return_index=True)[1]:
        own = slice(rows.indptr[r], rows.indptr[r + 1])
        yield rows.indices[own], rows.data[own]


Row = dict[int, Fraction]


def _triangular(rows: list[Row]) -> dict[int, Row]:
    """A basis of all whole combinations of some rows, each with a first column of its own (Hermite's normal form)."""
    basis: dict[int, Row] = {}
    for given in rows:
        row = given
        while row:
            first = min(row)
            if first not in basis:
                basis[first] = row
                break
            other = basis[first]
            a, b = row[first], other[first]
            whole = lcm(a.denominator, b.denominator)
            unit = Fraction(gcd(int(a * whole), int(b * whole)), whole)
            m, n = int(a / unit), int(b / unit)
            s, t = _bezout(m, n)
            basis[first] = _combined(row, s, other, t)
            row = _combined(row, n, other, -m)
    return basis


def _bezout(a: int, b: int) -> tuple[int, int]:
    """s, t with s a + t b = 1, for a and b without a common divisor."""
    if not b:
        return (1 if a > 0 else -1), 0
    s, t = _bezout(b, a % b)
    return t, s - (a // b) * t


def _combined(a: Row, s: Fraction | int, b: Row, t: Fraction | int) -> Row:
    sums = {c: s * a.get(c, Fraction(0)) + t * b.get(c, Fraction(0)) for c in a | b}
    return {c: v for c, v in sums.items() if v}


def _inverse(basis: dict[int, Row], size: int) -> dict[int, Row]:
    """The rows of the inverse of a triangular matrix; a column that no row starts with counts for one."""
    rows: dict[int, Row] = {}
    for i in range(size - 1, -1, -1):
        given = basis.get(i, {i: Fraction(1)})
        row: Row = {i: 1 / given[i]}
        for c, v in given.items():
            if c != i:
                row = _combined(row, 1, rows[c], -v / given[i])
        rows[i] = row
    return rows
