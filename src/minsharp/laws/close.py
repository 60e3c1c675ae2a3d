"""When numbers count as equal."""

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def close(found: Any, expected: Any, tolerance: float, noise: float = 0.0) -> bool:
    """Equal to a relative tolerance of the largest number, and a given noise; lists item by item."""
    if isinstance(expected, tuple | list):
        return len(found) == len(expected) and all(close(f, e, tolerance) for f, e in zip(found, expected, strict=True))
    if not isinstance(expected, Tensor):
        return bool(found == expected)
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        return False
    if not expected.dtype.is_floating_point:
        return torch.equal(found, expected)
    finite = expected.isfinite()
    if not torch.equal(found[~finite].nan_to_num(), expected[~finite].nan_to_num()):
        return False
    found, expected = found.double()[finite], expected.double()[finite]
    if not expected.numel():
        return True
    return float((found - expected).abs().amax()) <= tolerance * float(expected.abs().amax()) + noise


def same(a: Any, b: Any) -> bool:
    """Whether all tensors in two structures are equal bit by bit."""
    pairs = zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True)
    return all(equal(x, y) for x, y in pairs if isinstance(x, Tensor))


def equal(a: Tensor, b: Tensor) -> bool:
    """Bit by bit, NaN and all."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
