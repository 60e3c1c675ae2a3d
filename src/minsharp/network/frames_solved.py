"""From what is asked of the matrices to the frames that meet it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor

from ..frozen import Handed, held
from .frames import Demands, Link, Record
from .frames_entries import Strided

TANGLED = "its coordinates meet others in another order, or themselves inverted"
BETWEEN = "one of its weights lies in another frame too"
HALF = "nothing undoes it"


@dataclass(frozen=True, eq=False)
class Member:
    """Entries of a parameter that a frame's matrix A acts on, or its inverse, transposed.

    ``read`` gives them as (h, m), one row for each coordinate: A takes them to A @ entries, and where ``inverse``, to
    A^-T @ entries.
    """

    parameter: str
    inverse: bool
    entries: Strided = field(repr=False)
    rows: Tensor = Handed()  # type: ignore[assignment]  # noqa: RUF009
    """(h, F): which rows of the entries belong to each coordinate, one for each of F vectors."""

    def read(self, tensor: Tensor) -> Tensor:
        """(h, m) of the parameter, or of anything contiguous of its shape."""
        return self.entries.of(tensor)[held(self, "rows").to(tensor.device)].flatten(1)

    def write(self, tensor: Tensor, new: Tensor) -> None:
        """Put (h, m) back in place."""
        view = self.entries.of(tensor)
        rows = held(self, "rows").to(tensor.device)
        view[rows] = new.view(*rows.shape, *view.shape[1:])

    @property
    def count(self) -> int:
        """How many entries there are."""
        return self.rows.numel() * prod(self.entries.shape[1:])

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last place in the parameter that it may hold."""
        return self.entries.span(int(self.rows.min()), int(self.rows.max())) if self.rows.numel() else (0, -1)

    def check_whole(self, size: int, shape: Sequence[int]) -> None:
        """Raise a ValueError if these cannot be entries of a parameter of some shape, one row for each coordinate."""
        view, rows = self.entries, self.rows
        fits = len(view.shape) == len(view.steps) > 0 and min(*view.shape, *view.steps, view.start) >= 0
        fits = fits and rows.dtype == torch.int64 and rows.dim() == 2 and len(rows) == size and rows.numel() > 0
        fits = fits and int(rows.min()) >= 0 and int(rows.max()) < view.shape[0]
        if not fits or not self.span[1] < prod(shape):
            raise ValueError(f"its frames speak of entries that {self.parameter!r} does not have")


@dataclass(frozen=True, eq=False)
class Frame:
    """A place for an invertible matrix of some size, and all that it acts on."""

    size: int
    members: tuple[Member, ...]
    name: str
    """The first of its parameters, and which of the frames in it."""
    order: tuple[int, int] = field(repr=False)
    """Which of all that matrices act on it begins with, and with which row of it."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters that it acts on, each once."""
        return tuple(dict.fromkeys(member.parameter for member in self.members))

    def __repr__(self) -> str:
        return f"Frame({self.name}: {self.size} x {self.size}, {' + '.join(self.parameters)})"


class _Partition:
    """Atoms in blocks, split until all demands are met."""

    def __init__(self, demands: Demands):
        self.block = [-1] * (demands.atoms + 1)
        self.blocks: list[set[int]] = []
        start = 1
        for size in demands.spaces:
            self._new(set(range(start, start + size)))
            start += size
        for part in demands.apart:
            self.split(part)
        while self._refined(demands.links):
            pass

    def _new(self, atoms: set[int]) -> None:
        for atom in atoms:
            self.block[atom] = len(self.blocks)
        self.blocks.append(atoms)

    def split(self, part: tuple[int, ...]) -> bool:
        """Part the blocks into what lies in the part and what does not; whether that changed anything."""
        inside: dict[int, set[int]] = {}
        for atom in part:
            inside.setdefault(self.block[atom], set()).add(atom)
        cut = {b: atoms for b, atoms in inside.items() if len(atoms) < len(self.blocks[b])}
        for b, atoms in cut.items():
            self.blocks[b] -= atoms
            self._new(atoms)
        return bool(cut)

    def _refined(self, links: dict[Link, str]) -> bool:
        """Carry the blocks of each side of a link over to the other."""
        changed = False
        for link in links:
            for mine, yours in ((link.first, link.second), (link.second, link.first)):
                groups: dict[int, list[int]] = {}
                for a, b in zip(mine, yours, strict=True):
                    groups.setdefault(self.block[b], []).append(a)
                for group in groups.values():
                    changed |= self.split(tuple(group))
        return changed


class _Classes:
    """Blocks that share a matrix, or have its inverse: union-find with a sign."""

    def __init__(self, count: int):
        self._parent = list(range(count))
        self._flipped = [False] * count
        self.still: dict[int, str] = {}

    def find(self, block: int) -> tuple[int, bool]:
        """The representative, and whether the block has the inverse of its matrix."""
        flipped = False
        while self._parent[block] != block:
            flipped ^= self._flipped[block]
            block = self._parent[block]
        return block, flipped

    def join(self, a: int, b: int, inverse: bool) -> None:
        """Let two blocks share a matrix; one that would be its own inverse stays as it is."""
        (first, x), (second, y) = self.find(a), self.find(b)
        if first == second:
            if x ^ y != inverse:
                self.hold(first, TANGLED)
            return
        self._parent[second], self._flipped[second] = first, x ^ y ^ inverse
        if second in self.still:
            self.still.setdefault(first, self.still.pop(second))

    def hold(self, block: int, reason: str) -> None:
        """Let a block's whole class stay as it is."""
        self.still.setdefault(self.find(block)[0], reason)


def frames_of(demands: Demands) -> tuple[list[Frame], dict[str, str]]:
    """The frames, and for parameters that might have had one, why there is none."""
    partition = _Partition(demands)
    classes = _Classes(len(partition.blocks))
    for atom, reason in demands.still.items():
        classes.hold(partition.block[atom], reason)
    for link in demands.links:
        _join(link, partition, classes)
    members, records = _members(demands, partition, classes)
    frames: list[Frame] = []
    reasons: dict[str, str] = {}
    for found in sorted(members.items(), key=lambda item: (-len(partition.blocks[item[0]]), item[0])):
        block, acted_on = found
        size = len(partition.blocks[block])
        why = classes.still.get(block) or _unfit(acted_on, frames)
        if why is None:
            frames.append(Frame(size, tuple(acted_on), "", (records[block], int(acted_on[0].rows.min()))))
        else:
            reasons |= {m.parameter: why for m in acted_on if not m.inverse and m.parameter not in reasons}
    taken = {name for frame in frames for name in frame.parameters}
    return _named(frames), {name: why for name, why in reasons.items() if name not in taken}


def _join(link: Link, partition: _Partition, classes: _Classes) -> None:
    """Each block of the first list is one of the second list, coordinate by coordinate, in order."""
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for a, b in zip(link.first, link.second, strict=True):
        pairs.setdefault((partition.block[a], partition.block[b]), []).append((a, b))
    for (mine, yours), atoms in pairs.items():
        first, second = [a for a, _ in sorted(atoms)], [b for _, b in sorted(atoms)]
        whole = set(first) == partition.blocks[mine] and set(second) == partition.blocks[yours]
        if not whole or len(set(first)) != len(first) or second != sorted(second):
            classes.hold(mine, TANGLED)
            classes.hold(yours, TANGLED)
        classes.join(mine, yours, link.inverse)


def _members(
    demands: Demands, partition: _Partition, classes: _Classes
) -> tuple[dict[int, list[Member]], dict[int, int]]:
    """What the matrix of each class acts on, and which record comes first."""
    members: dict[int, list[Member]] = {}
    order: dict[int, int] = {}
    for i, record in enumerate(demands.records):
        for block, rows in _rows_by_block(record, partition):
            first, flipped = classes.find(block)
            if rows is None:
                classes.hold(block, TANGLED)
                rows = torch.zeros(0, 1, dtype=torch.int64)
            parameter = record.entries.parameter
            order.setdefault(first, i)
            members.setdefault(first, []).append(
                Member(parameter, record.inverse ^ flipped, record.entries.strided, rows)
            )
    return members, order


def _rows_by_block(record: Record, partition: _Partition) -> Iterator[tuple[int, Tensor | None]]:
    """For each block that a record has atoms of, the rows (h, F) of its coordinates; none if a fiber is not whole."""
    by_block: dict[int, dict[int, dict[int, int]]] = {}
    twice: set[int] = set()
    for row, (atom, fiber) in enumerate(zip(record.atoms.tolist(), record.fibers.tolist(), strict=True)):
        if atom:
            places = by_block.setdefault(partition.block[atom], {}).setdefault(fiber, {})
            if places.setdefault(atom, row) != row:
                twice.add(partition.block[atom])
    for block, fibers in by_block.items():
        order = sorted(partition.blocks[block])
        if block in twice or any(set(places) != partition.blocks[block] for places in fibers.values()):
            yield block, None
        else:
            yield block, torch.tensor([[places[atom] for places in fibers.values()] for atom in order])


def _unfit(members: list[Member], frames: list[Frame]) -> str | None:
    """Why members make no frame beside those that are there."""
    if len({m.inverse for m in members}) < 2:
        return HALF
    for i, member in enumerate(members):
        taken = [m for frame in frames for m in frame.members if m.parameter == member.parameter]
        others = [m for m in members[:i] if m.parameter == member.parameter]
        if any(_meet(member, other) for other in taken + others):
            return BETWEEN
    return None


def _meet(a: Member, b: Member) -> bool:
    """Whether two members of one parameter share entries."""
    (first, last), (start, end) = a.span, b.span
    if last < start or end < first:
        return False
    if a.entries == b.entries:
        return not set(a.rows.flatten().tolist()).isdisjoint(b.rows.flatten().tolist())
    places = torch.arange(max(*(m.entries.span(0, m.entries.shape[0] - 1)[1] for m in (a, b)), 0) + 1)
    taken = torch.zeros(len(places), dtype=torch.bool)
    taken[a.read(places).flatten()] = True
    return bool(taken[b.read(places).flatten()].any())


def _named(frames: list[Frame]) -> list[Frame]:
    """In the order of the network, each named after the first parameter that it acts on."""
    count: dict[str, int] = {}
    named = []
    for frame in sorted(frames, key=lambda frame: frame.order):
        first = frame.parameters[0]
        count[first] = count.get(first, -1) + 1
        named.append(replace(frame, name=f"{first}[{count[first]}]"))
    return named
