"""What is looked at only in part is worked out only there: a class token at the end of a transformer.

Where every reader of a value takes a part of it along one axis, as ``x[:, 0]`` does, and the operation that makes the
value treats that axis part by part, it is run on parts of what goes in. So the part is taken further and further up,
through norms, linear layers and residual connections, and stops where something looks along the axis: at the keys
and values of the last attention. Neither the forward pass nor any column visits the rest, which has no derivative.
"""

from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch

from ..graph.records import Graph, Operation, Ref, Value, renamed
from ..rules.narrowing import Parts
from .table import row

SMALL = 2
"""A part has to be at most one of so many: else little is saved, and taking it costs something."""


class _Part(NamedTuple):
    """From start to stop along an axis."""

    axis: int
    start: int
    stop: int


def narrowed(graph: Graph, depends: Container[str]) -> Graph:
    """The graph with parts of values in place of values, for measuring some of the parameters."""
    work = _Work(graph, depends)
    for operation in reversed(graph.operations):
        work.narrow(operation)
    return work.result()


class _Work:
    """Operations by the value that they make, and those that read it, as they are so far."""

    def __init__(self, graph: Graph, depends: Container[str]):
        self.graph, self.depends = graph, depends
        self.values = dict(graph.values)
        self.now = {operation.outputs: operation for operation in graph.operations}
        self.readers: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        for operation in graph.operations:
            self._reads(operation)
        self.taken: dict[str, list[Operation]] = defaultdict(list)
        """By value, the operations that take parts of it."""

    def _reads(self, operation: Operation) -> None:
        for _, name in operation.reads:
            self.readers[name].add(operation.outputs)

    def narrow(self, operation: Operation) -> None:
        """Run an operation for a part only, if that is all that is looked at and parts of its inputs are enough."""
        rule, out = row(operation).narrows, operation.outputs[0]
        looks = self._looks(out) if rule is not None and not operation.many and out in self.values else {}
        whole = self._hull(out, looks)
        if rule is None or whole is None:
            return
        parts = rule(self.values, operation, whole.axis, whole.stop - whole.start)
        if parts is None or not self._may_take(operation, parts):
            return
        for reader, part in looks.items():
            self.now[reader] = _shifted(self.now[reader], part, whole.start)
        self._run_on(operation, parts, whole)

    def _looks(self, name: str) -> dict[tuple[str, ...], _Part]:
        """Its readers, and the part that each takes, if all take parts of a value that others do not know."""
        found = {reader: _part(self.now[reader], name, self.values[name].shape) for reader in self.readers[name]}
        parts = {reader: part for reader, part in found.items() if part is not None}
        return parts if len(parts) == len(found) and name != self.graph.output else {}

    def _hull(self, name: str, looks: Mapping[tuple[str, ...], _Part]) -> _Part | None:
        """From the first to the last that is looked at, if that is little, and not along the samples."""
        axes = {part.axis for part in looks.values()}
        samples = self.values[name].samples if name in self.values else None
        if len(axes) != 1 or samples is None or samples.axis in axes:
            return None
        (axis,) = axes
        start, stop = min(part.start for part in looks.values()), max(part.stop for part in looks.values())
        return _Part(axis, start, stop) if SMALL * (stop - start) <= self.values[name].shape[axis] else None

    def _may_take(self, operation: Operation, parts: Parts) -> bool:
        """Not of parameters, and not along the axis of the samples."""
        names = operation.by_argument
        values = {argument: self.values[names[argument]] for argument in parts.axes}
        return all(
            value.name not in self.depends if value.samples is None else value.samples.axis != parts.axes[argument]
            for argument, value in values.items()
        )

    def _run_on(self, operation: Operation, parts: Parts, part: _Part) -> None:
        """Replace the operation by the same on parts."""
        out, arguments = operation.outputs[0], {**operation.arguments, **parts.changed}
        for _, name in operation.reads:
            self.readers[name].discard(operation.outputs)
        for argument, axis in parts.axes.items():
            name = operation.by_argument[argument]
            arguments[argument] = Ref(self._slice(operation, self.values[name], part._replace(axis=axis)))
        self.now[operation.outputs] = narrow = replace(operation, arguments=arguments)
        self._reads(narrow)
        self.values[out] = _cut(self.values[out], part, out)

    def _slice(self, operation: Operation, value: Value, part: _Part) -> str:
        """The name of a part of a value."""
        name = f"{value.name}#{part.axis}:{part.start}:{part.stop}"
        if name not in self.values:
            arguments = {"self": Ref(value.name), "dim": part.axis, "start": part.start, "end": part.stop, "step": 1}
            take = replace(
                operation,
                name="slice",
                target=torch.ops.aten.slice.Tensor,
                arguments=arguments,
                keywords=frozenset(),
                outputs=(name,),
            )
            self.values[name] = _cut(value, part, name)
            self.now[take.outputs] = take
            self.taken[value.name].append(take)
            self._reads(take)
        return name

    def result(self) -> Graph:
        """The graph, with each part taken as soon as the value is there; parts that became the whole go by its name."""
        if not self.taken:
            return self.graph
        made = {name for operation in self.graph.operations for name in operation.outputs}
        order = [take for name, takes in self.taken.items() if name not in made for take in takes]
        for operation in self.graph.operations:
            order += [operation, *(take for name in operation.outputs for take in self.taken.get(name, ()))]
        operations, whole = list[Operation](), dict[str, str]()
        for operation in order:
            now, name = renamed(self.now[operation.outputs], whole), operation.outputs[0]
            if name in self.graph.values or name not in self.values or not self._takes_all(now):
                operations.append(now)
                continue
            whole[name] = now.reads[0][1]
            del self.values[name]
        return replace(self.graph, values=self.values, operations=tuple(operations))

    def _takes_all(self, take: Operation) -> bool:
        (_, name), made = take.reads[0], take.outputs[0]
        return self.values[name].shape == self.values[made].shape


def _part(reader: Operation, name: str, shape: tuple[int, ...]) -> _Part | None:
    """What an operation takes of a value, if it takes a part of it."""
    if reader.name not in ("select", "slice") or [read for _, read in reader.reads] != [name]:
        return None
    given = reader.arguments
    axis = given["dim"] % len(shape)
    if reader.name == "select":
        start = given["index"] % shape[axis]
        return _Part(axis, start, start + 1)
    start, stop, step = slice(given["start"], given["end"], given["step"]).indices(shape[axis])  # all of them numbers
    return _Part(axis, start, stop) if step == 1 and start < stop else None


def _shifted(reader: Operation, part: _Part, start: int) -> Operation:
    """The same part of what begins at ``start``."""
    first, last = part.start - start, part.stop - start
    instead = {"index": first} if reader.name == "select" else {"start": first, "end": last}
    return replace(reader, arguments={**reader.arguments, **instead})


def _cut(value: Value, part: _Part, name: str) -> Value:
    """A part of a value under a name."""
    shape = (*value.shape[: part.axis], part.stop - part.start, *value.shape[part.axis + 1 :])
    return replace(value, name=name, shape=shape)
