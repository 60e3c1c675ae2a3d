"""Whether a call treats samples one by one, told from the record alone: from where they sit before it and after it.

A rule says yes only where each sample of the result is made of the same sample of what goes in, and of what is the same
for all samples, in one way whatever their number and their places. Then no run has to show it; any other call is tried
(`network.apart`). The law of samples holds every rule to that, along every axis that it says yes to.
"""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from ..graph.records import Operation, Ref, Value
from .narrowing import Narrowing


@dataclass(frozen=True)
class Call:
    """One call, with the values of the graph, and the numbers that are so many times the number of samples."""

    operation: Operation
    values: Mapping[str, Value]
    multiples: Mapping[str, int]

    def given(self, sized: str = "") -> dict[str, Value]:
        """The tensors that go in, by argument; nothing where others go in too: lists of them, and numbers.

        ``sized`` is an argument that may hold numbers.
        """
        found: dict[str, Value] = {}
        for slot, name in self.operation.reads:
            if slot.argument == sized and name in self.multiples:
                continue
            if slot.place is not None or name not in self.values:
                return {}
            found[slot.argument] = self.values[name]
        return found

    def varying(self, argument: str, sized: str = "") -> Value | None:
        """The tensor at an argument, if it differs from sample to sample and no other does."""
        given = self.given(sized)
        alone = [name for name, value in given.items() if value.samples is not None] == [argument]
        return given[argument] if alone else None

    @property
    def made(self) -> list[Value]:
        """All results."""
        return [self.values[name] for name in self.operation.outputs]

    def axes_of(self, argument: str, rank: int) -> set[int]:
        """The axes that an argument names; all where it names none."""
        given = self.operation.arguments.get(argument)
        if given is None or given == ():
            return set(range(rank))
        return {d % rank for d in ((given,) if isinstance(given, int) else given)}


Apart = Callable[[Call], bool]
"""Whether a call treats samples one by one, and leaves them where the record says."""
Axes = Callable[[Call, Value], Mapping[int, int]]
"""Which axes of an argument come out as they went in, entry by entry, and which axes of every result they are."""


def _sits(value: Value, axis: int, made: Value, place: int) -> bool:
    """Whether samples are along an axis of a tensor, and along one of the result in the same way."""
    samples, result = value.samples, made.samples
    if samples is None or result is None or (samples.axis, result.axis) != (axis, place):
        return False
    return (samples.outer, samples.inner) == (result.outer, result.inner) and value.shape[axis] == made.shape[place]


def _beside(value: Value, made: Value) -> bool:
    """Whether a tensor that is broadcast to the result has samples where that has them, or is the same along them."""
    if made.samples is None:
        return False
    axis = made.samples.axis - len(made.shape) + len(value.shape)
    if value.samples is None:
        return axis < 0 or value.shape[axis] == 1
    return _sits(value, axis, made, made.samples.axis)


def by_entry(call: Call) -> bool:
    """Functions of each entry by itself, with broadcasting."""
    given = call.given().values()
    return any(value.samples is not None for value in given) and all(
        _beside(value, made) for value in given for made in call.made
    )


def by_parts(narrows: Narrowing) -> Apart:
    """Calls of which a part along one axis is made of that part of what goes in: along that of the samples."""

    def rule(call: Call) -> bool:
        given, (made,) = call.given(), call.made
        if made.samples is None:
            return False
        parts = narrows(call.values, call.operation, made.samples.axis, 1)
        varying = [name for name, value in given.items() if value.samples is not None]
        if parts is None or parts.changed or not varying or set(parts.axes) != set(varying):
            return False
        return all(_sits(given[name], axis, made, made.samples.axis) for name, axis in parts.axes.items())

    return rule


def along(argument: str, axes: Axes) -> Apart:
    """Calls that leave some axes of an argument as they are, where nothing else differs from sample to sample."""

    def rule(call: Call) -> bool:
        value = call.varying(argument)
        if value is None or value.samples is None:
            return False
        axis = value.samples.axis
        place = axes(call, value).get(axis)
        return place is not None and all(_sits(value, axis, made, place) for made in call.made)

    return rule


def before(count: int, rank: int) -> dict[int, int]:
    """All axes before the last few, where they are."""
    return {axis: axis for axis in range(rank - count)}


def in_front(call: Call, value: Value) -> Mapping[int, int]:
    """The axis before that of the channels."""
    return {0: 0} if len(value.shape) > 1 else {}


def in_front_as(weight: str) -> Axes:
    """The same, where a weight has as many axes: else there is none before that of the channels."""

    def axes(call: Call, value: Value) -> Mapping[int, int]:
        held = call.given().get(weight)
        return {0: 0} if held is not None and len(held.shape) == len(value.shape) else {}

    return axes


def before_windows(call: Call, value: Value) -> Mapping[int, int]:
    """The axes before those that windows run over, of which the name tells how many there are: ``max_pool2d``."""
    windows = re.search(r"(\d)d", call.operation.name)
    return before(int(windows[1]), len(value.shape)) if windows else {}


def before_padded(call: Call, value: Value) -> Mapping[int, int]:
    """The axes before those that are padded: two numbers for each, from the last."""
    return before(len(call.operation.arguments["pad"]) // 2, len(value.shape))


def all_axes(call: Call, value: Value) -> Mapping[int, int]:
    """Each, where it is."""
    return before(0, len(value.shape))


def other_than(argument: str) -> Axes:
    """The axes that an argument does not name, where they are."""

    def axes(call: Call, value: Value) -> Mapping[int, int]:
        rank = len(value.shape)
        return {axis: axis for axis in range(rank) if axis not in call.axes_of(argument, rank)}

    return axes


def beside_part(call: Call, value: Value) -> Mapping[int, int]:
    """The axes other than ``dim``, of which a part is taken; that one too if the part is all of it, as in ``x[:]``."""
    given = call.operation.arguments
    whole = given.get("start") in (None, 0) and given.get("end") in (None, sys.maxsize) and given.get("step") == 1
    return all_axes(call, value) if whole else other_than("dim")(call, value)


def left(call: Call, value: Value) -> Mapping[int, int]:
    """The axes that are left once those that ``dim`` names are gone: with ``keepdim`` they are one long."""
    kept = sorted(other_than("dim")(call, value))
    return {axis: axis if call.operation.arguments.get("keepdim") else place for place, axis in enumerate(kept)}


def joined(new: bool) -> Apart:
    """Tensors of a list end to end along an axis other than the samples', a ``new`` one or one that they have."""

    def rule(call: Call) -> bool:
        (made,), reads = call.made, call.operation.reads
        if made.samples is None or not all(slot.argument == "tensors" and name in call.values for slot, name in reads):
            return False
        place, dim = made.samples.axis, call.operation.arguments["dim"] % len(made.shape)
        axis = place - 1 if new and dim < place else place
        parts = [call.values[name] for _, name in reads]
        return place != dim and all(
            len(part.shape) == len(made.shape) - new and _sits(part, axis, made, place) for part in parts
        )

    return rule


def in_order(sizes: str = "") -> Apart:
    """The same entries in the same order: as many before the samples as there were, and as many behind them.

    ``sizes`` is an argument that says how long each axis of the result is.
    """

    def rule(call: Call) -> bool:
        (made,), value = call.made, call.varying("self", sizes)
        return value is not None and (not sizes or _sized(call, sizes, made)) and _in_order(value, made)

    return rule


def in_order_as(call: Call) -> bool:
    """The same in the shape of another tensor, which has samples too."""
    (made,), given = call.made, call.given()
    if set(given) != {"self", "other"} or made.samples is None or given["other"].shape != made.shape:
        return False
    return given["other"].samples == made.samples and _in_order(given["self"], made)


def _in_order(value: Value, made: Value) -> bool:
    """Whether samples are as far apart in memory before as after."""
    found = [_around(value), _around(made)]
    return None not in found and found[0] == found[1]


def _around(value: Value) -> tuple[int, int] | None:
    """How many entries lie before the samples and behind them, had they an axis of their own; None if there are 0."""
    samples, shape = value.samples, value.shape
    if samples is None or 0 in shape:
        return None
    return prod(shape[: samples.axis]) * samples.outer, samples.inner * prod(shape[samples.axis + 1 :])


def _sized(call: Call, argument: str, made: Value) -> bool:
    """Whether sizes of all axes of the result are what is recorded, for every number of samples; -1 is what is left."""
    sizes: Any = call.operation.arguments[argument]
    if made.samples is None or len(sizes) != len(made.shape):
        return False
    return all(_size_holds(call, size, made, axis) for axis, size in enumerate(sizes))


def _size_holds(call: Call, size: Any, made: Value, axis: int) -> bool:
    of_samples = made.samples is not None and axis == made.samples.axis
    if isinstance(size, Ref):
        return of_samples and call.multiples.get(size.name) == made.shape[axis]
    return bool(size == -1 or (not of_samples and size == made.shape[axis]))


def unflattened(call: Call) -> bool:
    """One axis as several: if it is that of the samples, it is what is left, -1, that follows their number."""
    (made,), value = call.made, call.varying("self")
    if value is None or value.samples is None or made.samples is None:
        return False
    dim, sizes = call.operation.arguments["dim"] % len(value.shape), call.operation.arguments["sizes"]
    if value.samples.axis == dim and dict(enumerate(sizes, dim)).get(made.samples.axis) != -1:
        return False
    return _in_order(value, made)


def squeezed(call: Call) -> bool:
    """Axes that are one long taken away, by their numbers: for a single sample that of the samples is one of them."""
    (made,), value = call.made, call.varying("self")
    if value is None or value.samples is None or value.samples.axis in call.axes_of("dim", len(value.shape)):
        return False
    return _in_order(value, made)


def expanded(call: Call) -> bool:
    """The same entries again and again: those of each sample, or what is the same for all once for each of them."""
    (made,), given = call.made, call.given("size")
    if list(given) != ["self"] or not _sized(call, "size", made):
        return False
    return _beside(given["self"], made)


def attended(call: Call) -> bool:
    """Attention of each sample to itself: samples before the axes of positions, and of heads that come in groups."""
    (made,), given = call.made, call.given()
    behind = 3 if call.operation.arguments.get("enable_gqa") else 2
    three = [given[name] for name in ("query", "key", "value") if name in given]
    if len(three) < 3 or made.samples is None or made.samples.axis >= len(made.shape) - behind:
        return False
    axis = made.samples.axis
    alike = all(len(v.shape) == len(made.shape) and _sits(v, axis, made, axis) for v in three)
    return alike and ("attn_mask" not in given or _beside(given["attn_mask"], made))


def multiplied(first: str, second: str) -> Apart:
    """Products of matrices: samples in stacks of them, or along the rows of the first."""

    def rule(call: Call) -> bool:
        (made,), given = call.made, call.given()
        if set(given) != {first, second} or made.samples is None:
            return False
        a, b, behind = given[first], given[second], len(made.shape) - made.samples.axis
        if min(len(a.shape), len(b.shape)) < 2 or behind == 1:
            return False
        if behind == 2:
            return b.samples is None and _sits(a, len(a.shape) - 2, made, made.samples.axis)
        varying = a.samples is not None or b.samples is not None
        return varying and _beside(a, made) and _beside(b, made)

    return rule
