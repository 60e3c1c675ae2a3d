"""What the engine will do, worked out from the records before any data is seen."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from ..network.ops import row
from ..network.records import Graph, Operation, Ref, Samples, Value, base
from .contract import Contraction, PerSampleVJP


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
    wanted: frozenset[str]
    sites: tuple[Site, ...]
    samples: Mapping[str, Samples | None]
    layouts: tuple[Samples | None, ...]
    drop: tuple[str, ...]

    @property
    def live(self) -> bool:
        """Whether cotangents are needed at the output."""
        return bool(self.wanted or self.sites)


@dataclass(frozen=True)
class Path:
    """How a parameter reaches the samples: through which leaves, and whether in one place, entry by entry."""

    leaves: tuple[str, ...]
    direct: bool


@lru_cache(maxsize=16)
def plan(graph: Graph, parameters: tuple[str, ...]) -> "Plan":
    """The plan, remembered: a training loop asks for the same one every epoch."""
    return Plan(graph, parameters)


class Plan:
    """The steps for measuring some of the parameters of a graph."""

    def __init__(self, graph: Graph, parameters: Iterable[str]):
        self.graph = pool_before_relu(graph)
        self.parameters = tuple(parameters)
        varies = {name for name, value in self.graph.values.items() if value.samples is not None}
        held = [op for op in self.graph.operations if not self._touches(op, varies)]
        self.prelude = tuple(held)
        self.depends = self._dependence()
        self.steps = self._steps(varies)

    def _touches(self, operation: Operation, varies: set[str]) -> bool:
        """Whether an operation has to run for every chunk: it reads samples, sizes, or makes one row per sample."""
        outputs = [self.graph.values.get(name) for name in operation.outputs]
        return any(value is None or value.name in varies for value in outputs) or any(
            name in varies or name not in self.graph.values for _, name in operation.reads
        )

    def _dependence(self) -> dict[str, frozenset[str]]:
        """The measured parameters behind each value."""
        depends = {name: frozenset({name}) for name in self.parameters}
        for operation in self.graph.operations:
            behind = frozenset().union(*(depends.get(name, frozenset()) for _, name in operation.reads))
            for output in operation.outputs:
                value = self.graph.values.get(output)
                if behind and value is not None and value.dtype.is_floating_point:
                    depends[output] = behind
        return depends

    def _steps(self, varies: set[str]) -> tuple[Step, ...]:
        last: dict[str, int] = {}
        operations = [op for op in self.graph.operations if op not in set(self.prelude)]
        for i, operation in enumerate(operations):
            last |= {name: i for _, name in operation.reads} | dict.fromkeys(operation.outputs, i)
        last.pop(self.graph.output)
        drops: dict[int, list[str]] = {}
        for name, i in last.items():
            if self.graph.values.get(name) is None or name in varies:
                drops.setdefault(i, []).append(name)
        return tuple(self._step(op, varies, tuple(drops.get(i, ()))) for i, op in enumerate(operations))

    def _step(self, operation: Operation, varies: set[str], drop: tuple[str, ...]) -> Step:
        live = [(slot, name) for slot, name in operation.reads if name in self.depends]
        samples: dict[str, Samples | None] = {
            slot: self.graph.values[name].samples for slot, name in operation.reads if name in self.graph.values
        }
        made = [self.graph.values.get(name) for name in operation.outputs]
        layouts = tuple(None if value is None else value.samples for value in made)
        wanted = frozenset(base(slot) for slot, name in live if name in varies)
        sites = [self._site(operation, slot, name) for slot, name in live if name not in varies]
        unique = tuple({site.leaf: site for site in sites}.values())
        return Step(operation, wanted, unique, samples, layouts, drop)

    def _site(self, operation: Operation, slot: str, leaf: str) -> Site:
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
        makers = {name: op for op in self.prelude for name in op.outputs}

        def direct(leaf: str, parameter: str) -> bool:
            while leaf != parameter:
                maker = makers[leaf]
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
                once, each = site.contraction.floats(self.graph.values[site.leaf].shape, values[0].shape)
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


def pool_before_relu(graph: Graph) -> Graph:
    """Let max pools run before the ReLU that they follow: the same numbers and gradients, on a smaller tensor."""
    users = Counter([graph.output, *(name for op in graph.operations for _, name in op.reads)])
    makers = {op.outputs[0]: op for op in graph.operations}
    values, operations = dict(graph.values), list(graph.operations)
    for pool in graph.operations:
        source = pool.arguments["self"].name if pool.name == "max_pool2d" else None
        relu = makers.get(source) if source else None
        if relu is None or relu.name != "relu" or users[relu.outputs[0]] != 1:
            continue
        between, pooled = relu.outputs[0], pool.outputs[0]
        values[between] = replace(values[pooled], name=between)
        first = replace(pool, arguments={**pool.arguments, "self": relu.arguments["self"]}, outputs=(between,))
        then = replace(relu, arguments={"self": Ref(between)}, outputs=(pooled,))
        operations[operations.index(relu)] = first
        operations[operations.index(pool)] = then
    return Graph(values, tuple(operations), graph.output)
