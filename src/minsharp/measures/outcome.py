"""How a minimum is told: its status, in words."""

from collections.abc import Mapping
from math import exp, inf

from ..network.symmetry import Symmetries
from ..solve.status import Status, StatusText
from ..text import magnitude, percent


def finite_exp(x: float) -> float:
    """exp, or infinity where it is too large."""
    try:
        return exp(x)
    except OverflowError:
        return inf


def nothing_to_do(symmetries: Symmetries, before: Mapping[str, float], curved: bool = False) -> StatusText | None:
    """Why the minimum is the trace as it is; none if it need not be. ``curved``: there is curvature, noise or not."""
    if not any(before.values()):
        return (Status.NO_NOISE if curved else Status.NO_CURVATURE).told()
    if not symmetries.dimension:
        reasons = dict.fromkeys(symmetries.pinned.values())
        return Status.PINNED.told(reasons="; ".join(reasons))
    return None


def status_of(vanishing: list[str], log_value: float, log_bound: float, fixed: float = 0.0) -> StatusText:
    """A minimum with its gap, or an infimum with what vanishes; the value is exp(log_value) + fixed."""
    if vanishing:
        return Status.INFIMUM.told(names=", ".join(vanishing))
    return Status.MINIMUM.told(gap=magnitude(_gap(log_value, log_bound, fixed), 0))


def _gap(log_value: float, log_bound: float, fixed: float) -> float:
    """How far the bound may be below the value, as a part of it."""
    if log_value == -inf:
        return 0.0
    gap, whole = max(log_value - log_bound, 0.0), abs(finite_exp(log_value) + fixed)
    return gap * finite_exp(log_value) / whole if fixed and whole else gap


def status_of_powers(value: float, bound: float, moved: bool) -> StatusText:
    """How far the best powers of two are from the bound."""
    case = Status.POWERS_OF_TWO if moved else Status.NO_FLATTER_POWER
    if not bound:
        return case.told(distance="with other factors the trace comes as near to zero as one likes")
    above = percent(max((value - bound) / abs(bound), 0.0), 2)
    return case.told(distance=f"at most {above} above the minimum of all factors")
