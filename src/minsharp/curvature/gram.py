"""The quantity behind ``scope="full"``: sums of g g^T of the gradients in each frame, head by head.

With cotangents G (C, L) at a weight and inputs U (J, L) at its L positions the gradient is G U^T, and for rows and for
columns of it

    (G U^T)(G U^T)^T = G (U^T U) G^T            (G U^T)^T(G U^T) = U (G^T G) U^T

of which only the blocks of the frames are worked out, through L by L matrices or through the gradient, by count.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..losses import Criterion
from ..network.frames_solved import Frame, Member
from ..network.network import Network
from ..network.symmetry import FullSymmetries, tried_group
from ..results.curvature import MatrixName
from ..results.gram import Grams
from ..rules.contraction import Outer, Use, square_sum, widest
from ..rules.pullback import wide
from ..subject.batches import Data
from ..subject.model import Pattern
from ..subject.outputs import Pick
from .hessian import Choice, measured_together
from .quantities import Measured, Place, Quantity


class _Blocks(NamedTuple):
    """Members of a weight as blocks of rows, or of columns, of its gradient (C, J): (B, h, T) places, and the rest."""

    rows: bool
    blocks: list[Tensor]
    rest: Tensor


class GramSum(Quantity[Grams]):
    """sum_i g_i g_i^T for all that a frame acts on, and the trace of the rest."""

    def __init__(self, frames: Sequence[Frame] = ()):
        self.members: dict[str, list[Member]] = {}
        for frame in frames:
            for member in frame.members:
                self.members.setdefault(member.parameter, []).append(member)
        self._plans: dict[tuple[str, int, int], _Blocks | None] = {}
        self._indices: dict[str, tuple[list[Tensor], Tensor]] = {}

    def prepared(self, network: Network, parameters: Sequence[str]) -> "GramSum":
        """With the frames of a network, all other parameters held fixed."""
        fixed = [name for name in network.graph.parameters if name not in parameters]
        found = tried_group(network.graph, network.module, "full", fixed)
        assert isinstance(found, FullSymmetries)
        return GramSum(found.frames)

    @property
    def layout(self) -> dict[str, tuple[int, ...]]:
        """The sizes of the matrices of each parameter."""
        return {name: tuple(len(m.rows) for m in members) for name, members in self.members.items()}

    def zero(self, parameter: str, like: Tensor) -> Tensor:
        """All matrices of a parameter, one after the other, and the trace of the rest."""
        return widest(like.new_zeros(sum(h * h for h in self.layout.get(parameter, ())) + 1))

    def of_gradients(self, parameter: str, gradients: Tensor) -> Tensor:
        """(n, R, *parameter) -> all matrices, and the trace of the rest."""
        if parameter not in self.members:
            return square_sum(gradients).unsqueeze(0)
        indices, rest = self._index(parameter, gradients)
        flat = gradients.flatten(2).flatten(0, 1)  # (n * R, entries)
        parts = []
        for index in indices:
            g = widest(flat[:, index].transpose(0, 1).flatten(1))  # (h, n * R * m)
            parts.append((g @ g.mT).flatten())
        return torch.cat([*parts, square_sum(flat[:, rest]).unsqueeze(0)])

    def _index(self, parameter: str, gradients: Tensor) -> tuple[list[Tensor], Tensor]:
        """Where the entries of each member stand, (h, m), and those of the rest."""
        if parameter not in self._indices:
            shape = gradients.shape[2:]
            places = torch.arange(shape.numel()).view(shape)
            indices = [member.read(places) for member in self.members[parameter]]
            left = torch.ones(shape.numel(), dtype=torch.bool)
            for index in indices:
                left[index.flatten()] = False
            device = gradients.device
            self._indices[parameter] = [i.to(device) for i in indices], left.nonzero().flatten().to(device)
        return self._indices[parameter]

    def contract(self, place: Place, G: Tensor) -> Tensor:
        """Without forming the gradients, where the members are rows or columns of a weight."""
        name, contraction = place.leaf.parameter, place.contraction
        if name not in self.members:
            return place.trace(G).unsqueeze(0)
        if not isinstance(contraction, Outer) or place.leaf.made is not place.leaf.source:
            return super().contract(place, G)
        g = contraction.cotangents(place.use, G)  # (n, R, groups, C, L)
        if g.shape[2] != 1:
            return super().contract(place, G)
        C = g.shape[3]
        plan = self._plan(name, contraction, place.use, C)
        if plan is None:
            return super().contract(place, G)
        return (_by_rows if plan.rows else _by_columns)(contraction, place.use, wide(g[:, :, 0]), plan)

    def _plan(self, name: str, contraction: Outer, use: Use, C: int) -> _Blocks | None:
        J = torch.Size(use.shape).numel() // max(C, 1)
        key = (name, C, J)
        if key not in self._plans:
            codes = contraction.restore(torch.arange(C * J).view(1, C, J), use).contiguous()
            found = [_block(member.read(codes), C, J) for member in self.members[name]]
            self._plans[key] = _together(found, C, J)
        return self._plans[key]

    def result(self, measured: Measured) -> Grams:
        """The matrices of each parameter."""
        return Grams(*measured, self.layout)


def _block(codes: Tensor, C: int, J: int) -> tuple[bool, Tensor] | None:
    """Whether entries (h, m), by their numbers in the gradient (C, J), are whole rows or columns; and which, (h, T)."""
    for rows in (True, False):
        across, along = (codes // J, codes % J) if rows else (codes % J, codes // J)
        length = J if rows else C
        first, slot = torch.unique(across[0], return_inverse=True)
        starts = torch.stack([(slot == t).nonzero()[0, 0] for t in range(len(first))])
        which = across[:, starts]  # (h, T)
        whole = codes.shape[1] == length * len(first) and bool((along == along[:1]).all())
        if whole and torch.equal(which[:, slot], across) and len(codes[0].unique()) == codes.shape[1]:
            return rows, which
    return None


def _together(found: list[tuple[bool, Tensor] | None], C: int, J: int) -> _Blocks | None:
    kinds = {block[0] for block in found if block is not None}
    if None in found or len(kinds) != 1:
        return None
    (rows,) = kinds
    blocks = [block[1] for block in found if block is not None]
    left = torch.ones(C if rows else J, dtype=torch.bool)
    for block in blocks:
        left[block.flatten()] = False
    return _Blocks(rows, blocks, left.nonzero().flatten())


def _by_rows(contraction: Outer, use: Use, g: Tensor, plan: _Blocks) -> Tensor:
    """Blocks of sum over samples and columns of G (U^T U) G^T; g is (n, R, C, L)."""
    _, R, C, L = g.shape
    J, h = torch.Size(use.shape).numel() // C, max(len(block) for block in plan.blocks)
    if L * L * J + R * C * L * (L + h) < R * C * J * (L + h):
        other = g @ contraction.gram(use)[:, 0].unsqueeze(1)  # (n, R, C, L)
        return _blocks(g, other, plan, 2)
    gradient = g @ contraction.inputs(use)[:, 0].mT.unsqueeze(1)  # (n, R, C, J)
    return _blocks(gradient, gradient, plan, 2)


def _by_columns(contraction: Outer, use: Use, g: Tensor, plan: _Blocks) -> Tensor:
    """Blocks of sum over samples of U (sum over columns of G^T G) U^T; g is (n, R, C, L)."""
    _, R, C, L = g.shape
    U = contraction.inputs(use)[:, 0]  # (n, J, L)
    if U.shape[0] != g.shape[0]:
        U = U.expand(g.shape[0], -1, -1)
    J, h = U.shape[1], max(len(block) for block in plan.blocks)
    if R * C * L * L + J * L * (L + h) < R * C * J * (L + h):
        rows = g.flatten(1, 2)  # (n, R * C, L)
        return _blocks(U, U @ (rows.mT @ rows), plan, 1)
    gradient = (g @ U.mT.unsqueeze(1)).flatten(1, 2).mT  # (n, J, R * C)
    return _blocks(gradient, gradient, plan, 1)


def _blocks(a: Tensor, b: Tensor, plan: _Blocks, axis: int) -> Tensor:
    """The blocks of a b^T along an axis, all else summed over; and the sum of the diagonal outside of them."""
    parts = []
    for block in plan.blocks:
        first, second = (widest(_lined(t, block.to(t.device), axis)) for t in (a, b))
        parts.append((first @ second.mT).flatten())
    rest = plan.rest.to(a.device)
    left = widest((a.index_select(axis, rest) * b.index_select(axis, rest)).flatten(1).sum(1)).sum()
    return torch.cat([*parts, left.unsqueeze(0)])


def _lined(tensor: Tensor, block: Tensor, axis: int) -> Tensor:
    """The rows of a block (h, T) along an axis: (h, everything else)."""
    chosen = tensor.index_select(axis, block.flatten()).movedim(axis, 0)  # (h * T, ...)
    return chosen.reshape(len(block), -1)


def hessian_grams(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    parameters: Pattern = None,
    curvature: MatrixName = "hessian",
    outputs: Pick = None,
    class_axis: int | None = None,
    tolerance: float = 0.0,
    seed: int = 0,
    memory: int | None = None,
    progress: bool = False,
    process_group: Any = None,
) -> Grams:
    """Sums of g g^T in every frame of a network: as `hessian_trace`, with what a minimum over matrices needs.

    ``minimum_sharpness(model, grams, scope="full")`` takes it in place of the data. The matrices are those of the
    Gauss-Newton matrix, positive semi-definite also where a ``tolerance`` makes them estimates: where that is not the
    Hessian, only ``curvature="ggn"`` has them.

    >>> _ = torch.manual_seed(0)
    >>> model, x = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), torch.randn(8, 4)
    >>> grams = hessian_grams(model, x)
    >>> from minsharp import hessian_trace
    >>> abs(grams.trace.total / hessian_trace(model, x).total - 1) < 1e-6
    True
    >>> [matrix.shape for matrix in grams.matrices("0.weight")]
    [torch.Size([3, 3])]
    """
    chosen = Choice(parameters, curvature, "parameters", outputs, class_axis, tolerance, seed, memory, progress)
    return measured_together(GramSum(), model, data, loss, chosen, process_group)
