"""Where the parameters of a graph are: what is made of them alone, and where they meet the samples."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ..errors import ReadError
from ..graph.records import Graph, Operation
from ..graph.slots import Slot
from ..operations import dependence, passing, row


@dataclass(frozen=True)
class Meeting:
    """A place where a tensor without samples (a leaf), made of parameters, goes into an operation with samples."""

    operation: Operation
    slot: Slot
    leaf: str


@dataclass(frozen=True)
class Path:
    """How a parameter reaches the samples: through which leaves, and whether in one place, entry by entry."""

    leaves: tuple[str, ...]
    direct: bool


class Structure:
    """A graph, seen from some of its parameters."""

    def __init__(self, graph: Graph, parameters: Iterable[str]):
        self.graph = graph
        self.parameters = tuple(parameters)
        self.varies = frozenset(name for name, value in graph.values.items() if value.samples is not None)
        self.prelude = self._once()
        """The operations that need not run for every chunk of samples."""
        once = set(self.prelude)
        self.operations = tuple(op for op in graph.operations if op not in once)
        self.depends = dependence(graph, self.parameters)
        self._makers = {name: op for op in self.prelude for name in op.outputs}

    def _once(self) -> tuple[Operation, ...]:
        """The operations that see neither samples nor sizes, at no remove."""
        known = {name for name in self.graph.values if name not in self.varies}
        once = []
        for operation in self.graph.operations:
            if known.issuperset(operation.outputs) and known.issuperset(name for _, name in operation.reads):
                once.append(operation)
            else:
                known.difference_update(operation.outputs)
        return tuple(once)

    def live(self, operation: Operation) -> list[tuple[Slot, str]]:
        """The (slot, value) pairs of an operation through which the parameters enter."""
        return [(slot, name) for slot, name in passing(operation) if name in self.depends]

    @cached_property
    def meetings(self) -> dict[Operation, tuple[Meeting, ...]]:
        """For each operation with samples, the leaves that it meets, each once."""
        return {operation: self._meetings(operation) for operation in self.operations}

    def _meetings(self, operation: Operation) -> tuple[Meeting, ...]:
        live = self.live(operation)
        found = {name: slot for slot, name in live if name not in self.varies and self.graph.values[name].numel}
        for leaf, slot in found.items():
            if leaf not in self.parameters and leaf not in self._makers:
                raise ReadError(
                    f"what goes into {operation.where} as '{slot.argument}' is made of parameters and of the number of "
                    "samples. Leave the batch size out of the weights"
                )
        return tuple(Meeting(operation, slot, leaf) for leaf, slot in found.items())

    @cached_property
    def paths(self) -> dict[str, Path]:
        """For each parameter, its way to the samples."""
        count = Counter(meeting.leaf for meetings in self.meetings.values() for meeting in meetings)
        result = {}
        for parameter in self.parameters:
            leaves = tuple(leaf for leaf in count if parameter in self.depends[leaf])
            alone = len(leaves) == 1 and count[leaves[0]] == 1
            result[parameter] = Path(leaves, alone and self._entry_by_entry(leaves[0], parameter))
        return result

    def _entry_by_entry(self, leaf: str, parameter: str) -> bool:
        """Whether a leaf holds the entries of the parameter, each once, and nothing else uses them."""
        while leaf != parameter:
            maker = self._makers[leaf]
            if self._users[leaf] != 1 or not row(maker).rearranges:
                return False
            leaf = next(name for _, name in self.live(maker))
        return self._users[leaf] == 1

    @cached_property
    def _users(self) -> Counter[str]:
        return Counter(name for op in self.graph.operations for _, name in op.reads)

    @cached_property
    def makes_leaves(self) -> bool:
        """Whether some leaf is made of parameters rather than being one."""
        return any(leaf not in self.parameters for path in self.paths.values() for leaf in path.leaves)

    @cached_property
    def shared(self) -> frozenset[str]:
        """The leaves whose gradients have to be added up before they are squared."""
        return frozenset(leaf for path in self.paths.values() if not path.direct for leaf in path.leaves)
