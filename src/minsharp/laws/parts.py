"""The law of parts."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from ..graph.records import Operation
from ..operations import row
from ..rules.narrowing import Parts
from .close import close
from .trial import Trial


def parts_law(trial: Trial) -> Iterator[str]:
    """On the parts that a row says are enough, the call makes that part of the result."""
    graph = trial.network.graph
    values = trial.network.state() | trial.network.bind(trial.probe.draw(3, 5 + trial.seed))
    with torch.no_grad():
        graph.run(values)
    for operation in trial.calls(graph):
        rule, made = row(operation).narrows, graph.values.get(operation.outputs[0])
        if rule is None or made is None or operation.many:
            continue
        for axis, size in enumerate(made.shape):
            if size < 2 or made.samples is None or made.samples.axis == axis:
                continue
            parts = rule(graph.values, operation, axis, 1)
            if parts is not None and not _along_samples(trial, operation, parts):
                yield from _of_parts(trial, operation, values, axis, parts)


def _along_samples(trial: Trial, operation: Operation, parts: Parts) -> bool:
    given = {a: trial.network.graph.values[operation.by_argument[a]].samples for a in parts.axes}
    return any(samples is not None and samples.axis == parts.axes[a] for a, samples in given.items())


def _of_parts(trial: Trial, operation: Operation, values: dict[str, Any], axis: int, parts: Parts) -> Iterator[str]:
    whole = values[operation.outputs[0]]
    bound = replace(operation, arguments={**operation.arguments, **parts.changed}).bind(values)
    for start in (0, whole.shape[axis] - 1):
        cut = {argument: bound[argument].narrow(place, start, 1) for argument, place in parts.axes.items()}
        with torch.no_grad():
            made = operation.call({**bound, **cut})
        if not close(made, whole.narrow(axis, start, 1), trial.tolerance):
            yield f"parts, {operation.name}: place {start} along axis {axis} is not made of {dict(parts.axes)}"
