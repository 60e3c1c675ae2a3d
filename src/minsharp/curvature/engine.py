"""The exact curvature of every parameter, streamed over the data.

For each chunk of samples: one forward pass; the columns of the loss factor S at the outputs; all columns pulled back
through the records in one backward sweep; at each parameter one contraction of the cotangents with what went in.
Cotangents never reach the weights, and none outlives its use. With J_P = do/dP,

    trace     sum_i ||S_i^T J_iP||_F^2        diagonal    sum_i sum_k (S_i^T J_iP)_k^2, entry by entry

or whatever else a `Quantity` makes of S_i^T J_iP.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, LossError, NonFiniteError
from ..graph.records import DEVICE, store
from ..losses import Columns, Factor, Loss
from ..losses.factor import Rows
from ..losses.wording import shape_of
from ..network.finite import first_non_finite, is_finite
from ..network.network import Network
from ..operations import row
from ..results.sums import CurvatureSum
from ..rules.contraction import Use, squares_of_rows
from ..rules.pullback import HALVES, Pull, wide, widened
from ..subject.batches import Batch, chunks
from ..subject.inputs import missing_rows
from .head import LastLayer, find_head
from .quantities import Leaf, Place, Quantity
from .schedule import Step, fast_schedule

CPU_WORKING_SET = 64 << 20
"""Bytes per chunk on a CPU: past this the cotangents fall out of the cache."""
CPU_LARGEST_SET = 256 << 20
"""At most so many, to read the weights less often: every chunk reads all of them, and some are rearranged first."""
ACCELERATOR_WORKING_SET = 1 << 30


@dataclass
class _Forward:
    """One chunk after its forward pass: how to pull back, and what to contract, step by step."""

    outputs: Tensor
    pulls: list[Pull | None]
    places: list[list[Place]]
    last: tuple[Tensor, Tensor] | None
    """What the last layer multiplies, if it is a linear one: inputs and weight."""


@dataclass(frozen=True)
class Work:
    """One chunk on its way: its samples, their outputs and targets, and the way back."""

    n: int
    outputs: Tensor
    targets: Tensor | None
    forward: _Forward

    @property
    def has_twin(self) -> bool:
        """Export promises the graph for two samples or more: a lone one has a twin, whose columns are zero."""
        return self.n == 1


class Engine:
    """Measures some parameters of a network under a loss; stateless between calls of `run`.

    ``together`` is how many columns are pulled back at once, if memory allows: all of them, unless given.
    """

    def __init__(
        self,
        network: Network,
        parameters: list[str],
        loss: Loss,
        quantity: Quantity[Any],
        memory: int | None = None,
        together: int | None = None,
    ):
        self.network = network
        self.loss = loss
        self.quantity = quantity
        self.schedule = fast_schedule(network.graph, tuple(parameters))
        output = self.schedule.graph.values[self.schedule.graph.output]
        self.head = find_head(self.schedule) if loss.goes_by_rows(len(output.shape)) else None
        self.values = network.state()
        self.device: torch.device = self.values[DEVICE.name]
        self._check_finite()
        self.made = self._run_prelude()
        half = any(value.dtype in HALVES for value in network.graph.values.values())
        met = self.values if half else self.made
        self.values = {k: v.detach() if isinstance(v, Tensor) else v for k, v in met.items()}
        for operation in self.schedule.prelude if half else ():  # the samples meet what half precision makes
            operation.run(self.values)
        self.samples, self.columns = self._chunk(memory, together)

    def _check_finite(self) -> None:
        """Refuse weights that are NaN or infinite."""
        for name in self.network.graph.parameters:
            if not self.values[name].dtype.is_floating_point:
                raise InputError(f"parameter '{name}' has type {self.values[name].dtype}, expected floating point")
            if not is_finite(self.values[name]):
                raise first_non_finite(self.network, {})

    def _run_prelude(self) -> dict[str, Any]:
        """What is made of parameters and constants alone: once per call, remembering how, to pull back through."""
        tracked = dict(widened(self.values))
        if self.schedule.makes_leaves:
            tracked |= {name: tracked[name].requires_grad_() for name in self.schedule.parameters}
        with torch.set_grad_enabled(self.schedule.makes_leaves):
            for operation in self.schedule.prelude:
                store(tracked, operation, operation.call(widened(operation.bind(tracked))))
        return tracked

    def _chunk(self, memory: int | None, together: int | None) -> tuple[int, int]:
        """How many samples and columns at a time keep the work inside the memory budget."""
        output = self.schedule.graph.values[self.schedule.graph.output]
        rank = max(together or self.rank, 1)
        size = max(output.dtype.itemsize, 4)
        budget = self._working_set if memory is None else memory
        fixed, each = self.schedule.floats
        columns = min(rank, max(1, (budget // size - 2 * fixed) // max(2 * each, 1)))
        samples = max(2, budget // (size * (fixed + columns * each)))
        return int(samples), int(columns)

    @property
    def _working_set(self) -> int:
        if self.device.type != "cpu":
            return ACCELERATOR_WORKING_SET
        weights = sum(self.values[name].nbytes for name in self.network.graph.parameters)
        return max(CPU_WORKING_SET, min(3 * weights, CPU_LARGEST_SET))

    @property
    def rank(self) -> int:
        """The most columns that a sample can have."""
        shape = self.schedule.graph.values[self.schedule.graph.output].shape
        rank = self.loss.rank(shape)
        return min(rank, prod(shape[:-1]) * self.head.width) if self.head is not None else rank

    def run(self, stream: Iterator[Batch], advance: Callable[[int], None] = lambda n: None) -> CurvatureSum:
        """The sums over all batches; ``advance`` is told the samples of each chunk."""
        sums: dict[str, Tensor] = {}
        weight, samples, energy = 0.0, 0, 0.0
        for chunk in chunks(stream, self.samples):
            chunk_weight, chunk_energy = self._add(chunk.to(self.device), sums)
            weight += chunk_weight
            energy += chunk_energy
            samples += len(chunk)
            advance(len(chunk))
        return CurvatureSum(self.complete(sums), weight, samples, energy)

    def complete(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """The sums in the parameters' order, with those that no column reached; refuses what is not finite."""
        for name in self.schedule.parameters:
            if name not in sums:
                sums[name] = self.quantity.zero(name, self.values[name])
            if not is_finite(sums[name]):
                raise NonFiniteError(
                    f"the curvature of '{name}' overflows {self.network.graph.values[name].dtype}. Measure in double "
                    "precision: model.double(), inputs.double()"
                )
        return {name: sums[name] for name in dict.fromkeys([*self.schedule.parameters, *sums])}

    @torch.no_grad()
    def _add(self, chunk: Batch, sums: dict[str, Tensor]) -> tuple[float, float]:
        """Add the curvature of one chunk to the sums; returns its weight and its energy."""
        work = self.start(chunk)
        self.quantity.add(sums, self.exactly(work))
        return self.loss.weight(work.outputs, work.targets), self.loss.energy(work.outputs)

    def start(self, chunk: Batch) -> Work:
        """Run the network on some samples."""
        n = len(chunk)
        inputs = self.network.bind(chunk.inputs)
        if n == 1:
            inputs = {name: torch.cat([tensor, tensor]) for name, tensor in inputs.items()}
        try:
            forward = self._forward(inputs, max(n, 2), self._rows(inputs))
        except IndexError as error:
            if rows := missing_rows(error, inputs.values()):
                raise InputError(f"the network does not run on these inputs{rows}") from error
            raise
        outputs = wide(forward.outputs[:n])
        if not is_finite(outputs):
            raise first_non_finite(self.network, inputs)
        self.loss.check(outputs, chunk.targets)
        return Work(n, outputs, chunk.targets, forward)

    def exactly(self, work: Work) -> Iterator[tuple[str, Tensor]]:
        """All columns, or fewer with the same squares; yields what each sweep finds for a parameter."""
        last = self.last_layer(work, self.loss.factor(work.outputs, work.targets)) if self._may_narrow else None
        if last is not None:
            yield from self.end_here(work, last)
        for S in self.all_columns(work, last):
            yield from self.pull(work, S, last)

    def all_columns(self, work: Work, last: LastLayer | None, together: int | None = None) -> Iterator[Tensor]:
        """Every column that there is, (n, R, ...), some at a time, where `pull` takes them."""
        together = together or self.columns
        if last is None or not last.narrows:
            columns = self.loss.columns(work.outputs, work.targets)
            for start in range(0, columns.rank, together):
                S = self._some(columns, start, work.outputs, together)
                yield S if last is None else last.passed_on(S)
            return
        columns = last.columns()
        for start in range(0, columns.rank, together):
            yield columns.slice(start, min(start + together, columns.rank))

    def columns_of(self, n: int) -> int:
        """How many columns of so many samples are pulled back at once: more, if the samples are few."""
        return max(self.columns, self.columns * self.samples // max(n, 2))

    @property
    def _may_narrow(self) -> bool:
        shape = self.schedule.graph.values[self.schedule.graph.output].shape
        return self.head is not None and shape[-1] - 1 > self.head.width

    def last_layer(self, work: Work, factor: Factor) -> LastLayer | None:
        """The last layer, where its curvature follows from that of the loss."""
        if self.head is None or work.forward.last is None or not isinstance(factor, Rows):
            return None
        x, weight = work.forward.last
        return LastLayer(self.head, factor, x[: work.n], weight, work.forward.places[self.head.step])

    def end_here(self, work: Work, last: LastLayer) -> Iterator[tuple[str, Tensor]]:
        """What the last layer has to itself: in closed form, or of all columns, which go no further."""
        found = last.own(self.quantity)
        if found is not None:
            yield from found
            return
        columns = last.ending()
        for start in range(0, columns.rank, self.columns):
            S = columns.slice(start, min(start + self.columns, columns.rank))
            yield from self._sweep(work.forward, self._stacked(work, S), self.schedule.graph.output, last.head.step)

    def pull(self, work: Work, S: Tensor, last: LastLayer | None = None) -> Iterator[tuple[str, Tensor]]:
        """Pull columns (n, R, ...) back from the outputs; behind a last layer that was dealt with, from its input."""
        behind = last is not None and not last.head.tied
        start = last.head.input if last is not None and behind else self.schedule.graph.output
        return self._sweep(work.forward, self._stacked(work, S), start)

    def _stacked(self, work: Work, S: Tensor) -> Tensor:
        """(n, R, ...) -> (R, n, ...), zero for a twin."""
        return (torch.cat([S, torch.zeros_like(S)]) if work.has_twin else S).transpose(0, 1)

    def _some(self, columns: Columns, start: int, outputs: Tensor, together: int) -> Tensor:
        """The next columns, so many of them; refuses what is not shaped (n, R, *output)."""
        stop = min(start + together, columns.rank)
        S = columns.slice(start, stop)
        expected = (len(outputs), stop - start, *outputs.shape[1:])
        if S.shape != expected or S.dtype != outputs.dtype:
            raise LossError(
                f"{self.loss.name}: columns {start} to {stop} came as {shape_of(S)}, expected {expected} "
                f"{outputs.dtype}: (samples, columns, *output). See minsharp.laws.check_loss(loss, outputs, targets)"
            )
        return S

    def _rows(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Refuse inputs that are NaN or infinite. Of plain rows the squared norms tell that, if they are needed."""
        rows: dict[str, Tensor] = {}
        for name, tensor in inputs.items():
            telling = tensor
            if self.quantity.uses_row_squares and tensor.dim() == 2 and tensor.dtype.is_floating_point:
                telling = rows[name] = squares_of_rows(wide(tensor))
            if not is_finite(telling) and not is_finite(tensor):
                raise first_non_finite(self.network, inputs)
        return rows

    def _forward(self, inputs: Mapping[str, Tensor], n: int, rows: dict[str, Tensor]) -> _Forward:
        values: dict[str, Any] = self.values | dict(inputs)
        last: tuple[Tensor, Tensor] | None = None
        pulls: list[Pull | None] = []
        places: list[list[Place]] = []
        for i, step in enumerate(self.schedule.steps):
            operation = step.operation
            given = operation.bind(values)
            bound = widened(given)
            if self.head is not None and i == self.head.step:
                last = bound["input"], bound["weight"]
            made, pull = row(operation).pull(operation, bound, step.wanted) if step.wanted else (None, None)
            if pull is None or bound is not given:  # half precision runs as it is, and is pulled back in float32
                made = operation.call(given)
            store(values, operation, made)
            pulls.append(pull)
            places.append(self._places(step, bound, values, n, rows) if step.sites else [])
            for name in step.drop:
                values.pop(name, None)
        return _Forward(values[self.schedule.graph.output], pulls, places, last)

    def _places(
        self, step: Step, bound: Mapping[str, Any], values: Mapping[str, Any], n: int, rows: dict[str, Tensor]
    ) -> list[Place]:
        operation = step.operation
        needed = {name: values[name] for _, name in operation.reads} | {DEVICE.name: self.device}
        output = self.schedule.graph.values[operation.outputs[0]].shape
        memo: dict[str, Tensor] = {}
        common = (bound, needed, step.samples, step.layouts, output, n, memo, rows)
        places = []
        for site in step.sites:
            use = Use(operation, site.slot.argument, site.leaf, tuple(values[site.leaf].shape), *common)
            places.append(Place(self._leaf(site.leaf, self.schedule.depends[site.leaf]), site.contraction, use))
        return places

    def _leaf(self, leaf: str, parameters: Iterable[str]) -> Leaf:
        """A leaf and the first of the parameters that it is made of: the only one, where it is not shared."""
        parameter = next(iter(parameters))
        return Leaf(parameter, self.made[leaf], self.made[parameter])

    def _sweep(self, forward: _Forward, G: Tensor, start: str, stop: int = 0) -> Iterator[tuple[str, Tensor]]:
        """Pull columns back from a value, down to a step; yields each parameter's sum once it is complete."""
        at: dict[str, Tensor] = {start: G}
        shared: dict[str, Tensor] = {}
        for i in range(len(self.schedule.steps) - 1, stop - 1, -1):
            step = self.schedule.steps[i]
            found = [at.pop(name, None) for name in step.operation.outputs]
            if not step.live or all(g is None for g in found):
                continue
            cotangent: Any = found if step.operation.many else found[0]
            for place in forward.places[i]:
                leaf = place.use.leaf
                columns: Any = cotangent if place.contraction.every else found[0]
                if leaf not in self.schedule.shared:
                    yield place.leaf.parameter, self.quantity.contract(place, columns)
                else:
                    gradient = place.contraction.gradient(place.use, columns)
                    shared[leaf] = shared[leaf] + gradient if leaf in shared else gradient
            if step.sites:
                forward.places[i][0].use.memo.clear()  # all of them hold the same
            pull = forward.pulls[i]
            if pull is not None and i > stop:
                pulled = pull(cotangent)
                for argument, item, name in step.goes_to:
                    given = pulled.get(argument)
                    g = given if item is None or given is None else given[item]
                    if g is not None:
                        at[name] = at[name] + g if name in at else g
        yield from self._finish(shared)

    def _finish(self, shared: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Parameters used in several places, or made into other tensors first: their gradients add up before all."""
        for parameter, path in self.schedule.paths.items():
            if path.direct:
                continue
            total: Tensor | None = None
            for leaf in path.leaves:
                if leaf in shared and (leaf == parameter or self.made[leaf].requires_grad):
                    g = self._leaf(leaf, [parameter]).pull(shared[leaf])  # (n, R, *parameter)
                    total = g if total is None else total + g
            if total is not None:
                yield parameter, self.quantity.of_gradients(parameter, total)
