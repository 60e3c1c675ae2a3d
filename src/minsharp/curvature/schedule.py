"""What the engine will do, worked out from the records before any data is seen."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ..graph.records import Graph, Operation, Samples, Value, dead_after
from ..graph.slots import Slot
from ..network.structure import Meeting, Structure
from ..operations import TABLE, row
from ..operations.rewriting import rewritten
from ..rules.contraction import Contraction, PerSampleVJP


@dataclass(frozen=True)
class Site:
    """Where a leaf meets the samples, and how the cotangents contract with it there."""

    slot: Slot
    leaf: str
    contraction: Contraction


@dataclass(frozen=True)
class Step:
    """One operation that runs on samples: what to pull cotangents back to, and what to contract."""

    operation: Operation
    goes_to: tuple[tuple[str, int | None, str], ...]
    """The arguments to pull back to: name, place if it is a list, and the value that gets the cotangent."""
    sites: tuple[Site, ...]
    samples: Mapping[str, Samples | None]
    layouts: tuple[Samples | None, ...]
    drop: tuple[str, ...]

    @cached_property
    def wanted(self) -> frozenset[str]:
        """The names of the arguments to pull back to."""
        return frozenset(argument for argument, _, _ in self.goes_to)

    @property
    def live(self) -> bool:
        """Whether cotangents are needed at the output."""
        return bool(self.goes_to or self.sites)


def fast_schedule(graph: Graph, parameters: tuple[str, ...]) -> "Schedule":
    """The schedule of the rewritten graph, remembered: a training loop asks for the same one every epoch."""
    return _fast_schedule(graph, parameters, TABLE.edition)


@lru_cache(maxsize=16)
def _fast_schedule(graph: Graph, parameters: tuple[str, ...], edition: int) -> "Schedule":
    return Schedule(rewritten(graph, parameters), parameters)


class Schedule(Structure):
    """The steps for measuring some of the parameters of a graph."""

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """One for every operation that runs on samples, in order."""
        dead = dead_after(self.operations, self.graph.output)
        drops = [
            tuple(name for name in names if name not in self.graph.values or name in self.varies) for names in dead
        ]
        return tuple(self._step(operation, drop) for operation, drop in zip(self.operations, drops, strict=True))

    def _step(self, operation: Operation, drop: tuple[str, ...]) -> Step:
        samples: dict[str, Samples | None] = {
            argument: self.graph.values[name].samples
            for argument, name in operation.by_argument.items()
            if name in self.graph.values
        }
        made = [self.graph.values.get(name) for name in operation.outputs]
        layouts = tuple(None if value is None else value.samples for value in made)
        goes_to = tuple((*slot, name) for slot, name in self.live(operation) if name in self.varies)
        sites = tuple(self._site(meeting) for meeting in self.meetings[operation])
        return Step(operation, goes_to, sites, samples, layouts, drop)

    def _site(self, meeting: Meeting) -> Site:
        operation, slot, leaf = meeting.operation, meeting.slot, meeting.leaf
        known = row(operation).contract.get(slot.argument)
        alone = sum(name == leaf for _, name in operation.reads) == 1
        single = not operation.many or self._first_only(operation)
        if known is None or not alone or not single or not known.fits(operation, slot.argument, self.graph):
            known = PerSampleVJP()
        return Site(slot, leaf, known)

    def _first_only(self, operation: Operation) -> bool:
        """Whether the other results are statistics that nothing reads: a norm before an in-place ReLU."""
        return row(operation).statistics and self._read.isdisjoint(operation.outputs[1:])

    @cached_property
    def _read(self) -> frozenset[str]:
        """The values that some operation reads, and the output."""
        return frozenset([self.graph.output, *(name for op in self.operations for _, name in op.reads)])

    @cached_property
    def floats(self) -> tuple[int, int]:
        """Working memory in numbers: per sample, and per sample and column."""
        fixed = sum(v.numel for v in self.graph.values.values() if v.samples is not None)
        per_column, unfolded = 0, 0
        for step in self.steps:
            if not step.live:
                continue
            values = [self.graph.values[name] for name in step.operation.outputs if name in self.graph.values]
            out = sum(value.numel for value in values)
            into = sum(v.numel for v in self._inputs(step))
            work = 0
            for site in step.sites:
                shapes = self.graph.values[site.leaf].shape, values[0].shape
                once, each = site.contraction.floats(step.operation, *shapes)
                unfolded, work = max(unfolded, once), max(work, each)
            per_column = max(per_column, 2 * out + into, out + work)
        added = sum(self.graph.values[leaf].numel for leaf in self.shared)
        return fixed + unfolded, per_column + added

    def _inputs(self, step: Step) -> list[Value]:
        return [
            self.graph.values[n]
            for slot, n in step.operation.reads
            if slot.argument in step.wanted and n in self.graph.values
        ]
