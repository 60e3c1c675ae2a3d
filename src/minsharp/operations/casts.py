"""Other types, and tensors made from nothing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..graph.records import Operation
from ..rules.apart import by_entry
from ..rules.channels import entrywise, zeros
from ..rules.frames import passed
from ..rules.pullback import Pull, unbroadcast
from ..rules.row import Row


def pull_cast(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Back to the type and the device that it had."""
    x, made = bound["self"], operation.call(bound)
    return made, lambda G: {"self": G.to(x)} if made.dtype.is_floating_point else {}


def pull_fill(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """One number written over everything: what was there before has no part in it."""
    made, value = operation.call(bound), bound["value"]
    passes = isinstance(value, Tensor) and made.dtype.is_floating_point
    return made, lambda G: {"value": unbroadcast(G, value.shape)} if passes else {}


_entry = Row("self", pull_cast, channels=entrywise, frames=passed, apart=by_entry)

_zeros = Row("0", channels=zeros, ignores=("self",))

_blank = Row("1", ignores=("self",))

ROWS: dict[str, Row] = {
    "to": _entry,
    "_to_copy": _entry,
    "type_as": replace(_entry, ignores=("other",)),
    "zeros": _zeros,
    "zeros_like": _zeros,
    "zero": _zeros,
    "fill": Row("value", pull_fill, channels=entrywise, ignores=("self",)),
    "new_zeros": _zeros,
    "ones_like": _blank,
    "full_like": _blank,
    "empty_like": _blank,
    "new_ones": _blank,
    "new_full": _blank,
    "new_empty": _blank,
}
