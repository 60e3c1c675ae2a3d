"""Every place along an axis taken by itself: one operation instead of several, and one stack of what comes back."""

from collections import defaultdict
from dataclasses import replace

import torch

from ..graph.records import Graph, Operation


def unbound(graph: Graph) -> Graph:
    """The graph with ``unbind`` where each place along an axis of a value is selected once: queries, keys, values."""
    instead: dict[Operation, Operation | None] = {}
    for (name, axis), found in _picked(graph).items():
        value = graph.values[name]
        if value.samples is None or value.samples.axis == axis or not 1 < value.shape[axis] == len(found):
            continue
        first = min(found.values(), key=graph.operations.index)
        outputs = tuple(found[index].outputs[0] for index in range(len(found)))
        instead |= dict.fromkeys(found.values()) | {first: _unbind(first, axis, outputs)}
    if not instead:
        return graph
    operations = (instead.get(operation, operation) for operation in graph.operations)
    return replace(graph, operations=tuple(operation for operation in operations if operation is not None))


def _picked(graph: Graph) -> dict[tuple[str, int], dict[int, Operation]]:
    """By value and axis, what is selected along it, by place: the first of those that select the same."""
    picked: dict[tuple[str, int], dict[int, Operation]] = defaultdict(dict)
    for operation in graph.operations:
        names = [name for _, name in operation.reads]
        if operation.name == "select" and len(names) == 1 and names[0] in graph.values:
            shape = graph.values[names[0]].shape
            axis = operation.arguments["dim"] % len(shape)
            picked[names[0], axis].setdefault(operation.arguments["index"] % shape[axis], operation)
    return picked


def _unbind(select: Operation, axis: int, outputs: tuple[str, ...]) -> Operation:
    arguments = {"self": select.arguments["self"], "dim": axis}
    target = torch.ops.aten.unbind.int
    return replace(
        select, name="unbind", target=target, arguments=arguments, keywords=frozenset(), outputs=outputs, many=True
    )
