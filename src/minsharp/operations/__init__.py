"""The one table: what minsharp knows about each operation, family by family.

A row says how the result depends on the arguments (`formula`, from which exactness and rescaling follow), how
cotangents pass back (`pull`), how they contract with a parameter at each argument (`contract`), and how scales pass
through channel by channel (`channels`). To teach minsharp an operation, add one row to the family where it belongs.
Only the formula is required: without `pull` and `contract` the engine goes through autograd, slower and just as right,
and without `channels` all entries of a tensor are scaled alike. An operation that is not in the table counts as
nonlinear in everything.
"""

from collections.abc import Iterable

from ..graph.records import Graph, Operation
from ..rules.row import Row
from . import (
    attention,
    casts,
    convolution,
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
    convolution,
    embedding,
    norms,
    elementwise,
    pools,
    shapes,
    reductions,
    attention,
    casts,
    pooled_convolution,
)
TABLE: dict[str, Row] = {name: row for family in FAMILIES for name, row in family.ROWS.items()}

_UNKNOWN = Row("1")  # names no argument: nonlinear in, and pinning, whatever goes in


def row(operation: Operation) -> Row:
    """The row of an operation."""
    found = TABLE.get(operation.name, _UNKNOWN)
    return found.otherwise or _UNKNOWN if found.unless and operation.arguments.get(found.unless) else found


def passing(operation: Operation) -> list[tuple[str, str]]:
    """The (slot, value name) pairs through which derivatives may pass: not what is detached, ignored or compared."""
    known = row(operation)
    if known.detaches:
        return []
    idle = {*known.ignores, *known.formula_of(operation).flat}
    return [(slot, name) for slot, name in operation.reads if slot not in idle]


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
