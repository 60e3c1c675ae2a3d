"""A network as plain frozen records: what the reader writes and everything after it reads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import ReadError
from ..frozen import FrozenDict
from ..text import printable
from .slots import Slot

ValueKind = Literal["parameter", "buffer", "constant", "input", "activation"]


@dataclass(frozen=True)
class Samples:
    """Where the samples sit in a tensor: axis ``axis`` runs over (outer, n, inner)."""

    axis: int
    outer: int = 1
    inner: int = 1

    def split(self, tensor: Tensor, n: int) -> Tensor:
        """Bring the samples to the front: ``(..., outer*n*inner, ...) -> (n, ..., outer*inner, ...)``."""
        if self.outer == 1 and self.axis == 0:
            return tensor.unflatten(0, (n, self.inner))
        parts = tensor.unflatten(self.axis, (self.outer, n, self.inner))
        return parts.movedim(self.axis + 1, 0).flatten(self.axis + 1, self.axis + 2)

    def split_columns(self, stack: Tensor, n: int) -> Tensor:
        """The same for stacked cotangents: ``(R, ..., outer*n*inner, ...) -> (n, R, ..., outer*inner, ...)``."""
        return Samples(self.axis + 1, self.outer, self.inner).split(stack, n)


@dataclass(frozen=True)
class Ref:
    """Stands in an operation's arguments for the value of that name."""

    name: str


DEVICE = Ref("#device")
"""Stands wherever the graph names a device: the network runs where its parameters are now."""


@dataclass(frozen=True)
class Value:
    """A tensor of the network; ``shape`` is its shape for a batch of one sample."""

    name: str
    kind: ValueKind
    shape: tuple[int, ...]
    dtype: torch.dtype
    samples: Samples | None = None

    @property
    def numel(self) -> int:
        """Entries per sample: the product of ``shape``."""
        return prod(self.shape)


@dataclass(frozen=True, eq=False)
class Operation:
    """One call: ``outputs = target(**arguments)``, with a Ref wherever a value goes in.

    ``name`` is the table's key (``linear``, ``mylib::scaled_relu``); ``module`` is the path of the module that made the
    call and ``source`` the line of the user's code, both for messages.
    """

    name: str
    target: Callable[..., Any]
    arguments: Mapping[str, Any]
    keywords: frozenset[str]
    outputs: tuple[str, ...]
    many: bool = False
    module: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        self.__dict__["arguments"] = FrozenDict(self.arguments)

    @cached_property
    def reads(self) -> tuple[tuple[Slot, str], ...]:
        """Every (slot, value name) pair that goes in, those of lists place by place."""
        return tuple(pair for argument, given in self.arguments.items() for pair in _references(argument, given))

    @cached_property
    def by_argument(self) -> dict[str, str]:
        """The names of the values that go in by themselves, not in a list, by argument."""
        return {slot.argument: name for slot, name in self.reads if slot.place is None}

    @property
    def does(self) -> tuple[Any, ...]:
        """What it does, wherever in the code it stands."""
        return self.target, dict(self.arguments), self.keywords, self.outputs, self.many

    def bind(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with every Ref replaced by its value."""
        return {name: _resolve(given, values) for name, given in self.arguments.items()}

    def call(self, bound: Mapping[str, Any]) -> Any:
        """Run the operation on arguments that `bind` made."""
        if not self.keywords:
            return self.target(*bound.values())
        positional = [value for name, value in bound.items() if name not in self.keywords]
        return self.target(*positional, **{name: bound[name] for name in self.keywords})

    def run(self, values: dict[str, Any]) -> None:
        """Run the operation on values by name; adds its results."""
        store(values, self, self.call(self.bind(values)))

    def __getstate__(self) -> dict[str, Any]:
        """An operation of torch goes by its name, for it does not pickle."""
        target = self.target
        named = isinstance(target, torch._ops.OpOverload)
        return {**self.__dict__, "target": str(target) if named else target}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(state["target"], str):
            self.__dict__["target"] = _operation(state["target"])

    @property
    def where(self) -> str:
        """The operation and its place, for messages."""
        place = f"module '{self.module}'" if self.module else "the model's forward"
        return printable(f"{self.name} in {place}" + (f" ({self.source})" if self.source else ""))


def table_name(target: torch._ops.OpOverload) -> str:
    """What the table calls an operation: ``linear`` for torch's own, ``library::name`` for all others."""
    return str(target._schema.name).removeprefix("aten::")


def _operation(name: str) -> Callable[..., Any]:
    """An operation of torch by its name, ``aten.linear.default``."""
    library, packet, overload = name.split(".")
    try:
        found: Callable[..., Any] = getattr(getattr(getattr(torch.ops, library), packet), overload)
    except AttributeError:
        raise ReadError(f"torch has no operation {name} here: import the module that defines it first") from None
    return found


def _references(argument: str, given: Any) -> Iterator[tuple[Slot, str]]:
    items = enumerate(given) if isinstance(given, tuple) else [(None, given)]
    for place, item in items:
        if isinstance(item, Ref) and item != DEVICE:
            yield Slot(argument, place), item.name


def _resolve(given: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(given, Ref):
        return values[given.name]
    if isinstance(given, tuple):
        return [_resolve(item, values) for item in given]
    return given


@dataclass(frozen=True, eq=False)
class Graph:
    """The whole network: its values by name, and its operations in the order they run."""

    values: Mapping[str, Value]
    operations: tuple[Operation, ...]
    output: str
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    """The values that forward itself holds: neither parameter nor buffer."""

    def __post_init__(self) -> None:
        self.__dict__.update(values=FrozenDict(self.values), constants=FrozenDict(self.constants))

    def of_kind(self, kind: ValueKind) -> tuple[Value, ...]:
        """The values of one kind, in order."""
        return tuple(value for value in self.values.values() if value.kind == kind)

    def run(self, values: dict[str, Any]) -> dict[str, Any]:
        """Run every operation on the values of parameters, buffers, constants and inputs; adds the results."""
        for operation in self.operations:
            operation.run(values)
        return values

    @cached_property
    def dead_after(self) -> tuple[tuple[str, ...], ...]:
        """For each operation the values that nothing after it needs."""
        return dead_after(self.operations, self.output)

    def same_as(self, other: "Graph") -> bool:
        """Whether another graph has the same values, operations and constants, line by line."""
        if self is other:
            return True
        lines = [([o.does for o in g.operations], dict(g.values), g.output, list(g.constants)) for g in (self, other)]
        return lines[0] == lines[1] and all(torch.equal(t, other.constants[n]) for n, t in self.constants.items())

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters that the forward pass uses."""
        return tuple(value.name for value in self.of_kind("parameter"))

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """What forward is called with."""
        return self.of_kind("input")


def renamed(operation: Operation, names: Mapping[str, str]) -> Operation:
    """The operation reading other values instead of some."""

    def other(given: Any) -> Any:
        if isinstance(given, tuple):
            return tuple(other(item) for item in given)
        return Ref(names[given.name]) if isinstance(given, Ref) and given.name in names else given

    if all(name not in names for _, name in operation.reads):
        return operation
    return replace(operation, arguments={name: other(given) for name, given in operation.arguments.items()})


def with_double_types(bound: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with float64 wherever they name another floating point type."""
    return {
        name: torch.float64 if isinstance(given, torch.dtype) and given.is_floating_point else given
        for name, given in bound.items()
    }


def dead_after(operations: Sequence[Operation], output: str) -> tuple[tuple[str, ...], ...]:
    """For each operation the values that nothing after it needs; the output is needed to the end."""
    last: dict[str, int] = {}
    for i, operation in enumerate(operations):
        last |= {name: i for _, name in operation.reads} | dict.fromkeys(operation.outputs, i)
    last.pop(output, None)
    dead: list[list[str]] = [[] for _ in operations]
    for name, i in last.items():
        dead[i].append(name)
    return tuple(map(tuple, dead))


def store(values: dict[str, Any], operation: Operation, result: Any) -> None:
    """Write an operation's result, or its several results, under their names."""
    if operation.many:
        values.update(zip(operation.outputs, result, strict=False))
    else:
        values[operation.outputs[0]] = result
