"""Terms that compare two scales are the edges of a graph: those on no directed cycle can be made to vanish."""

from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph

from .newton import Array


def strong_parts(tails: Array, heads: Array, nodes: int) -> Array:
    """For every node the number of its strongly connected part, (nodes); edges go from tails to heads, (edges) each."""
    edges = scipy.sparse.coo_array((np.ones(len(tails)), (tails, heads)), shape=(nodes, nodes))
    parts: Array = scipy.sparse.csgraph.connected_components(edges, connection="strong")[1]
    return parts


def lost_by_cycles(A: Any) -> tuple[Array, Array] | None:
    """The terms that vanish along some direction, and that direction; none unless each term compares two scales.

    Terms, the rows of A, are edges from the scale they subtract to the scale they add, or to the fixed one. Weights w
    with A^T w = 0 are circulations, and an edge carries one if and only if both its ends are strongly connected.
    """
    ends = _ends(A)
    if ends is None:
        return None
    ground, (tails, heads) = A.shape[1], ends
    part = strong_parts(tails, heads, ground + 1)
    lost = part[tails] != part[heads]
    level = _levels(part[tails[lost]], part[heads[lost]], int(part.max()) + 1)
    return lost, (level[part[:ground]] - level[part[ground]]).astype(float)


def _ends(A: Any) -> Array | None:
    """The scale that each term subtracts and the one it adds, (2, terms), A.shape[1] for the fixed one."""
    counts = np.diff(A.indptr)
    if (np.abs(A.data) != 1.0).any() or counts.max(initial=0) > 2:
        return None
    pairs = A.indptr[:-1][counts == 2]
    if (A.data[pairs] == A.data[pairs + 1]).any():
        return None
    ends = np.full((2, A.shape[0]), A.shape[1], dtype=A.indices.dtype)
    rows = np.repeat(np.arange(A.shape[0], dtype=A.indices.dtype), counts)
    ends[(A.data > 0).view(np.int8), rows] = A.indices
    return ends


def _levels(tails: Array, heads: Array, count: int) -> Array:
    """A height for each part such that every edge between parts goes up."""
    level = np.zeros(count, dtype=int)
    for _ in range(count):
        higher = level.copy()
        np.maximum.at(higher, heads, level[tails] + 1)
        if (higher == level).all():
            break
        level = higher
    return level
