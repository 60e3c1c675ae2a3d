"""Which parts of what goes in a part of the result is made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ..graph.records import Operation, Value


@dataclass(frozen=True)
class Parts:
    """For a part of the result along one axis: the axis of each argument of which the same part is needed.

    Arguments that are not named are needed whole. ``changed`` are arguments, such as sizes, that the call for a part
    has in place of the given ones.
    """

    axes: Mapping[str, int]
    changed: Mapping[str, Any] = field(default_factory=dict)


Narrowing = Callable[[Mapping[str, Value], Operation, int, int], Parts | None]
"""The parts for (values, operation, axis of the result, size of the part); None where they are not enough."""


def each_entry(values: Mapping[str, Value], operation: Operation, axis: int, size: int) -> Parts:
    """Functions of each entry by itself: the same part of all that is not broadcast along the axis."""
    rank = len(values[operation.outputs[0]].shape)
    axes = {}
    for argument, name in operation.by_argument.items():
        shape = values[name].shape if name in values else ()
        place = axis - rank + len(shape)
        if place >= 0 and shape[place] != 1:
            axes[argument] = place
    return Parts(axes)


def before_last(argument: str) -> Narrowing:
    """What looks along the last axis of an argument only."""

    def rule(values: Mapping[str, Value], operation: Operation, axis: int, size: int) -> Parts | None:
        rank = len(values[operation.by_argument[argument]].shape)
        return Parts({argument: axis}) if axis < rank - 1 else None

    return rule


def before_normalized(values: Mapping[str, Value], operation: Operation, axis: int, size: int) -> Parts | None:
    """Norms over the last axes."""
    rank = len(values[operation.by_argument["input"]].shape)
    return Parts({"input": axis}) if axis < rank - len(operation.arguments["normalized_shape"]) else None


def other_than_dim(values: Mapping[str, Value], operation: Operation, axis: int, size: int) -> Parts | None:
    """What looks along its ``dim`` only: softmax."""
    rank = len(values[operation.outputs[0]].shape)
    return Parts({"self": axis}) if axis != operation.arguments["dim"] % max(rank, 1) else None


def taken_beside(values: Mapping[str, Value], operation: Operation, axis: int, size: int) -> Parts | None:
    """What takes a part along another axis, its ``dim``, which `select` drops."""
    rank = len(values[operation.by_argument["self"]].shape)
    dim = operation.arguments["dim"] % rank
    dropped = len(values[operation.outputs[0]].shape) < rank
    place = axis + 1 if dropped and axis >= dim else axis
    return Parts({"self": place}) if place != dim else None


def same_place(values: Mapping[str, Value], operation: Operation, axis: int, size: int) -> Parts | None:
    """The same entries in the same order: an axis that is one before, with as many entries behind it."""
    (argument, name), *more = operation.by_argument.items()
    given, made = values[name], values[operation.outputs[0]]
    sizes = operation.arguments.get("shape")
    parted = made.shape[axis] in operation.arguments.get("sizes", ())  # of an axis that is one before
    if more or parted or (sizes is not None and sizes[axis] != made.shape[axis]):
        return None
    found = [place for place in range(len(given.shape)) if _like(given, place) == _like(made, axis)]
    changed = {} if sizes is None else {"shape": (*sizes[:axis], size, *sizes[axis + 1 :])}
    return Parts({argument: found[0]}, changed) if len(found) == 1 else None


def _like(value: Value, axis: int) -> tuple[Any, ...]:
    """What tells an axis in memory: its size, how many entries lie behind it, and whether the samples do."""
    return value.shape[axis], prod(value.shape[axis + 1 :]), value.samples is None or value.samples.axis > axis


def of_queries(values: Mapping[str, Value], operation: Operation, axis: int, size: int) -> Parts | None:
    """Attention: each query by itself, unless their order decides which keys they see."""
    rank = len(values[operation.by_argument["query"]].shape)
    if axis != rank - 2 or operation.arguments["is_causal"]:
        return None
    mask = operation.by_argument.get("attn_mask")
    shape = values[mask].shape if mask is not None else ()
    masked = {"attn_mask": len(shape) - 2} if len(shape) > 1 and shape[-2] != 1 else {}
    return Parts({"query": axis, **masked})


def of_rows(first: str) -> Narrowing:
    """Products of matrices: each row of the first factor by itself."""

    def rule(values: Mapping[str, Value], operation: Operation, axis: int, size: int) -> Parts | None:
        rank = len(values[operation.outputs[0]].shape)
        own = len(values[operation.by_argument[first]].shape)
        if axis != rank - 2 or own < 2 or len(operation.by_argument) != 2:
            return None
        return Parts({first: own - 2})

    return rule
