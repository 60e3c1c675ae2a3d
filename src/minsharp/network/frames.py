"""One walk through a network that finds its frames: where an invertible matrix may be put in and taken out again.

Every linear map opens a space along its outputs, with an unknown matrix. The walk carries the coordinates (atoms) and
vectors (fibers) of these spaces from value to value by the rules of the operations, and collects what is asked of the
matrices. `frames_solved` turns that into frames.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..graph.records import DEVICE, Graph, Operation, store
from ..operations import row
from ..rules.channels import UnfitError, moved
from ..rules.frames import NONE, FrameRule, Labels, carried
from ..rules.row import Row
from .frames_entries import Entries, entries_of


class Record(NamedTuple):
    """Entries of a parameter that a matrix acts on: (K, ...), the atom and the fiber of each of the K."""

    atoms: Tensor
    fibers: Tensor
    entries: Entries
    inverse: bool


class Link(NamedTuple):
    """The same matrix acts on two lists of atoms, coordinate by coordinate; or inverse ones (transposed)."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    inverse: bool


@dataclass
class Demands:
    """All that is asked of the matrices: what may not mix, what is linked, what stays as it is, and why."""

    spaces: list[int] = field(default_factory=list)
    """The size of each space; atoms are numbered from 1 through all of them."""
    apart: set[tuple[int, ...]] = field(default_factory=set)
    links: dict[Link, str] = field(default_factory=dict)
    still: dict[int, str] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)

    @property
    def atoms(self) -> int:
        """How many atoms there are."""
        return sum(self.spaces)


def frame_rule(known: Row) -> FrameRule | None:
    """The rule for frames; operations that only move entries carry the labels along."""
    if known.frames is None and (known.rearranges or known.channels is moved):
        return carried
    return known.frames


class FrameWalk:
    """One pass through the network, collecting labels and demands."""

    def __init__(self, graph: Graph, fixed: frozenset[str]):
        self.graph = graph
        self.demands = Demands()
        self._entries = entries_of(graph, fixed)
        self._labels: dict[str, Labels] = {}
        self._numbers: dict[str, Any] = {DEVICE.name: torch.device("cpu")}
        self._fibers = 1
        for operation, dead in zip(graph.operations, graph.dead_after, strict=True):
            self._pass(operation)
            for name in dead:
                self._labels.pop(name, None)
        self._release(self.labels_of(graph.output), "the outputs have to stay as they are")

    def _pass(self, operation: Operation) -> None:
        """Give every result of an operation its labels."""
        if not any(name in self.graph.values for name in operation.outputs):  # arithmetic on sizes
            store(self._numbers, operation, operation.call(self.bound(operation)[0]))
            return
        rule = frame_rule(row(operation))
        if rule is not None and (row(operation).frames is not None or self._framed(operation)):
            with suppress(UnfitError):
                self._give(operation, rule(self, operation))
                return
        for _, name in operation.reads:
            if name in self._labels:
                self.released(self._labels[name], operation)

    def _framed(self, operation: Operation) -> bool:
        return any(name in self._labels for _, name in operation.reads)

    def _give(self, operation: Operation, made: Labels | Sequence[Labels]) -> None:
        """Keep the labels of all results; unfit if one does not have its value's shape."""
        given = dict(zip(operation.outputs, [made] if isinstance(made, Labels) else made, strict=False))
        for name, labels in given.items():
            if {labels.atoms.shape, labels.fibers.shape} != {self.graph.values[name].shape}:
                raise UnfitError
        self._labels |= {name: labels for name, labels in given.items() if labels.framed}

    def labels_of(self, name: str) -> Labels:
        """The labels of a value; of one without frames, none throughout."""
        if name in self._labels:
            return self._labels[name]
        nothing = torch.tensor(NONE).expand(self.graph.values[name].shape)
        return Labels(nothing, nothing)

    def bound(self, operation: Operation) -> tuple[dict[str, Any], dict[str, Any]]:
        """The operation's arguments with atoms, and with fibers, in place of tensors."""
        labels = {name: self.labels_of(name) for _, name in operation.reads if name in self.graph.values}
        return tuple(  # type: ignore[return-value]
            operation.bind({name: pair[i].contiguous() for name, pair in labels.items()} | self._numbers)
            for i in range(2)
        )

    def entries_of(self, name: str) -> Tensor | None:
        """A view of one parameter's entries, without values, where a value is that and nothing else uses them."""
        return self._entries[name].view if name in self._entries else None

    def _owned(self, view: Tensor) -> Entries:
        """A view with the parameter that it is of, told by its storage."""
        owner = next(e for e in self._entries.values() if e.holds(view))
        return Entries(owner.parameter, view)

    def produced(self, shape: Sequence[int], axis: int, made_by: Sequence[Tensor]) -> Labels:
        """A new space along an axis of a result."""
        size = shape[axis]
        if not torch.Size(shape).numel():
            raise UnfitError
        atoms = torch.arange(size) + self.demands.atoms + 1
        self.demands.spaces.append(size)
        for view in made_by:
            self.demands.records.append(Record(atoms, torch.zeros_like(atoms), self._owned(view), False))
        fibers = torch.arange(torch.Size(shape).numel() // size) + self._fibers
        self._fibers += len(fibers)
        rest = [n for d, n in enumerate(shape) if d != axis % len(shape)]
        whole = fibers.view(*rest, 1).expand(*rest, size)
        return Labels(atoms.expand(*rest, size), whole).movedim(-1, axis)

    def consumed(self, labels: Labels, entries: Tensor, operation: Operation) -> None:
        """Vectors (*positions, K) meet entries (K, ...), that the inverse acts on."""
        if not labels.framed:
            return
        first, *others = _rows(labels)
        for other in others:
            self._link(first, other, False, operation)
        self._separate(first)
        self.demands.records.append(Record(first.atoms, first.fibers, self._owned(entries), True))

    def paired(self, a: Labels, b: Labels, operation: Operation) -> None:
        """Vectors (*batch, rows, K) of both meet in inner products."""
        batch = torch.broadcast_shapes(a.atoms.shape[:-2], b.atoms.shape[:-2])
        a, b = (Labels(*(t.expand(*batch, *t.shape[-2:]).reshape(-1, *t.shape[-2:]) for t in x)) for x in (a, b))
        for i in range(len(a.atoms)):
            mine, yours = (_rows(Labels(x.atoms[i], x.fibers[i])) for x in (a, b))
            if not mine or not yours:
                continue
            for rows in (mine, yours):
                for other in rows[1:]:
                    self._link(rows[0], other, False, operation)
            self._link(mine[0], yours[0], True, operation)

    def added(self, a: Labels, b: Labels, operation: Operation) -> Labels:
        """Entries of one shape are added: the same matrix acts on both."""
        fibers = self.joined(a.fibers, b.fibers)
        for rows in _tables(Labels(a.atoms, fibers), Labels(b.atoms, fibers)):
            self._link(*rows, False, operation)
        return Labels(a.atoms, fibers)

    def attached(self, labels: Labels, entries: Tensor, operation: Operation) -> Labels:
        """Entries of a parameter are added to what has these labels: the same matrix acts on them."""
        shape = labels.atoms.shape
        if not entries.is_contiguous():
            raise UnfitError
        place = torch.arange(entries.numel()).view(entries.shape).expand(shape)
        fibers, where = torch.unique(labels.fibers, return_inverse=True)
        own = torch.full(fibers.shape, entries.numel()).scatter_reduce(0, where.flatten(), place.flatten(), "amin")
        found = torch.stack([place, labels.atoms, own[where]], -1).flatten(0, -2).unique(dim=0)  # (place, atom, fiber)
        if len(found) != entries.numel():
            raise UnfitError  # an entry goes to several coordinates, or to vectors that share only some entries
        record = Record(found[:, 1], found[:, 2], self._owned(entries.view(-1, 1)), False)
        self._separate(Labels(record.atoms, record.fibers))
        self.demands.records.append(record)
        return labels

    def joined(self, *keys: Tensor) -> Tensor:
        """New fibers: entries with the same keys belong together."""
        table = torch.stack([k.flatten() for k in torch.broadcast_tensors(*keys)], 1)
        found, where = torch.unique(table, dim=0, return_inverse=True)
        first = self._fibers
        self._fibers += len(found)
        return (where + first).view(torch.broadcast_shapes(*(k.shape for k in keys)))

    def released(self, labels: Labels, operation: Operation) -> None:
        """These entries have to stay as they are."""
        self._release(labels, operation.where)

    def _release(self, labels: Labels, reason: str) -> None:
        self._separate(labels)
        for atom in labels.atoms.unique().tolist():
            if atom != NONE:
                self.demands.still.setdefault(atom, reason)

    def _separate(self, labels: Labels) -> None:
        """What is used of a fiber must not mix with what is not."""
        self.demands.apart.update(_parts(labels))

    def _link(self, a: Labels, b: Labels, inverse: bool, operation: Operation) -> None:
        """The same matrix, or inverse ones, act on two rows (K), coordinate by coordinate in each pair of fibers."""
        one_sided = (a.atoms == NONE) != (b.atoms == NONE)
        if bool(one_sided.any()):
            self.released(a, operation)
            self.released(b, operation)
            return
        pairs = self.joined(a.fibers, b.fibers)
        for labels in (a, b):
            self._separate(labels)
            self._separate(Labels(labels.atoms, pairs))
        framed = a.atoms != NONE
        for fiber in pairs[framed].unique().tolist():
            chosen = framed & (pairs == fiber)
            first, second = (tuple(x.atoms[chosen].tolist()) for x in (a, b))
            if inverse or first != second:
                self.demands.links.setdefault(Link(first, second, inverse), operation.where)


def _dense(fibers: Tensor) -> Tensor:
    """The fibers of each row (P, K), numbered from zero within the row."""
    order = fibers.argsort(dim=1, stable=True)
    sizes = fibers.gather(1, order)
    steps = torch.zeros_like(sizes)
    steps[:, 1:] = (sizes[:, 1:] != sizes[:, :-1]).long()
    return torch.empty_like(sizes).scatter_(1, order, steps.cumsum(1))


def _essential(labels: Labels, axes: int) -> Labels:
    """Where the atoms repeat along some of the first axes, and the fibers along all others, one place tells of all."""
    steps = labels.atoms.stride()[:axes]
    repeated = {d for d, step in enumerate(steps) if not step and labels.atoms.shape[d]}
    if any(step for d, step in enumerate(labels.fibers.stride()) if d not in repeated and labels.atoms.shape[d] > 1):
        return labels
    places = tuple(slice(0, 1) if d in repeated else slice(None) for d in range(labels.atoms.dim()))
    return Labels(labels.atoms[places], labels.fibers[places])


def _rows(labels: Labels) -> list[Labels]:
    """The different rows of (*positions, K), fibers numbered within each."""
    atoms, fibers = (t.reshape(-1, t.shape[-1]) for t in _essential(labels, labels.atoms.dim() - 1))
    if not atoms.numel():
        return []
    table = torch.cat([atoms, _dense(fibers)], 1).unique(dim=0)
    K = atoms.shape[1]
    return [Labels(line[:K], line[K:]) for line in table]


def _tables(a: Labels, b: Labels) -> list[tuple[Labels, Labels]]:
    """The different fibers of a sum, each as the two rows of atoms that are added."""
    order = a.fibers.flatten().argsort(dim=0, stable=True)
    fibers = a.fibers.flatten()[order]
    one, two = a.atoms.flatten()[order], b.atoms.flatten()[order]
    sizes = torch.unique_consecutive(fibers, return_counts=True)[1]
    starts = sizes.cumsum(0) - sizes
    found = []
    for size in sizes.unique().tolist():
        places = starts[sizes == size].unsqueeze(1) + torch.arange(size)
        table = torch.cat([one[places], two[places]], 1).unique(dim=0)  # (different fibers, both rows)
        nothing = torch.zeros(size, dtype=torch.int64)
        found += [(Labels(row[:size], nothing), Labels(row[size:], nothing)) for row in table if bool(row.any())]
    return found


def _parts(labels: Labels) -> list[tuple[int, ...]]:
    """The different sets of atoms that fibers hold."""
    labels = _essential(labels, labels.atoms.dim())
    inside = labels.atoms != NONE
    pairs = torch.stack([labels.fibers[inside], labels.atoms[inside]], 1).unique(dim=0)  # sorted by fiber, then atom
    if not len(pairs):
        return []
    sizes = torch.unique_consecutive(pairs[:, 0], return_counts=True)[1]
    starts = sizes.cumsum(0) - sizes
    sums = torch.stack([(pairs[:, 1] ** k).cumsum(0) for k in (1, 2, 3)])  # wrap around, and tell sets apart
    ends = sums[:, starts + sizes - 1] - torch.where(starts > 0, sums[:, starts - 1], 0)
    table = torch.cat([ends.T, sizes.unsqueeze(1)], 1)
    _, where = table.unique(dim=0, return_inverse=True)
    first = {kind: i for i, kind in reversed(list(enumerate(where.tolist())))}
    atoms = pairs[:, 1].tolist()
    return [tuple(atoms[int(starts[i]) : int(starts[i] + sizes[i])]) for i in first.values()]
