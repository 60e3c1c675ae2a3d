"""The one table, all families together, and what is read off a row for a call."""

from collections.abc import Iterable

from ..graph.records import Graph, Operation
from ..graph.slots import Slot
from ..rules.row import Row
from . import (
    attention,
    casts,
    convolution,
    distances,
    einsum,
    elementwise,
    embedding,
    linear,
    norms,
    pooled_convolution,
    pools,
    reductions,
    shapes,
)

FAMILIES = (
    linear,
    einsum,
    convolution,
    embedding,
    norms,
    elementwise,
    pools,
    shapes,
    reductions,
    attention,
    casts,
    distances,
    pooled_convolution,
)


class Table(dict[str, Row]):
    """Rows by the names of operations: ``linear`` of torch's own, ``library::name`` of all others.

    ``edition`` changes with every change of a row. What is remembered of a network and follows from the table, which
    parameters are exact, what the engine will do, which rescalings there are, is remembered for one edition.
    """

    edition = 0

    def __setitem__(self, name: str, row: Row) -> None:
        self.edition += 1
        super().__setitem__(name, row)

    def __delitem__(self, name: str) -> None:
        self.edition += 1
        super().__delitem__(name)


TABLE = Table({name: row for family in FAMILIES for name, row in family.ROWS.items()})
BUILT_IN = frozenset(TABLE)

_UNKNOWN = Row("1")  # names no argument: nonlinear in, and pinning, whatever goes in


def row(operation: Operation) -> Row:
    """The row of an operation."""
    found = TABLE.get(operation.name, _UNKNOWN)
    return found.otherwise or _UNKNOWN if found.unless and operation.arguments.get(found.unless) else found


def passing(operation: Operation) -> list[tuple[Slot, str]]:
    """The (slot, value name) pairs through which derivatives may pass: not what is detached, ignored or compared."""
    known = row(operation)
    if known.detaches:
        return []
    flat = known.formula_of(operation).flat
    return [(s, name) for s, name in operation.reads if s not in flat and s.argument not in known.ignores]


def dependence(graph: Graph, parameters: Iterable[str]) -> dict[str, frozenset[str]]:
    """For every value that depends on some of the parameters, which ones."""
    depends = {name: frozenset({name}) for name in parameters}
    for operation in graph.operations:
        behind = frozenset().union(*(depends.get(name, frozenset()) for _, name in passing(operation)))
        for output in operation.outputs:
            value = graph.values.get(output)
            if behind and value is not None and value.dtype.is_floating_point:
                depends[output] = behind
    return depends
