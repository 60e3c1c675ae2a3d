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
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse

from .cycles import lost_by_cycles
from .newton import Array, Descent, conjugate_gradients, descend, polish

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
        lost, direction = vanishing_terms(_some(A, present))
        vanishing[np.flatnonzero(present)[lost]] = True
    kept, far = present & ~vanishing, towards_infinity(direction, A, A[vanishing] @ direction)
    if not kept.any():
        return Solution(far, -np.inf, -np.inf, vanishing, 0)
    problem = _Problem(_some(log_c, kept), _some(A, kept))
    z, iterations = problem.solve()
    values = problem.values(z)
    return Solution(z + far if vanishing.any() else z, *values, vanishing, iterations)


def _some(of: Any, kept: Array) -> Any:
    """The rows that are kept, without a copy where that is all of them."""
    return of if kept.all() else of[kept]


def towards_infinity(direction: Array, A: Any, rates: Array) -> Array:
    """A finite step along a direction: what shrinks at these rates does so 1e8 times, no factor moves above a million.

    ``rates`` are those of the logarithms' halves, positive; without any there is no step.
    """
    if not len(rates) or not direction.any():
        return np.zeros_like(direction)
    reach = np.abs(A @ direction).max()
    return direction * min(0.5 * np.log(1e8) / rates.min(), np.log(1e6) / reach)


class _Place:
    """The smoothed maximum (1/b) log sum exp(b (log_c - 2 A z)) at one z; for b = 1 it is log f."""

    def __init__(self, problem: "_Problem", z: Array, b: float):
        self._problem, self._b = problem, b
        x = b * problem.exponents(z)  # (terms)
        top = x.max()
        parts = np.exp(x - top)
        total = parts.sum()
        self.value = float(top + np.log(total)) / b
        self.shares: Array = parts / total  # (terms), what each contributes

    @cached_property
    def slope(self) -> Array:
        """-2 A^T w, for the shares w."""
        return -2 * (self._problem.A.T @ self.shares)

    def step(self) -> Array:
        """By 4 b A^T diag(w) A: the curvature but for -b slope slope^T, which vanishes at the minimum."""
        return self._problem.solved(self.shares, -self.slope / (4 * self._b))


class _Problem:
    """The terms that do not vanish: log_c (terms) and A (terms, unknowns)."""

    def __init__(self, log_c: Array, A: Any):
        self.log_c = log_c
        self.unknowns = A.shape[1]
        self.A: Any = A.toarray() if np.prod(A.shape) <= SMALL else A

    def exponents(self, z: Array) -> Array:
        """The logarithms of the terms."""
        return self.log_c - 2 * (self.A @ z)

    def log_value(self, z: Array) -> float:
        """log f at z."""
        return log_sum(self.exponents(z))

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
        H = self._gram(np.full(count, 1 / count)) - np.outer(mean, mean)
        H[np.diag_indices_from(H)] += 1e-10 * H.diagonal().max() + 1e-300
        z = np.linalg.solve(H, self.A.T @ (self.log_c - self.log_c.mean()) / count) / 2
        return z if self.log_value(z) < self.log_value(np.zeros_like(z)) else np.zeros_like(z)

    def balances(self) -> bool:
        """Whether a few steps find weights w > 0 with A^T w = 0.

        They prove that no term vanishes at infinity: along a direction in which none grows, none can shrink.
        """
        found = self._descent(np.zeros(self.unknowns), 1.0, PATIENCE)
        w = self._weights(self._polished(found.x)) if found.arrived else np.zeros(1)
        return bool(w.min() > 1e-6 and np.abs(self.A.T @ w).max() < 1e-12)

    def solve(self) -> tuple[Array, int]:
        """The minimum z and the number of steps: at once, or from smooth to sharp."""
        if not self.unknowns:
            return np.zeros(0), 0
        found = self._descent(self._level(), 1.0, PATIENCE)
        if found.arrived:
            return self._polished(found.x), found.steps
        steps, z = found.steps, np.zeros(self.unknowns)
        sharpness = min(1.0, 4 / float(np.ptp(self.log_c)))
        while True:
            found = self._descent(z, sharpness, 200)
            z, steps = found.x, steps + found.steps
            if sharpness == 1.0:
                return self._polished(z), steps
            sharpness = min(1.0, 4 * sharpness)

    def _look(self, b: float) -> Callable[[Array], _Place]:
        return lambda z: _Place(self, z, b)

    def _descent(self, z: Array, b: float, most: int) -> Descent[_Place]:
        tolerance = 1e-16 if b == 1.0 else 1e-3 / b
        return descend(self._look(b), z, most=most, enough=lambda _: tolerance)

    def _polished(self, z: Array) -> Array:
        return polish(self._look(1.0), z)

    def _gram(self, w: Array) -> Array:
        """A^T diag(w) A as a plain matrix (unknowns, unknowns)."""
        if isinstance(self.A, np.ndarray):
            return (self.A.T * w) @ self.A
        return (self.A.T @ (scipy.sparse.diags_array(w) @ self.A)).toarray()

    def solved(self, w: Array, y: Array) -> Array:
        """x with A^T diag(w) A x = y, with a touch of ridge for directions that no term of weight feels."""
        if self.unknowns <= DENSE:
            H = self._gram(w)
            H[np.diag_indices_from(H)] += 1e-14 * H.diagonal().max() + 1e-300
            return scipy.linalg.cho_solve(scipy.linalg.cho_factor(H, check_finite=False), y, check_finite=False)
        diagonal = (self._squares.T @ w) + 1e-300
        ridge = 1e-14 * diagonal.max()
        return conjugate_gradients(lambda x: self.A.T @ (w * (self.A @ x)) + ridge * x, diagonal + ridge, y)

    @cached_property
    def _squares(self) -> Any:
        """A with its entries squared, in the same places."""
        return scipy.sparse.csr_array((np.square(self.A.data), self.A.indices, self.A.indptr), shape=self.A.shape)

    def _weights(self, z: Array) -> Array:
        """The shares at z, moved onto A^T w = 0 by one Newton step."""
        w = _Place(self, z, 1.0).shares
        return w * (1 - self.A @ self.solved(w, self.A.T @ w)) if self.unknowns else w

    def log_bound(self, z: Array) -> float:
        """The dual's lower bound on the minimum of log f."""
        w = np.maximum(self._weights(z), 0)
        w /= w.sum()
        some = w > 0
        dual = float(np.sum(w[some] * (self.log_c[some] - np.log(w[some]))))
        rest = abs(float((self.A.T @ w) @ z)) if self.unknowns else 0.0
        return dual - 2 * rest - 1e-15


def log_sum(x: Array) -> float:
    """log sum exp x; scipy's takes 20 times as long on ten numbers, 2 times on 100,000."""
    top = x.max()
    return float(top + np.log(np.exp(x - top).sum()))


# Terms that vanish at infinity


def vanishing_terms(A: Any) -> tuple[Array, Array]:
    """The terms that some direction shrinks while none grows, and such a direction; it does not depend on the c_e."""
    found = lost_by_cycles(A)
    if found is not None:
        return found
    if _Problem(np.zeros(A.shape[0]), A).balances():
        return np.zeros(A.shape[0], dtype=bool), np.zeros(A.shape[1])
    return _by_linear_program(A)


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
