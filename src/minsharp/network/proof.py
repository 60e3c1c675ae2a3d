"""Whether the records alone show that each sample goes its own way: then no run has to.

Each operation is told by its row, from where the samples sit in what goes in and in what comes out. One that is not
known, or is known to look along the samples, leaves the question open: then `apart` runs the network to see.
"""

import torch

from ..graph.records import Graph, Operation
from ..operations import TABLE, row
from ..rules.apart import Call


def proved_apart(graph: Graph) -> bool:
    """Whether every value is made sample by sample, in one way for all samples, as the rows of the table have it."""
    multiples: dict[str, int] = {}
    for operation in graph.operations:
        if operation.name == "sym_size":
            if not _is_number_of_samples(graph, operation, multiples):
                return False
        elif not _is_proved(Call(operation, graph.values, multiples)):
            return False
    return True


def _is_number_of_samples(graph: Graph, operation: Operation, multiples: dict[str, int]) -> bool:
    """Whether a size is that of the axis of the samples; adds how many times their number it is."""
    value = graph.values.get(operation.by_argument.get("self", ""))
    dim = operation.arguments.get("dim")
    if value is None or value.samples is None or not isinstance(dim, int):
        return False
    axis = dim % len(value.shape)
    if axis == value.samples.axis:
        multiples[operation.outputs[0]] = value.shape[axis]
    return axis == value.samples.axis


def _is_proved(call: Call) -> bool:
    """Whether one operation of torch's own, that writes nowhere, treats samples one by one or sees none of them."""
    operation, values = call.operation, call.values
    target = operation.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or target._schema.is_mutable:
        return False
    if any(name not in values for name in operation.outputs):
        return False
    if all(name in values and values[name].samples is None for _, name in operation.reads):
        return all(values[name].samples is None for name in operation.outputs)
    rule = row(operation).apart
    return operation.name in TABLE and rule is not None and rule(call)
