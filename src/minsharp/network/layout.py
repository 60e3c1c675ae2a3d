"""Where the samples of a batch sit in a tensor."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch

from ..errors import ReadError
from ..graph.records import Operation, Samples, Value
from ..operations import row

SIZES = (*range(1, 66), 100, 127, 128, 256, 1000, 1023, 1024, 4096, 10_007)
"""Batch sizes at which what has to hold for all of them is tried."""


_FILLED = {name for kind in ("zeros", "ones", "full", "empty") for name in (kind, f"new_{kind}")}
"""Operations that make a tensor of one number, or of none in particular."""


def one_sample(shape: torch.Size, known: Mapping[Any, int]) -> tuple[tuple[int, ...], list[int]]:
    """The shape for a batch of one, and the axes that grow with the batch; the values of some symbols are known."""
    sizes: list[int] = []
    axes: list[int] = []
    size: Any
    for d, size in enumerate(shape):
        expression = size if isinstance(size, int) else size.node.expr.subs(known)
        if isinstance(expression, int) or not expression.free_symbols:
            sizes.append(int(expression))
            continue
        at = [int(expression.subs(dict.fromkeys(expression.free_symbols, n))) for n in (2, 3, 5)]
        coefficient = at[1] - at[0]
        if at != [2 * coefficient, 3 * coefficient, 5 * coefficient]:
            raise ReadError(f"a tensor has the size {size} for a batch of size s: not a multiple of the batch")
        sizes.append(coefficient)
        axes.append(d)
    return tuple(sizes), axes


def settled(number: Any) -> int | float | None:
    """A number that is made of the batch size and comes out the same for every batch: there it cancels. Else None."""
    if not isinstance(number, torch.SymInt | torch.SymFloat):
        return None
    kind = int if isinstance(number, torch.SymInt) else float
    return _settled(number.node.expr, kind)


@lru_cache(maxsize=1024)
def _settled(expression: Any, kind: type[int] | type[float]) -> int | float | None:
    found = (kind(expression.subs(dict.fromkeys(expression.free_symbols, n))) for n in SIZES)
    try:
        first = next(found)
        return first if all(number == first for number in found) else None
    except (ArithmeticError, TypeError, ValueError):  # no number at all for some batch
        return None


def locate(
    shape: tuple[int, ...], axis: int, operation: Operation, sources: list[Value], like: Sequence[Value] = ()
) -> Samples:
    """Where along its axis the samples sit, if that axis also runs over something else.

    ``like`` are values of which only the shape is used: what is made of none of the samples, as zeros like a tensor
    are, has them where that tensor has them.
    """
    parts = shape[axis]
    if parts == 1:
        return Samples(axis)
    known = row(operation)
    same = _layouts(like, parts)
    if len(same) == 1 and all(value.samples is None for value in sources):
        return Samples(axis, *same.pop())
    varying = [value for value in sources if value.samples is not None]
    if operation.name in _FILLED:  # each sample's entries are alike, in whatever order; one after the other is usual
        return Samples(axis, 1, parts)
    if known.in_order:
        (source,) = varying
        assert source.samples is not None
        step = source.samples.inner * prod(source.shape[source.samples.axis + 1 :])
        inner, rest = divmod(step, prod(shape[axis + 1 :]))
        if rest == 0 and inner and parts % inner == 0:
            return Samples(axis, parts // inner, inner)
    if known.copies and len(sources) == 1:
        return _copied(shape, axis, sources[0], known.copies == "blocks")
    if known.joins:
        inners = {v.samples.inner for v in varying if v.samples is not None}
        if inners == {1} and sum(v.shape[axis] for v in varying) == parts:
            return Samples(axis, parts, 1)
    layouts = _layouts(varying, parts)
    if len(layouts) == 1:
        return Samples(axis, *layouts.pop())
    raise ReadError(f"cannot follow the samples through {operation.where}: it joins them with another axis")


def _layouts(values: Iterable[Value], parts: int) -> set[tuple[int, int]]:
    """How samples share an axis with so many other parts: outside and inside of them."""
    found = (value.samples for value in values if value.samples is not None)
    return {(samples.outer, samples.inner) for samples in found if samples.outer * samples.inner == parts}


def _copied(shape: tuple[int, ...], axis: int, source: Value, blocks: bool) -> Samples:
    """Copies of a tensor along an axis, made of the whole axis (blocks) or of each entry of it.

    With samples on the axis, there are so many for each; without, it is the copies that are as many as the samples.
    """
    own = axis - len(shape) + len(source.shape)  # the same axis of the source, if it has it
    size = source.shape[own] if 0 <= own < len(source.shape) else 1
    copies = shape[axis] // max(size, 1)
    if source.samples is not None:
        outer, inner = source.samples.outer, source.samples.inner
        return Samples(axis, outer * copies, inner) if blocks else Samples(axis, outer, inner * copies)
    return Samples(axis, 1, shape[axis]) if blocks else Samples(axis, size, copies)
