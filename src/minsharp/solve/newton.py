"""Newton's method for smooth convex functions, written once: the steps, their damping, and their linear systems."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import scipy.sparse.linalg

Array = np.ndarray[Any, Any]

SUFFICIENT = 1e-4  # share of the decrease that the slope promises which a step has to bring (Armijo's rule)
SMALLEST = 1e-10  # fraction of a step below which nothing is left but rounding
POLISHES = 5


class Place(Protocol):
    """What is known of the function at one point; the step is worked out only where it is asked for."""

    @property
    def value(self) -> float:
        """The value of the function that is minimised, at this place."""

    @property
    def slope(self) -> Array:
        """Its gradient, shaped like the unknowns."""

    def step(self) -> Array:
        """Newton's step, minus the inverse of the curvature times the slope, shaped like the unknowns."""


AnyPlace = TypeVar("AnyPlace", bound=Place)
Look = Callable[[Array], AnyPlace]


@dataclass(frozen=True)
class Descent(Generic[AnyPlace]):
    """Where a descent ended, how many steps it took, and whether it arrived at the minimum."""

    x: Array
    place: AnyPlace
    steps: int
    arrived: bool


def descend(look: Look[AnyPlace], x: Array, *, most: int, enough: Callable[[float], float]) -> Descent[AnyPlace]:
    """Newton's steps, halved until they pay, until one promises a decrease of at most ``enough(value)``."""
    place = look(x)
    for steps in range(most):
        step = place.step()
        decrease = -float((place.slope * step).sum())
        if decrease <= enough(place.value):
            return Descent(x, place, steps, True)
        paid = _paid_step(look, x, step, place.value, decrease)
        if paid is None:
            return Descent(x, place, steps, decrease < 1e-9)
        x, place = paid
    return Descent(x, place, most, False)


def _paid_step(
    look: Look[AnyPlace], x: Array, step: Array, value: float, decrease: float
) -> tuple[Array, AnyPlace] | None:
    """The first of x + step, x + step / 2, ... that is low enough, and what is there; none where rounding rules."""
    size = 1.0
    while size >= SMALLEST:
        there = look(x + size * step)
        if there.value <= value - SUFFICIENT * size * decrease:
            return x + size * step, there
        size /= 2
    return None


def polish(look: Look[AnyPlace], x: Array) -> Array:
    """The value is flat at its minimum and shows half the digits of x: go on for as long as the slope falls."""
    place = look(x)
    for _ in range(POLISHES):
        moved = x + place.step()
        there = look(moved)
        if not np.abs(there.slope).max() < np.abs(place.slope).max():
            break
        x, place = moved, there
    return x


def conjugate_gradients(product: Callable[[Array], Array], diagonal: Array, y: Array) -> Array:
    """Solve ``product(x) = y`` to ten digits, for a positive definite matrix of which products and diagonal are known.

    The system is scaled to a diagonal of ones; unknowns with a diagonal of zero (to rounding) stay zero.
    """
    root = np.sqrt(np.maximum(diagonal, 0.0))
    scale = np.divide(1.0, root, out=np.zeros_like(root), where=root > 0).ravel()

    def scaled(x: Array) -> Array:
        return scale * product((scale * x).reshape(y.shape)).ravel()

    matrix = scipy.sparse.linalg.LinearOperator((y.size, y.size), scaled, dtype=np.float64)
    return (scale * scipy.sparse.linalg.cg(matrix, scale * y.ravel(), rtol=1e-10, maxiter=2000)[0]).reshape(y.shape)
