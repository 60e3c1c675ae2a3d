"""The lattice of numbers z for which every (A z)_e is whole."""

from collections.abc import Iterator
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from .newton import Array

SparseRow = dict[int, Fraction]
"""A row of a matrix of fractions: its entries by column."""


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


def _triangular(rows: list[SparseRow]) -> dict[int, SparseRow]:
    """A basis of all whole combinations of some rows, each with a first column of its own (Hermite's normal form)."""
    basis: dict[int, SparseRow] = {}
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


def _combined(a: SparseRow, s: Fraction | int, b: SparseRow, t: Fraction | int) -> SparseRow:
    sums = {c: s * a.get(c, Fraction(0)) + t * b.get(c, Fraction(0)) for c in a | b}
    return {c: v for c, v in sums.items() if v}


def _inverse(basis: dict[int, SparseRow], size: int) -> dict[int, SparseRow]:
    """The rows of the inverse of a triangular matrix; a column that no row starts with counts for one."""
    rows: dict[int, SparseRow] = {}
    for i in range(size - 1, -1, -1):
        given = basis.get(i, {i: Fraction(1)})
        row: SparseRow = {i: 1 / given[i]}
        for c, v in given.items():
            if c != i:
                row = _combined(row, 1, rows[c], -v / given[i])
        rows[i] = row
    return rows
