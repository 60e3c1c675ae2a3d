"""What the engine will do, worked out from the records before any data is seen."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ..errors import ReadError
from ..graph.records import Graph, Operation, Samples, Value, base, dependence, split
from ..operations import row
from ..operations.pooled_convolution import rewritten
from ..rules.contraction import Contraction, PerSampleVJP


@dataclass(frozen=True)
class Site:
    """Where a tensor without samples (a leaf) goes into an operation with samples."""

    slot: str
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


@dataclass(frozen=True)
class Path:
    """How a parameter reaches the samples: through which leaves, and whether in one place, entry by entry."""

    leaves: tuple[str, ...]
    direct: bool


@lru_cache(maxsize=16)
def fast_plan(graph: Graph, parameters: tuple[str, ...]) -> "Plan":
    """The plan of the rewritten graph, remembered: a training loop asks for the same one every epoch."""
    return Plan(rewritten(graph, parameters), parameters)


class Plan:
    """The steps for measuring some of the parameters of a graph."""

    def __init__(self, graph: Graph, parameters: Iterable[str]):
        self.graph = graph
        self.parameters = tuple(parameters)
        varies = {name for name, value in self.graph.values.items() if value.samples is not None}
        self.prelude = self._once(varies)
        self._makers = {name: op for op in self.prelude for name in op.outputs}
        self.depends = dependence(graph, self.parameters)
        self.steps = self._steps(varies)

    def _once(self, varies: set[str]) -> tuple[Operation, ...]:
        """The operations that need not run for every chunk: they see neither samples nor sizes, at no remove."""
        known = {name for name in self.graph.values if name not in varies}
        once = []
        for operation in self.graph.operations:
            if known.issuperset(operation.outputs) and known.issuperset(name for _, name in operation.reads):
                once.append(operation)
            else:
                known.difference_update(operation.outputs)
        return tuple(once)

    def _steps(self, varies: set[str]) -> tuple[Step, ...]:
        last: dict[str, int] = {}
        once = set(self.prelude)
        operations = [op for op in self.graph.operations if op not in once]
        for i, operation in enumerate(operations):
            last |= {name: i for _, name in operation.reads} | dict.fromkeys(operation.outputs, i)
        last.pop(self.graph.output)
        drops: dict[int, list[str]] = {}
        for name, i in last.items():
            if self.graph.values.get(name) is None or name in varies:
                drops.setdefault(i, []).append(name)
        return tuple(self._step(op, varies, tuple(drops.get(i, ()))) for i, op in enumerate(operations))

    def _step(self, operation: Operation, varies: set[str], drop: tuple[str, ...]) -> Step:
        ignored = row(operation).ignores
        live = [(slot, name) for slot, name in operation.reads if name in self.depends and slot not in ignored]
        samples: dict[str, Samples | None] = {
            slot: self.graph.values[name].samples for slot, name in operation.reads if name in self.graph.values
        }
        made = [self.graph.values.get(name) for name in operation.outputs]
        layouts = tuple(None if value is None else value.samples for value in made)
        goes_to = tuple((*split(slot), name) for slot, name in live if name in varies)
        sites = [self._site(operation, slot, name) for slot, name in live if name not in varies]
        unique = tuple({site.leaf: site for site in sites}.values())
        return Step(operation, goes_to, unique, samples, layouts, drop)

    def _site(self, operation: Operation, slot: str, leaf: str) -> Site:
        if leaf not in self.parameters and leaf not in self._makers:
            raise ReadError(
                f"what goes into {operation.where} as '{base(slot)}' is made of parameters and of the number of "
                "samples. Leave the batch size out of the weights"
            )
        known = row(operation).contract.get(slot)
        alone = sum(name == leaf for _, name in operation.reads) == 1
        if known is None or not alone or operation.many or not known.fits(operation, slot, self.graph):
            known = PerSampleVJP()
        return Site(slot, leaf, known)

    @cached_property
    def paths(self) -> dict[str, Path]:
        """For each measured parameter, its way to the samples."""
        sites = Counter(site.leaf for step in self.steps for site in step.sites)
        users = Counter(name for op in self.graph.operations for _, name in op.reads)

        def direct(leaf: str, parameter: str) -> bool:
            while leaf != parameter:
                maker = self._makers[leaf]
                if users[leaf] != 1 or not row(maker).rearranges:
                    return False
                leaf = next(name for _, name in maker.reads if name in self.depends)
            return users[leaf] == 1

        result = {}
        for parameter in self.parameters:
            leaves = tuple(leaf for leaf in sites if parameter in self.depends[leaf])
            alone = len(leaves) == 1 and sites[leaves[0]] == 1
            result[parameter] = Path(leaves, alone and direct(leaves[0], parameter))
        return result

    @cached_property
    def makes_leaves(self) -> bool:
        """Whether some leaf is made of parameters rather than being one."""
        return any(leaf not in self.parameters for path in self.paths.values() for leaf in path.leaves)

    @cached_property
    def shared(self) -> frozenset[str]:
        """The leaves whose gradients have to be added up before they are squared."""
        return frozenset(leaf for path in self.paths.values() if not path.direct for leaf in path.leaves)

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
            if base(slot) in step.wanted and n in self.graph.values
        ]
