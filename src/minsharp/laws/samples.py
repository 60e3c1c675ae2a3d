"""The law of samples."""

from collections.abc import Iterator, Mapping
from itertools import islice, product
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..graph.records import Graph, Operation, Samples, Value
from ..network.mixing import picked_samples
from ..operations import row
from ..rules.apart import Call
from .close import close
from .trial import Trial

_MOST = 2000  # ways to place samples in what goes in
Places = Mapping[str, Samples | None]
"""Where the samples sit in tensors, by name; nowhere in what is the same for all of them."""


def samples_law(trial: Trial) -> Iterator[str]:
    """Where a row says that samples go their own way, along whatever axes, others of them give the same for each."""
    graph = trial.network.graph
    values = trial.network.state() | trial.network.bind(trial.probe.draw(4, 5 + trial.seed))
    with torch.no_grad():
        graph.run(values)
        for operation in trial.calls(graph):
            if row(operation).apart is not None and all(isinstance(values[name], Tensor) for name in operation.outputs):
                yield from _Seated(graph, operation, values).violations(trial.tolerance)


class _Seated:
    """One call, with samples along any axes of what goes in and comes out."""

    def __init__(self, graph: Graph, operation: Operation, values: Mapping[str, Any]):
        self.graph, self.operation = graph, operation
        self.names = list(dict.fromkeys(name for _, name in operation.reads))
        self.values = {name: values[name] for name in (*self.names, *operation.outputs)}
        self.tensors = {name: value for name, value in self.values.items() if isinstance(value, Tensor)}
        self.bound = values

    def violations(self, tolerance: float) -> Iterator[str]:
        sizes = {size for tensor in self.tensors.values() for size in tensor.shape}
        for n in sorted({n for size in sizes for n in range(2, size + 1) if size % n == 0}):
            for places in self._seatings(n):
                wrong = self._wrong(places, n, tolerance) if self._is_claimed(places, n) else None
                if wrong is not None:
                    seats = {name: place for name, place in places.items() if place is not None}
                    yield f"samples, {self.operation.name}: {n} samples at {seats} {wrong}"

    def _seatings(self, n: int) -> Iterator[Places]:
        """Every way in which n samples may sit in what goes in, and in all results alike; of very many, some."""
        given = [name for name in self.names if name in self.tensors]
        ways = [[None, *_ways(self.tensors[name], n)] for name in given]
        results = [list(_ways(self.tensors[name], n)) for name in self.operation.outputs]
        step = prod(map(len, ways)) // _MOST | 1
        for places in islice(product(*ways), 0, None, step):
            if any(place is not None for place in places):
                for at in results[0]:
                    if all(at in others for others in results):
                        yield {**dict(zip(given, places, strict=True)), **dict.fromkeys(self.operation.outputs, at)}

    def _is_claimed(self, places: Places, n: int) -> bool:
        values = {name: self._record(name, places[name], n) for name in self.tensors}
        numbers = {name: v for name, v in self.values.items() if isinstance(v, int) and v % n == 0}
        rule = row(self.operation).apart
        return rule is not None and rule(Call(self.operation, values, {name: v // n for name, v in numbers.items()}))

    def _record(self, name: str, samples: Samples | None, n: int) -> Value:
        shape, dtype = list(self.tensors[name].shape), self.tensors[name].dtype
        if samples is not None:
            shape[samples.axis] //= n
        return Value(name, "activation", tuple(shape), dtype, samples)

    def _wrong(self, places: Places, n: int, tolerance: float) -> str | None:
        """What is wrong if some of the samples go in, in another order or more than once."""
        for batch in ((*range(1, n), 0), (n - 1, 0), (0,), (*range(n), 0)):
            try:
                made = self._made(places, n, batch)
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                return f"do not go through as {batch}: {error}"
            for name, tensor in made.items():
                if not close(tensor, self._picked(name, places, n, batch), tolerance):
                    return f"come out otherwise as {batch}"
        return None

    def _made(self, places: Places, n: int, batch: tuple[int, ...]) -> dict[str, Tensor]:
        values = dict(self.bound)
        for name in self.names:
            known = self.values[name]
            values[name] = known // n * len(batch) if isinstance(known, int) else self._picked(name, places, n, batch)
        self.operation.run(values)
        return {name: values[name] for name in self.operation.outputs}

    def _picked(self, name: str, places: Places, n: int, batch: tuple[int, ...]) -> Tensor:
        samples = places[name]
        return self.tensors[name] if samples is None else picked_samples(self.tensors[name], samples, batch, n)


def _ways(tensor: Tensor, n: int) -> Iterator[Samples]:
    """Every way in which n samples may sit along an axis."""
    for axis, size in enumerate(tensor.shape):
        if size and size % n == 0:
            parts = size // n
            yield from (Samples(axis, outer, parts // outer) for outer in range(1, parts + 1) if parts % outer == 0)
