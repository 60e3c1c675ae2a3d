"""How frames pass through an operation: the rules behind ``scope="full"``.

Where values are made by a linear map and used by linear maps and bilinear pairings alone, an invertible matrix may be
put in between: the rows of what makes them are multiplied by it, the columns of what uses them by its inverse. A rule
sees, for every entry of an operation's arguments, which *atom* it is, one coordinate of one space, and to which *fiber*
it belongs, one vector of that space. It says what becomes of both, and on the walk what it asks of the matrices: which
coordinates may not mix, which spaces have one matrix or inverse ones. Entries of fibers that meet an operation without
a rule, or a call that a rule was not made for (it raises `UnfitError`), keep their coordinates as they are.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..graph.records import Graph, Operation
from .channels import UnfitError, called

NONE = 0
"""The atom of an entry in no frame."""


class Labels(NamedTuple):
    """The atom of every entry of a value, and the fiber it belongs to, both shaped like one sample."""

    atoms: Tensor
    fibers: Tensor

    @property
    def framed(self) -> bool:
        """Whether any entry is in a frame."""
        return bool((self.atoms != NONE).any())

    def movedim(self, source: int, target: int) -> "Labels":
        """Both with an axis moved."""
        return Labels(self.atoms.movedim(source, target), self.fibers.movedim(source, target))

    def expand(self, shape: Sequence[int]) -> "Labels":
        """Both broadcast to a shape."""
        return Labels(self.atoms.expand(tuple(shape)), self.fibers.expand(tuple(shape)))


class FrameWalk(Protocol):
    """What a rule may ask of the walk that looks for frames."""

    graph: Graph

    def labels_of(self, name: str) -> Labels:
        """The labels of a value."""

    def bound(self, operation: Operation) -> tuple[dict[str, Any], dict[str, Any]]:
        """The operation's arguments with atoms, and with fibers, in place of tensors."""

    def entries_of(self, name: str) -> Tensor | None:
        """A view of one parameter's entries, without values, where a value is that and nothing else uses them."""

    def produced(self, shape: Sequence[int], axis: int, made_by: Sequence[Tensor]) -> Labels:
        """A new space along an axis of a result; ``made_by`` are entries, coordinates first, that a matrix acts on."""

    def consumed(self, labels: Labels, entries: Tensor, operation: Operation) -> None:
        """Vectors (*positions, K) meet entries (K, ...), that the inverse acts on."""

    def paired(self, a: Labels, b: Labels, operation: Operation) -> None:
        """Vectors (*batch, rows, K) of both meet in inner products: inverse matrices act on them."""

    def added(self, a: Labels, b: Labels, operation: Operation) -> Labels:
        """Entries of one shape are added: the same matrix acts on both."""

    def attached(self, labels: Labels, entries: Tensor, operation: Operation) -> Labels:
        """Entries of a parameter are added to what has these labels: the same matrix acts on them."""

    def joined(self, *keys: Tensor) -> Tensor:
        """New fibers: entries with the same keys belong together."""

    def released(self, labels: Labels, operation: Operation) -> None:
        """These entries have to stay as they are."""


FrameRule = Callable[[FrameWalk, Operation], Labels | Sequence[Labels]]


def carried(walk: FrameWalk, operation: Operation) -> Labels | Sequence[Labels]:
    """The result holds entries of the arguments: let the operation itself move the labels."""
    if any(not walk.graph.values[n].dtype.is_floating_point for _, n in operation.reads if n in walk.graph.values):
        raise UnfitError
    atoms, fibers = (called(operation, bound) for bound in walk.bound(operation))
    return [Labels(*pair) for pair in zip(atoms, fibers, strict=True)] if operation.many else Labels(atoms, fibers)  # type: ignore[arg-type]


def passed(walk: FrameWalk, operation: Operation) -> Labels:
    """Each entry stays, or changes its sign or its type, by itself."""
    value = walk.graph.values[operation.outputs[0]]
    if not value.dtype.is_floating_point:
        raise UnfitError
    return walk.labels_of(operation.by_argument["self"])


def multiplied(walk: FrameWalk, operation: Operation) -> Labels:
    """A factor or divisor: what it is the same for stays a vector, and what it is not the same for comes apart."""
    given = operation.by_argument
    shape = walk.graph.values[operation.outputs[0]].shape
    sides = {name: walk.labels_of(value) for name, value in given.items()}
    framed = [name for name, labels in sides.items() if labels.framed]
    if len(framed) != 1 or (framed == ["other"] and operation.name not in ("mul", "multiply")):
        raise UnfitError
    labels = sides.pop(framed[0]).expand(shape)
    for value in (given[name] for name in sides):
        size = walk.graph.values[value].shape
        place = torch.arange(torch.Size(size).numel()).view(size).expand(shape)
        if not _same_within_fibers(labels, place):
            labels = Labels(labels.atoms, walk.joined(labels.fibers, place))
    return labels


def _same_within_fibers(labels: Labels, place: Tensor) -> bool:
    """Whether each fiber meets one place only."""
    inside = labels.atoms != NONE
    pairs = torch.stack([labels.fibers[inside], place[inside]], 1).unique(dim=0)
    return len(pairs) == len(pairs[:, 0].unique())


def picked(walk: FrameWalk, operation: Operation) -> Labels:
    """Some entries along an axis, by numbers that nobody knows here: vectors that lie along others, each its own."""
    arguments, given = operation.arguments, operation.by_argument
    labels = walk.labels_of(given["self"])
    if not labels.framed:
        return walk.labels_of(operation.outputs[0])
    if "indices" in arguments:
        chosen = [(axis, index) for axis, index in enumerate(arguments["indices"]) if index is not None]
    else:
        chosen = [(arguments["dim"] % labels.atoms.dim(), arguments["index"])]
    if len(chosen) != 1:
        raise UnfitError
    axis, index = chosen[0]
    value = walk.graph.values[index.name]
    if value.dtype not in (torch.int32, torch.int64):
        raise UnfitError
    shape = walk.graph.values[operation.outputs[0]].shape
    new = len(shape) - labels.atoms.dim() + 1  # axes of the numbers
    places = shape[axis : axis + new]
    here = [*labels.atoms.shape[:axis], *[1] * new, *labels.atoms.shape[axis + 1 :]]
    atoms, fibers = (t.reshape(here).expand(shape) for t in along(walk, labels, [axis]))
    place = torch.arange(torch.Size(places).numel()).view(*places, *[1] * (len(shape) - axis - new)).expand(shape)
    return Labels(atoms, walk.joined(fibers, place))


def along(walk: FrameWalk, labels: Labels, axes: Sequence[int]) -> Labels:
    """Vectors are added along some axes, each with a weight of its own: (*shape) with those axes of size one."""
    atoms, fibers = labels
    if not atoms.numel():
        raise UnfitError
    rank = atoms.dim()
    kept = [d for d in range(rank) if d not in {a % rank for a in axes}]
    rows_of_atoms, rows_of_fibers = (
        t.permute(*kept, *axes_last(rank, axes)).flatten(len(kept)) for t in (atoms, fibers)
    )
    if bool((rows_of_atoms != rows_of_atoms[..., :1]).any()):
        raise UnfitError  # other coordinates at other places
    shape = [1 if d in {a % rank for a in axes} else size for d, size in enumerate(atoms.shape)]
    together = walk.joined(*rows_of_fibers.unbind(-1)) if rows_of_fibers.shape[-1] > 1 else rows_of_fibers[..., 0]
    return Labels(rows_of_atoms[..., 0].reshape(shape), together.reshape(shape))


def axes_last(rank: int, axes: Sequence[int]) -> list[int]:
    """Axes counted from the front, in order."""
    return sorted(a % rank for a in axes)


def reduced_frames(walk: FrameWalk, operation: Operation) -> Labels:
    """Sums and means over axes along which no vector lies."""
    labels = walk.labels_of(operation.by_argument["self"])
    dim, rank = operation.arguments.get("dim"), labels.atoms.dim()
    axes = list(range(rank)) if dim is None or dim == () else [dim] if isinstance(dim, int) else list(dim)
    shape = walk.graph.values[operation.outputs[0]].shape
    atoms, fibers = along(walk, labels, axes)
    return Labels(atoms.reshape(shape), fibers.reshape(shape))


def pooled_frames(axes: int) -> FrameRule:
    """Averages over windows of the last axes, of every channel by itself."""

    def rule(walk: FrameWalk, operation: Operation) -> Labels:
        labels = walk.labels_of(operation.by_argument["self"])
        shape = walk.graph.values[operation.outputs[0]].shape
        atoms, fibers = along(walk, labels, range(-axes, 0)).expand(shape)
        place = torch.arange(torch.Size(shape[-axes:]).numel()).view(shape[-axes:]).expand(shape)
        return Labels(atoms, walk.joined(fibers, place))

    return rule


def added_frames(walk: FrameWalk, operation: Operation) -> Labels:
    """The terms of a sum or difference have one matrix."""
    given, shape = operation.by_argument, walk.graph.values[operation.outputs[0]].shape
    if set(given) != {"self", "other"}:
        raise UnfitError  # a number is added
    a, b = (walk.labels_of(given[name]).expand(shape) for name in ("self", "other"))
    for labels, name, other in ((a, "other", b), (b, "self", a)):
        entries = walk.entries_of(given[name])
        if entries is not None and labels.framed and not other.framed:
            return walk.attached(labels, entries, operation)
    return walk.added(a, b, operation)
