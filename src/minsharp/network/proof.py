"""Whether the records alone show that each sample goes its own way: then no run has to.

Each operation is told by its row, from where the samples sit in what goes in and in what comes out. One that is not
known, or is known to look along the samples, leaves the question open: then `apart` runs the network to see.
"""

import operator
from collections.abc import Mapping
from math import prod
from typing import Any

import torch

from ..graph.records import Graph, Operation, Ref
from ..operations import TABLE, row
from ..rules.apart import Call


def proved_apart(graph: Graph) -> bool:
    """Whether every value is made sample by sample, in one way for all samples, as the rows of the table have it."""
    multiples: dict[str, int] = {}
    for operation in graph.operations:
        if operation.outputs[0] not in graph.values:
            number = _multiple(graph, operation, multiples)
            if number is None:
                return False
            multiples[operation.outputs[0]] = number
        elif not _is_proved(Call(operation, graph.values, multiples)):
            return False
    return True


def _multiple(graph: Graph, operation: Operation, multiples: Mapping[str, int]) -> int | None:
    """How many times the number of samples a number is: the size of their axis, or so many times such a size."""
    given = list(operation.arguments.values())
    if operation.name == "sym_size":
        value, dim = graph.values.get(operation.by_argument.get("self", "")), operation.arguments.get("dim")
        if value is None or value.samples is None or dim is None or dim % len(value.shape) != value.samples.axis:
            return None
        return value.shape[value.samples.axis]
    if operation.target is operator.mul and sum(isinstance(number, Ref) for number in given) == 1:
        times: list[Any] = [multiples.get(number.name) if isinstance(number, Ref) else number for number in given]
        return prod(times) if all(type(number) is int for number in times) else None
    return None


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
