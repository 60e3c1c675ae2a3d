"""The least trace over scales of layers and a matrix in every frame.

With P = A^T A for the matrix A of a frame, S_out = sum_k exp(-2 t_k) M_k over what A acts on, and S_in over what its
inverse acts on, a frame contributes tr(P^-1 S_out) + tr(P S_in). For given scales its minimum is

    F = 2 tr (S_in^1/2 S_out S_in^1/2)^1/2      at      P = S_in^-1/2 (S_in^1/2 S_out S_in^1/2)^1/2 S_in^-1/2

and the rest is a minimum over scales t = A z, of a sum of exponentials and of such F: log-convex in z, for the sum is
log-convex along the geodesics of (z, log P). Newton's method finds it. By the envelope theorem the slope has tr(P^-1 M)
in place of coefficients; in the coordinates in which P = 1 the curvature loses <D_k, L^-1 D_l> with D_k = +-2 M_k and
L X = (S X + X S)/2, S = S_out + S_in: what P makes up for.

The lower bound. For any symmetric X, tr(e^-X M) >= tr M exp(-tr(X M)/tr M), by Jensen's inequality in the eigenbasis of
M. With the shares w of all terms as weights, concavity of the logarithm gives for every z' and every P' = e^X (in the
coordinates of P), with R = (S_out - S_in)/f for each frame,

    log f(z', P')  >=  log f - 2 (A^T w)(z' - z) - sum over frames of tr(X R)

Both A^T w and R vanish at the minimum, so there the bound is the value; what rounding leaves of them is held against z'
and X of size `REACH`, beyond any network.

Where S_out or S_in is singular, F is the infimum: it depends on both within a common subspace alone, in which they are
not, and P goes towards zero or infinity outside. Then P is that of matrices with a little of the identity added, such
that its condition number stays bounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg
import scipy.sparse

from .geometric import log_sum, minimise, towards_infinity, vanishing_terms
from .newton import Array, descend, polish

REACH = 50.0  # log-scales that the lower bound covers
RANK = 1e-13  # eigenvalues below this part of the largest are zero


@dataclass(frozen=True)
class Terms:
    """One frame: matrices (k, h, h) summed over entries of one scale, the scales' rows (k, unknowns), their sides."""

    matrices: Array
    rows: Array
    inverse: Array

    @property
    def sides(self) -> tuple[Array, Array]:
        """Which matrices A acts on, and which its inverse."""
        return ~self.inverse, self.inverse

    def sums(self, logs: Array) -> tuple[Array, Array]:
        """S_out and S_in, for logarithms of the factors of the matrices."""
        weighted = np.exp(logs)[:, None, None] * self.matrices
        return weighted[~self.inverse].sum(0), weighted[self.inverse].sum(0)


@dataclass(frozen=True)
class FramesSolution:
    """Where the minimum is, what it is (as a logarithm), a lower bound, and what is not attained."""

    z: Array
    P: list[Array]
    log_value: float
    log_bound: float
    vanishing: Array
    """Of the plain terms, those that vanish at infinity."""
    bounded: list[bool]
    """Of the frames, whether the infimum is not attained, or not within the bound on condition numbers."""


def geometric_mean(S_out: Array, S_in: Array) -> tuple[Array, float]:
    """P that minimises tr(P^-1 S_out) + tr(P S_in), and the minimum; both matrices are positive definite.

    >>> P, least = geometric_mean(np.diag([4.0, 1.0]), np.diag([1.0, 4.0]))
    >>> P.round(12).tolist(), round(least, 12)
    ([[2.0, 0.0], [0.0, 0.5]], 8.0)
    """
    values, vectors = np.linalg.eigh(S_in)
    root = _roots(values)
    half = (vectors * root).T  # half^T half = S_in
    others, across = np.linalg.eigh(S_out)
    turn, inner, _ = np.linalg.svd(half @ (across * _roots(others)))  # small values to rounding of the largest
    inner = np.maximum(inner, np.finfo(inner.dtype).eps * inner.max(initial=1e-300))
    back = (vectors / root) @ turn  # P = back diag(inner) back^T
    return (back * inner) @ back.T, 2 * float(inner.sum())


def _roots(values: Array) -> Array:
    """Roots of the eigenvalues of a positive definite matrix, of which the least may be lost in rounding."""
    return np.asarray(np.sqrt(np.maximum(values, np.finfo(values.dtype).eps * values.max(initial=1e-300))))


def least_trace(S_out: Array, S_in: Array) -> float:
    """The infimum of tr(P^-1 S_out) + tr(P S_in) over positive definite P, whatever the ranks: 2 tr (S_out S_in)^1/2.

    >>> least_trace(np.diag([4.0, 1.0]), np.diag([1.0, 0.0]))
    4.0
    """
    roots = [(v * np.sqrt(np.maximum(w, 0.0))) for w, v in map(np.linalg.eigh, (S_out, S_in))]
    return 2 * float(np.linalg.svd(roots[0].T @ roots[1], compute_uv=False).sum())


def core(terms: Terms) -> Terms | None:
    """The terms within the subspace in which neither side is singular; none where that is empty."""
    basis = np.eye(terms.matrices.shape[1])
    for side in (terms.inverse, ~terms.inverse):
        inside = basis.T @ _unit_sum(terms.matrices[side]) @ basis
        values, vectors = np.linalg.eigh(inside)
        basis = basis @ vectors[:, values > RANK * max(values.max(initial=0.0), 1e-300)]
        if not basis.shape[1]:
            return None
    return Terms(basis.T @ terms.matrices @ basis, terms.rows, terms.inverse)


def _unit_sum(matrices: Array) -> Array:
    """The sum of matrices with traces of one: its range does not depend on their factors."""
    traces = np.trace(matrices, axis1=1, axis2=2)
    return (matrices[traces > 0] / traces[traces > 0, None, None]).sum(0)


class _Balanced:
    """One frame at one z: its minimum over P, and its matrices in the coordinates in which P = 1."""

    def __init__(self, terms: Terms, z: Array):
        logs = -2 * (terms.rows @ z)
        top_out, top_in = (logs[side].max() for side in terms.sides)
        logs = logs - np.where(terms.inverse, top_in, top_out)
        P, least = geometric_mean(*terms.sums(logs))
        self.terms = terms
        self.log_value = float(np.log(least) + (top_out + top_in) / 2)
        values, vectors = np.linalg.eigh(P)
        root = _roots(values)
        up, down = (vectors * root) @ vectors.T, (vectors / root) @ vectors.T
        sides = np.where(terms.inverse[:, None, None], up, down)
        self.matrices = (
            np.exp(logs)[:, None, None] * (sides @ terms.matrices @ sides) / least
        )  # (k, h, h), sum of traces 1

    @cached_property
    def shares(self) -> Array:
        """What each matrix contributes to F: (k)."""
        return np.trace(self.matrices, axis1=1, axis2=2)

    @cached_property
    def signed(self) -> Array:
        """The matrices, those of the inverse's side with a minus: (k, h, h)."""
        return np.where(self.terms.inverse[:, None, None], -1.0, 1.0) * self.matrices

    def made_up(self) -> Array:
        """<D_k, L^-1 D_l>: (k, k)."""
        values, vectors = np.linalg.eigh(self.matrices.sum(0))
        D = 2 * vectors.T @ self.signed @ vectors
        sums = np.maximum(values[:, None] + values, 1e-300)
        return np.einsum("kab,lab->kl", D, 2 * D / sums)

    @property
    def residual(self) -> float:
        """The sum of the singular values of (S_out - S_in)/F, zero at the minimum over P."""
        return float(np.abs(np.linalg.eigvalsh(self.signed.sum(0))).sum())


class _Place:
    """log f, minimised over all P, at one z."""

    def __init__(self, problem: "_Problem", z: Array):
        self._problem = problem
        self.frames = [_Balanced(terms, z) for terms in problem.frames]
        x = np.concatenate([problem.log_c - 2 * (problem.A @ z), [frame.log_value for frame in self.frames]])
        self.value = log_sum(x)
        shares = np.exp(x - self.value)
        self.plain, self.framed = shares[: len(problem.log_c)], shares[len(problem.log_c) :]

    @cached_property
    def balance(self) -> Array:
        """A^T w over all terms: (unknowns)."""
        total = self._problem.A.T @ self.plain
        for share, frame in zip(self.framed, self.frames, strict=True):
            total = total + share * (frame.terms.rows.T @ frame.shares)
        return np.asarray(total)

    @property
    def slope(self) -> Array:
        """-2 A^T w."""
        return -2 * self.balance

    def step(self) -> Array:
        """Newton's, without the part of the curvature that vanishes with the slope."""
        A = self._problem.A
        H = 4 * (A.T * self.plain) @ A
        for share, frame in zip(self.framed, self.frames, strict=True):
            rows = frame.terms.rows
            H = H + share * rows.T @ (4 * np.diag(frame.shares) - frame.made_up()) @ rows
        H[np.diag_indices_from(H)] += 1e-14 * H.diagonal().max(initial=0.0) + 1e-300
        return scipy.linalg.cho_solve(scipy.linalg.cho_factor(H), -self.slope)

    @property
    def bound(self) -> float:
        """The lower bound on log f, whatever z and P."""
        loose = 2 * float(np.abs(self.balance).sum())
        loose += sum(share * frame.residual for share, frame in zip(self.framed, self.frames, strict=True))
        return self.value - REACH * loose - 1e-15


@dataclass(frozen=True)
class _Problem:
    """Plain terms, log_c (terms) and A (terms, unknowns), and frames."""

    log_c: Array
    A: Array
    frames: list[Terms]

    def solve(self, z: Array) -> tuple[Array, _Place]:
        """The minimum, from a start."""
        if z.size:
            found = descend(lambda x: _Place(self, x), z, most=200, enough=lambda _: 1e-16)
            z = polish(lambda x: _Place(self, x), found.x)
        return z, _Place(self, z)


def minimise_with_frames(log_c: Array, A: Array, frames: Sequence[Terms], condition: float) -> FramesSolution:
    """Minimise sum exp(log_c - 2 A z) + sum over frames of tr(P^-1 S_out(z)) + tr(P S_in(z)) over z and all P.

    ``condition`` bounds the condition numbers of the P that are returned; the value does not know of it.
    """
    unknowns = A.shape[1]
    start, lost, direction, basis = _as_scalars(log_c, A, frames)
    plain, *by_frame = np.split(lost, np.cumsum([len(log_c), *(len(t.rows) for t in frames)])[:-1])
    cores = [_kept(terms, gone) for terms, gone in zip(frames, by_frame, strict=True)]
    kept = np.isfinite(log_c) & ~plain
    inner = [Terms(t.matrices, t.rows @ basis, t.inverse) for t in cores if t is not None]
    rigid = [len(t.rows) == 2 for t in inner]
    log_rigid, of_rigid = _exponentials([t for t, one in zip(inner, rigid, strict=True) if one], basis.shape[1])
    left = [t for t, one in zip(inner, rigid, strict=True) if not one]
    rows = np.concatenate([A[kept] @ basis, of_rigid])
    problem = _Problem(np.concatenate([log_c[kept], log_rigid]), rows, left)
    if len(problem.log_c) or left:
        y, place = problem.solve(basis.T @ start)
        z, values = basis @ y, (place.value, min(place.bound, place.value))
    else:
        z, values = np.zeros(unknowns), (-np.inf, -np.inf)
    z = z + direction[:unknowns]
    found = [bounded_mean(*terms.sums(-2 * (terms.rows @ z)), condition) for terms in frames]
    return FramesSolution(z, [P for P, _ in found], *values, plain, [not good for _, good in found])


def _exponentials(frames: Sequence[Terms], unknowns: int) -> tuple[Array, Array]:
    """Frames with one matrix on each side: their minima 2 tr (S_in S_out)^1/2 are exponentials of z themselves, those
    with the same row in one."""
    found: dict[bytes, tuple[list[float], Array]] = {}
    for terms in frames:
        row = terms.rows.mean(0)
        least = geometric_mean(*terms.sums(np.zeros(2)))[1]
        found.setdefault(row.tobytes(), ([], row))[0].append(least)
    logs = np.log([sum(values) for values, _ in found.values()])
    return logs, np.array([row for _, row in found.values()]).reshape(len(found), unknowns)


def _as_scalars(log_c: Array, A: Array, frames: Sequence[Terms]) -> tuple[Array, Array, Array, Array]:
    """With one number in place of each matrix, a geometric program: where to start, which terms vanish in which
    direction, and the scalings (unknowns, free) that no number in place of a matrix makes up for."""
    unknowns, count = A.shape[1], len(frames)
    rows, logs = [np.hstack([A, np.zeros((len(A), count))])], [log_c]
    with np.errstate(divide="ignore"):
        for f, terms in enumerate(frames):
            own = np.zeros((len(terms.rows), count))
            own[:, f] = np.where(terms.inverse, -1.0, 1.0)
            rows.append(np.hstack([terms.rows, own]))
            logs.append(np.log(np.maximum(np.trace(terms.matrices, axis1=1, axis2=2), 0.0)))
    whole, log_whole = scipy.sparse.csr_array(np.vstack(rows)), np.concatenate(logs)
    present, lost, direction = np.isfinite(log_whole), np.zeros(len(log_whole), bool), np.zeros(unknowns + count)
    if whole.shape[1] and present.any():
        gone, direction = vanishing_terms(whole[present])
        lost[np.flatnonzero(present)[gone]] = True
    kept = present & ~lost
    start = minimise(log_whole[kept], whole[kept]).z if kept.any() and whole.shape[1] else np.zeros(unknowns + count)
    return (
        start[:unknowns],
        lost,
        towards_infinity(direction, whole, whole[lost] @ direction),
        _felt(whole[kept].toarray(), unknowns),
    )


def _felt(rows: Array, unknowns: int) -> Array:
    """An orthonormal basis of the first unknowns, without what no row feels, or what the others make up for."""
    if not rows.size or not unknowns:
        return np.eye(unknowns)
    flat = scipy.linalg.null_space(rows, rcond=1e-10)[:unknowns]  # (unknowns, directions)
    return scipy.linalg.null_space(flat.T, rcond=1e-10) if flat.size else np.eye(unknowns)


def _kept(terms: Terms, lost: Array) -> Terms | None:
    """The core of what does not vanish; none where a side is empty."""
    left = Terms(terms.matrices[~lost], terms.rows[~lost], terms.inverse[~lost])
    traces = np.trace(left.matrices, axis1=1, axis2=2)
    if not all((traces[side] > 0).any() for side in left.sides):
        return None
    left = Terms(left.matrices[traces > 0], left.rows[traces > 0], left.inverse[traces > 0])
    return core(left)


def bounded_mean(S_out: Array, S_in: Array, condition: float) -> tuple[Array, bool]:
    """P at, or near, the infimum, with a bounded condition number; and whether the infimum is attained there."""
    largest = [float(np.linalg.eigvalsh(S)[-1]) for S in (S_out, S_in)]
    identity = np.eye(len(S_out))
    if min(largest) <= 0:
        return identity * (1.0 if max(largest) <= 0 else 1e-8 if largest[0] <= 0 else 1e8), max(largest) <= 0
    least = least_trace(S_out, S_in)
    for touch in (0.0, 1 / condition):
        one, two = (S + touch * top * identity for S, top in zip((S_out, S_in), largest, strict=True))
        if not touch and any(
            np.linalg.eigvalsh(S)[0] <= RANK * top for S, top in zip((S_out, S_in), largest, strict=True)
        ):
            continue
        P, _ = geometric_mean(one, two)
        if touch or np.linalg.cond(P) <= condition:
            break
    there = float(np.trace(np.linalg.solve(P, S_out)) + np.trace(P @ S_in))
    return P, there <= least * (1 + 1e-9)
