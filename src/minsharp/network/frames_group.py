"""The whole group: rescalings of layers, and an invertible matrix in every frame; tried before it is claimed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..frozen import Frozen, Handed, held
from ..graph.records import Graph
from ..subject.modes import plain_mode, seeded
from ..text import printable
from .frames import FrameWalk
from .frames_solved import Frame, frames_of
from .rescalings import Scales, Symmetries, folding_frees
from .trial import State, Trial

TRIED = "tried on the network, its outputs moved"
GENTLE = 4.0  # condition number of the matrices that frames are tried with


@dataclass(frozen=True, eq=False)
class Transformation(Frozen, Mapping[str, float | Tensor]):
    """An element of the whole group: a factor for every parameter that is scaled, and a matrix for every frame.

    As a mapping it holds the factors. `minsharp.rescale` applies both.
    """

    factors: Scales = Handed()  # type: ignore[assignment]  # noqa: RUF009
    frames: tuple[Frame, ...]  # type: ignore[misc]  # what is before it has no default
    matrices: tuple[Tensor, ...] = Handed()  # type: ignore[assignment]
    """A of each frame, (h, h) in float64."""

    def __getitem__(self, name: str) -> float | Tensor:
        found: float | Tensor = held(self, "factors")[name]
        return found.clone() if isinstance(found, Tensor) else found

    def __iter__(self) -> Iterator[str]:
        return iter(held(self, "factors"))

    def __len__(self) -> int:
        return len(held(self, "factors"))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all parameters that it changes."""
        return tuple(
            dict.fromkeys([*held(self, "factors"), *(name for frame in self.frames for name in frame.parameters)])
        )

    @property
    def condition(self) -> float:
        """The largest condition number of its matrices; 1 where there are none."""
        return max((float(torch.linalg.cond(A)) for A in held(self, "matrices")), default=1.0)

    def of(self, name: str, parameter: Tensor) -> Tensor:
        """What a parameter becomes: a tensor of its own, in float64."""
        new = parameter.detach().double().clone(memory_format=torch.contiguous_format)
        for frame, A in zip(self.frames, held(self, "matrices"), strict=True):
            for member in frame.members:
                if member.parameter == name:
                    acting = A.to(new.device)
                    old = member.read(new)
                    member.write(new, torch.linalg.solve(acting.mT, old) if member.inverse else acting @ old)
        factor = held(self, "factors").get(name)
        return new if factor is None else new * (factor.to(new) if isinstance(factor, Tensor) else factor)

    def __repr__(self) -> str:
        scaled = f"{len(self.factors)} factors"
        return f"Transformation({scaled}, {len(self.matrices)} matrices, condition numbers up to {self.condition:.3g})"


@dataclass(frozen=True, eq=False)
class FullSymmetries(Symmetries):
    """The group of a factor for each layer and an invertible matrix for each frame.

    ``dimension`` counts both, what they share once: a frame of size h has h² numbers. ``unframed`` tells for the
    parameters whose outputs might have had a frame why they have none.
    """

    layer: Symmetries = field(repr=False)
    frames: tuple[Frame, ...]
    unframed: Mapping[str, str]

    @plain_mode()
    def random(self, seed: int = 0, spread: float = 1e3) -> Transformation:  # type: ignore[override]
        """A random element: factors between 1/spread and spread, matrices with condition numbers up to spread."""
        factors = self.layer.random(seed, spread)
        return Transformation(factors, self.frames, self.matrices(seed, spread))

    def matrices(self, seed: int, spread: float) -> tuple[Tensor, ...]:
        """Random matrices U D V with singular values between 1/sqrt(spread) and sqrt(spread)."""
        if not spread > 1:
            raise InputError(f"spread={spread}: expected a factor above 1, as in spread=1000")
        generator = seeded(seed)
        found = []
        for frame in self.frames:
            U, V = (
                torch.linalg.qr(torch.randn(frame.size, frame.size, generator=generator, dtype=torch.float64))[0]
                for _ in range(2)
            )
            D = torch.exp((torch.rand(frame.size, generator=generator, dtype=torch.float64) - 0.5) * log(spread))
            found.append((U * D) @ V)
        return tuple(found)

    def transformation(self, z: Tensor, matrices: Sequence[Tensor]) -> Transformation:
        """The element with these free numbers for the layers, and these matrices."""
        return Transformation(self.layer.scales(z), self.frames, tuple(matrices))

    def __repr__(self) -> str:
        lines = [f"Symmetries: {self.dimension} free numbers (scope 'full'), {len(self.frames)} frames"]
        lines += [f"  {printable(repr(frame))}" for frame in self.frames]
        lines += [f"  no frame for {printable(n)}: {printable(why)}" for n, why in self.unframed.items()]
        lines += [f"  pinned {printable(name)}: {printable(reason)}" for name, reason in self.pinned.items()]
        return "\n".join(lines + folding_frees(self.pinned))


class _FrameTrial(Trial):
    """Random matrices in some frames, on random samples."""

    def __init__(self, graph: Graph, found: FullSymmetries, state: State, *, own: bool):
        super().__init__(graph, found.layer, state, own=own)
        self._change = Transformation({}, found.frames, found.matrices(0, GENTLE))

    def _held(self, name: str) -> tuple[Any, Any]:
        before, after = super()._held(name)
        return (before, self._change.of(name, before)) if name in self.logs else (before, after)


def full_group(graph: Graph, layer: Symmetries, fixed: frozenset[str]) -> FullSymmetries:
    """The whole group by the rules alone, around that of the layers."""
    return _around(layer, *frames_of(FrameWalk(graph, fixed).demands))


def _around(layer: Symmetries, frames: Sequence[Frame], unframed: Mapping[str, str]) -> FullSymmetries:
    moved = {name for frame in frames for name in frame.parameters}
    pinned = {name: why for name, why in layer.pinned.items() if name not in moved}
    return FullSymmetries(
        "full",
        _dimension(layer, frames),
        pinned,
        layer.shapes,
        layer.exponents,
        layer.nodes,
        layer,
        tuple(frames),
        unframed,
    )


def _dimension(layer: Symmetries, frames: Sequence[Frame]) -> int:
    """h² - 1 of each frame, and the rank of all scalings of layers and of whole frames together, cell by cell."""
    cells: dict[tuple[str, int], int] = {}
    rest = {name: torch.Size(shape).numel() for name, shape in layer.shapes.items()}
    for f, frame in enumerate(frames):
        for member in frame.members:
            cells.setdefault((member.parameter, f), len(cells))
            rest[member.parameter] -= member.count
    for name, left in rest.items():
        if left:
            cells.setdefault((name, -1), len(cells))
    rows = []
    for z in torch.eye(layer.dimension, dtype=torch.float64):
        logs = layer.log_scales(z)
        rows.append([float(logs[name]) for name, _ in cells])
    for f, frame in enumerate(frames):
        signs = {member.parameter: -1.0 if member.inverse else 1.0 for member in frame.members}
        rows.append([signs[name] if which == f else 0.0 for name, which in cells])
    scalings = int(torch.linalg.matrix_rank(torch.tensor(rows, dtype=torch.float64))) if rows else 0
    return sum(frame.size**2 - 1 for frame in frames) + scalings


def tried_full_group(graph: Graph, layer: Symmetries, state: State, fixed: frozenset[str]) -> FullSymmetries:
    """The whole group; frames that move the outputs of the network itself are left out."""
    found = full_group(graph, layer, fixed)
    if not found.frames or _holds(graph, found, state):
        return found
    good = [frame for frame in found.frames if _holds(graph, _only(found, [frame]), state)]
    unframed = {name: TRIED for frame in found.frames if frame not in good for name in frame.parameters}
    left = _around(layer, good, {**found.unframed, **unframed})
    return left if _holds(graph, left, state) else _around(layer, [], dict.fromkeys(unframed, TRIED))


def _only(found: FullSymmetries, frames: Sequence[Frame]) -> FullSymmetries:
    return replace(found, frames=tuple(frames))


def _holds(graph: Graph, found: FullSymmetries, state: State) -> bool:
    """Whether the outputs stay: with other weights, for zeros hide much, or with the network's own."""
    for own in (False, True):
        verdict = _FrameTrial(graph, found, state, own=own).verdict()
        if verdict is not None:
            return verdict
    return True
