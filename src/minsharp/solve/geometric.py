"""The geometric program behind minimum sharpness, for one factor per layer or one per neuron alike.

    minimise   f(z) = sum_e c_e exp(-2 (A z)_e)        over z, with c_e >= 0

log f is convex: Newton's method. Where the c_e span hundreds of orders of magnitude, log f is all corners and no
curvature, and that takes too many steps: then we minimise the smoothed maximum (1/b) log sum exp(b ...) for b growing
to 1, each from the last one's minimum.

A lower bound comes from the dual: for weights w >= 0 with sum w = 1 and A^T w = 0, log f(z) >= sum_e w_e log(c_e / w_e)
whatever z. At the minimum the terms' shares of f are such weights; near it, one Newton step makes them so.

The infimum may lie at infinity: a term that can be shrunk for ever without another one growing is left out, and the
answer says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg

Array = np.ndarray[Any, Any]
DENSE = 1500  # up to this many unknowns, factor the Hessian; above, conjugate gradients
PATIENCE = 12  # steps after which to go from smooth to sharp instead
SMALL = 1 << 20  # up to this many entries, a plain matrix is faster than a sparse one


@dataclass(frozen=True)
class Solution:
    """Where the minimum is, what it is (as a logarithm), a lower bound on it, and which terms vanish at infinity."""

    z: Array
    log_value: float
    log_bound: float
    vanishing: Array
    iterations: int

    @property
    def attained(self) -> bool:
        """Whether some network has this value, rather than only comes as near as one likes."""
        return not self.vanishing.any()


def minimise(log_c: Array, A: Any) -> Solution:
    """Minimise sum exp(log_c - 2 A z). ``A`` is (terms, unknowns), sparse; ``log_c`` may hold -inf."""
    A = scipy.sparse.csr_array(A)
    unknowns = A.shape[1]
    present = np.isfinite(log_c)
    vanishing = np.zeros(len(log_c), dtype=bool)
    direction = np.zeros(unknowns)
    if unknowns and present.any():
        lost, direction = _vanishing(A[present])
        vanishing[np.flatnonzero(present)[lost]] = True
    kept = present & ~vanishing
    if not kept.any():
        return Solution(_far(direction, A, vanishing), -np.inf, -np.inf, vanishing, 0)
    problem = _Problem(log_c[kept], A[kept])
    z, iterations = problem.solve()
    values = problem.values(z)
    if vanishing.any():
        z = z + _far(direction, A, vanishing)
    return Solution(z, *values, vanishing, iterations)


def _far(direction: Array, A: Any, vanishing: Array) -> Array:
    """A finite step towards infinity: vanishing terms shrink 1e-8 times, no factor moves more than a million times."""
    if not vanishing.any() or not direction.any():
        return np.zeros_like(direction)
    slowest = (A[vanishing] @ direction).min()
    reach = np.abs(A @ direction).max()
    return direction * min(0.5 * np.log(1e8) / slowest, np.log(1e6) / reach)


class _Problem:
    """Terms that all stay."""

    def __init__(self, log_c: Array, A: Any):
        self.log_c = log_c
        self.unknowns = A.shape[1]
        self.A: Any = A.toarray() if np.prod(A.shape) <= SMALL else A

    def _exponents(self, z: Array) -> Array:
        return self.log_c - 2 * (self.A @ z)

    def log_value(self, z: Array) -> float:
        """log f."""
        return log_sum(self._exponents(z))

    def values(self, z: Array) -> tuple[float, float]:
        """log f and a lower bound on its minimum."""
        log_value = self.log_value(z)
        return log_value, min(self.log_bound(z), log_value)

    def _level(self) -> Array:
        """Where the terms are most alike, by least squares on their logarithms: a start, and exact for plain chains."""
        if self.unknowns > DENSE:
            return np.zeros(self.unknowns)
        count = len(self.log_c)
        mean = np.asarray(self.A.sum(0)).ravel() / count
        gram = self.A.T @ self.A
        H = (gram if isinstance(gram, np.ndarray) else gram.toarray()) / count - np.outer(mean, mean)
        H[np.diag_indices_from(H)] += 1e-10 * H.diagonal().max() + 1e-300
        z = np.linalg.solve(H, self.A.T @ (self.log_c - self.log_c.mean()) / count) / 2
        return z if self.log_value(z) < self.log_value(np.zeros_like(z)) else np.zeros_like(z)

    def balances(self) -> bool:
        """Whether a few steps find weights w > 0 with A^T w = 0.

        They prove that no term vanishes at infinity: along a direction in which none grows, none can shrink.
        """
        z, _, done = self._newton(np.zeros(self.unknowns), 1.0, PATIENCE)
        w = self._weights(self._polish(z)) if done else np.zeros(1)
        return bool(w.min() > 1e-6 and np.abs(self.A.T @ w).max() < 1e-12)

    def solve(self) -> tuple[Array, int]:
        """At once, or from smooth to sharp."""
        if not self.unknowns:
            return np.zeros(0), 0
        z, iterations, done = self._newton(self._level(), 1.0, PATIENCE)
        if done:
            return self._polish(z), iterations
        z = np.zeros(self.unknowns)
        sharpness = min(1.0, 4 / float(np.ptp(self.log_c)))
        while True:
            z, steps, _ = self._newton(z, sharpness, 200)
            iterations += steps
            if sharpness == 1.0:
                return self._polish(z), iterations
            sharpness = min(1.0, 4 * sharpness)

    def _newton(self, z: Array, b: float, most: int) -> tuple[Array, int, bool]:
        """Minimise (1/b) log sum exp(b (log_c - 2 A z)), damped; tells whether it arrived."""
        tolerance = 1e-16 if b == 1.0 else 1e-3 / b
        value = log_sum(b * self._exponents(z)) / b
        for iteration in range(most):
            w = _shares(b * self._exponents(z))
            slope = -2 * (self.A.T @ w)
            step = self._hessian_solver(w)(-slope / (4 * b))
            decrease = -float(slope @ step)
            if decrease <= tolerance:
                return z, iteration, True
            size = 1.0
            while True:
                moved = z + size * step
                new = log_sum(b * self._exponents(moved)) / b
                if new <= value - 1e-4 * size * decrease:
                    break
                size /= 2
                if size < 1e-10:  # nothing left but rounding
                    return z, iteration, decrease < 1e-9
            z, value = moved, new
        return z, most, False

    def _polish(self, z: Array) -> Array:
        """The value is flat at its minimum and shows half the digits of z: go on for as long as the slope falls."""
        w = _shares(self._exponents(z))
        slope = self.A.T @ w
        for _ in range(5):
            moved = z + self._hessian_solver(w)(slope) / 2
            w = _shares(self._exponents(moved))
            new = self.A.T @ w
            if not np.abs(new).max() < np.abs(slope).max():
                break
            z, slope = moved, new
        return z

    def _hessian_solver(self, w: Array) -> Callable[[Array], Array]:
        """Solve (A^T diag(w) A) x = y, with a touch of ridge for directions that no term of weight feels."""
        if self.unknowns <= DENSE:
            if isinstance(self.A, np.ndarray):
                H = (self.A.T * w) @ self.A
            else:
                H = (self.A.T @ (scipy.sparse.diags_array(w) @ self.A)).toarray()
            H[np.diag_indices_from(H)] += 1e-14 * H.diagonal().max() + 1e-300
            factor = scipy.linalg.cho_factor(H, check_finite=False)
            return lambda y: scipy.linalg.cho_solve(factor, y, check_finite=False)
        diagonal = (self.A.power(2).T @ w) + 1e-300
        ridge = 1e-14 * diagonal.max()
        shape = (self.unknowns, self.unknowns)
        operator = scipy.sparse.linalg.LinearOperator(shape, lambda x: self.A.T @ (w * (self.A @ x)) + ridge * x)
        inverse = scipy.sparse.linalg.LinearOperator(shape, lambda x: x / (diagonal + ridge))
        return lambda y: scipy.sparse.linalg.cg(operator, y, M=inverse, rtol=1e-10, maxiter=2000)[0]

    def _weights(self, z: Array) -> Array:
        """The shares at z, moved onto A^T w = 0 by one Newton step."""
        w = _shares(self._exponents(z))
        return w * (1 - self.A @ self._hessian_solver(w)(self.A.T @ w)) if self.unknowns else w

    def log_bound(self, z: Array) -> float:
        """The dual's lower bound."""
        w = np.maximum(self._weights(z), 0)
        w /= w.sum()
        some = w > 0
        dual = float(np.sum(w[some] * (self.log_c[some] - np.log(w[some]))))
        rest = abs(float((self.A.T @ w) @ z)) if self.unknowns else 0.0
        return dual - 2 * rest - 1e-15


def log_sum(x: Array) -> float:
    """log sum exp."""
    top = x.max()
    return float(top + np.log(np.exp(x - top).sum()))


def _shares(x: Array) -> Array:
    w = np.exp(x - x.max())
    return w / w.sum()


# Terms that vanish at infinity


def _vanishing(A: Any) -> tuple[Array, Array]:
    """The terms that some direction shrinks while none grows, and such a direction; it does not depend on the c_e."""
    found = _by_cycles(A)
    if found is not None:
        return found
    if _Problem(np.zeros(A.shape[0]), A).balances():
        return np.zeros(A.shape[0], dtype=bool), np.zeros(A.shape[1])
    return _by_linear_program(A)


def _by_cycles(A: Any) -> tuple[Array, Array] | None:
    """If each term compares two scales, or one with the fixed one: a term stays if it lies on a directed cycle.

    Terms are edges from the scale they subtract to the scale they add. Weights w with A^T w = 0 are circulations, and
    an edge carries one if and only if both its ends are strongly connected.
    """
    counts = np.diff(A.indptr)
    if not np.isin(A.data, (1.0, -1.0)).all() or counts.max(initial=0) > 2:
        return None
    ground = A.shape[1]
    ends = np.full((2, A.shape[0]), ground)  # (tail, head)
    rows = np.repeat(np.arange(A.shape[0]), counts)
    for sign, side in ((-1.0, 0), (1.0, 1)):
        chosen = A.data == sign
        if len(np.unique(rows[chosen])) != chosen.sum():
            return None
        ends[side, rows[chosen]] = A.indices[chosen]
    edges = scipy.sparse.coo_array((np.ones(A.shape[0]), (ends[0], ends[1])), shape=(ground + 1, ground + 1))
    _, part = scipy.sparse.csgraph.connected_components(edges, connection="strong")
    lost = part[ends[0]] != part[ends[1]]
    level = _levels(part[ends[0][lost]], part[ends[1][lost]], int(part.max()) + 1)
    return lost, (level[part[:ground]] - level[part[ground]]).astype(float)


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


def _by_linear_program(A: Any) -> tuple[Array, Array]:
    """In general: maximise the number of shrinking terms over directions in which none grows."""
    terms, unknowns = A.shape
    ones = scipy.sparse.eye_array(terms)
    answer = scipy.optimize.linprog(
        np.concatenate([np.zeros(unknowns), -np.ones(terms)]),
        A_ub=scipy.sparse.hstack([-A, ones]),
        b_ub=np.zeros(terms),
        bounds=[(None, None)] * unknowns + [(0, 1)] * terms,
        method="highs",
    )
    if not answer.success:
        raise RuntimeError(f"linear program: {answer.message}")
    lost = answer.x[unknowns:] > 0.5
    return lost, answer.x[:unknowns] if lost.any() else np.zeros(unknowns)
