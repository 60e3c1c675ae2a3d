"""What a caller may ask of an error."""

from numbers import Real
from typing import Any

from ..errors import InputError


def checked_tolerance(tolerance: Any) -> float:
    """A relative standard error as a plain number, of Python, NumPy or torch; refuses what is none.

    >>> import torch
    >>> checked_tolerance(torch.tensor(0.25))
    0.25
    """
    plain = tolerance.item() if getattr(tolerance, "ndim", None) == 0 else tolerance
    if isinstance(plain, bool) or not isinstance(plain, Real) or not 0 <= float(plain) < 1:
        raise InputError(
            f"tolerance={tolerance!r}: expected a relative standard error below 1, as in tolerance=0.01, or 0 for exact"
        )
    return float(plain)
