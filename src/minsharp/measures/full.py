"""Minimum sharpness over the whole symmetry group: scales of layers, and an invertible matrix in every frame."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..curvature.gram import hessian_grams
from ..errors import InputError
from ..frozen import Handed, held
from ..losses import Criterion
from ..network.network import Network
from ..network.symmetry import FullSymmetries, Transformation, tried_group
from ..results.curvature import Diagonal, MatrixName, Trace
from ..results.gram import Grams
from ..solve.status import Status, StatusText
from ..subject.batches import Data
from ..subject.model import Pattern, parameters_of, unwrapped
from ..subject.outputs import Pick
from ..text import count, magnitude, number, percent
from .minimum import OTHERS, MinimumSharpness, graph_of
from .outcome import finite_exp, nothing_to_do
from .program import rows as rows_of

CONDITION = 1e6
"""The largest condition number of a matrix; in types coarser than double precision, one over the root of their eps."""


@dataclass(frozen=True, repr=False, eq=False)
class FullMinimumSharpness(MinimumSharpness):
    """The minimum over scales of layers and matrices of frames; ``scales`` is a `Transformation`, for `rescale`.

    ``lower_bound`` is a bound for all scales and matrices: the two are one convex problem. The ``standard_error`` of
    estimated curvature is an approximation: all of a parameter is taken to be as uncertain as its trace.
    """

    symmetries: FullSymmetries = field(repr=False)
    matrices: tuple[Tensor, ...] = Handed(())  # type: ignore[assignment]

    @property
    def scales(self) -> Transformation:
        """Factors for layers, and the matrix of every frame; tensors of their own each time."""
        return self.symmetries.transformation(self.z, [matrix.clone() for matrix in held(self, "matrices")])

    @property
    def unknowns(self) -> int:
        """How many numbers z holds: those of the layers."""
        return self.symmetries.layer.dimension

    def check_whole(self) -> None:
        """There is a matrix for every frame, and its entries are there."""
        frames, shapes = self.symmetries.frames, self.symmetries.shapes
        sizes = [(frame.size, frame.size) for frame in frames]
        if [tuple(matrix.shape) for matrix in self.matrices] != sizes:
            raise ValueError(f"its matrices do not fit the sizes of its frames, {sizes[:5]}")
        for frame in frames:
            for member in frame.members:
                member.check_whole(frame.size, shapes.get(member.parameter, (0,)))
        super().check_whole()

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json."""
        change = self.scales
        frames = [
            {"name": frame.name, "size": frame.size, "parameters": list(frame.parameters), "matrix": matrix.tolist()}
            for frame, matrix in zip(change.frames, change.matrices, strict=True)
        ]
        return {**super().to_dict(), "frames": frames, "condition": change.condition}

    def _rows(self) -> list[tuple[str, ...]]:
        change = self.scales
        rows: list[tuple[str, ...]] = []
        for name, after in self.by_parameter.items():
            sizes = [f"{frame.size}x{frame.size}" for frame in change.frames if name in frame.parameters]
            parts = [f"{sizes.count(size)} of {size}" for size in dict.fromkeys(sizes)]
            parts = [number(float(change[name]), 4), *parts] if name in change else parts
            rows.append((name, number(self.before[name]), number(after), ", ".join(parts) or "pinned"))
        return rows


def full_minimum_sharpness(
    model: nn.Module | Network,
    data: Data | Grams,
    loss: Criterion | None = None,
    *,
    power_of_two: bool = False,
    curvature: MatrixName = "hessian",
    parameters: Pattern = None,
    outputs: Pick = None,
    class_axis: int | None = None,
    tolerance: float = 0.0,
    seed: int = 0,
    memory: int | None = None,
    progress: bool = False,
) -> FullMinimumSharpness:
    """What ``minimum_sharpness(..., scope="full")`` returns.

    Two linear maps in a row, without biases: 2 tr (M_in^1/2 M_out M_in^1/2)^1/2.

    >>> import numpy as np
    >>> from minsharp.solve.frames import least_trace
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False)).double()
    >>> grams = hessian_grams(model, torch.randn(8, 4).double())
    >>> M_out, M_in = (grams.matrices(name)[0].numpy() for name in ("0.weight", "1.weight"))
    >>> bool(np.isclose(full_minimum_sharpness(model, grams).value, least_trace(M_out, M_in)))
    True
    """
    if power_of_two:
        raise InputError('scope="full" has matrices, and none of powers of two: power_of_two needs "layer" or "neuron"')
    if isinstance(data, Trace | Diagonal):
        raise InputError('scope="full" needs Gram matrices: pass the data, or minsharp.hessian_grams(model, data)')
    measured = data
    if not isinstance(measured, Grams):
        options: Any = {"outputs": outputs, "class_axis": class_axis, "memory": memory, "progress": progress}
        options |= {"tolerance": tolerance, "seed": seed}
        measured = hessian_grams(model, measured, loss, parameters=parameters, curvature=curvature, **options)
    graph = graph_of(model, measured, "minimum_sharpness")
    fixed = [name for name in graph.parameters if name not in measured.exact]
    group = tried_group(graph, unwrapped(model), "full", fixed)
    assert isinstance(group, FullSymmetries)
    if _layout(group) != dict(measured.layout):
        raise InputError(
            "these Gram matrices are of other frames than the network has. Measure again: "
            "minsharp.hessian_grams(model, data)"
        )
    return _minimise_over(group, measured, _condition(unwrapped(model)))


def _layout(group: FullSymmetries) -> dict[str, tuple[int, ...]]:
    sizes: dict[str, tuple[int, ...]] = {}
    for frame in group.frames:
        for member in frame.members:
            sizes[member.parameter] = (*sizes.get(member.parameter, ()), frame.size)
    return sizes


def _condition(module: nn.Module) -> float:
    """The bound on the condition number of a matrix, by the coarsest type among the parameters."""
    kinds = {p.dtype for p in parameters_of(module).values() if p.dtype.is_floating_point}
    return min([CONDITION, *(torch.finfo(kind).eps ** -0.5 for kind in kinds)])


def _minimise_over(group: FullSymmetries, measured: Grams, condition: float) -> FullMinimumSharpness:
    """The minimum over the whole group, from Gram matrices that have been measured."""
    import numpy as np

    from ..solve.frames import minimise_with_frames

    rest = {name: torch.tensor(max(measured.rest(name), 0.0), dtype=torch.float64) for name in measured.exact}
    c, A, _ = rows_of(rest, group.layer)
    with np.errstate(divide="ignore"):
        log_c, A = np.log(c), A.toarray()
    grams = {name: iter(measured.matrices(name)) for name in measured.exact}
    blocks = [[next(grams[m.parameter]).cpu().numpy() for m in frame.members] for frame in group.frames]
    rows = dict(zip(rest, A, strict=True))
    terms = [_terms(frame.members, found, rows) for frame, found in zip(group.frames, blocks, strict=True)]
    solution = minimise_with_frames(log_c, A, terms, condition**2)
    before = dict(measured.by_parameter)
    after = _after(group, blocks, rest, rows, solution)
    value = finite_exp(solution.log_value)
    z, total = torch.from_numpy(solution.z), sum(before.values())
    return FullMinimumSharpness(
        value=value,
        lower_bound=min(finite_exp(solution.log_bound), value),
        trace=total,
        status=nothing_to_do(group, before) or _status(group, solution, list(rest), condition, sum(after.values())),
        attained=not solution.vanishing.any() and not any(solution.bounded),
        scope="full",
        by_parameter=after,
        pinned={name: why for name, why in group.pinned.items() if name in before},
        curvature=measured.kind,
        loss=measured.loss,
        samples=measured.samples,
        exact=measured.exact,
        symmetries=group,
        before=before,
        z=z,
        energy=measured.energy,
        standard_error=measured.error_of({name: after[name] / old for name, old in before.items() if old}),
        matrices=tuple(_root(torch.from_numpy(P)) for P in solution.P),
    )


def _terms(members: Sequence[Any], blocks: Sequence[Any], rows: dict[str, Any]) -> Any:
    """A frame's matrices, those with one scale and side added up."""
    import numpy as np

    from ..solve.frames import Terms

    sums: dict[tuple[bytes, bool], tuple[Any, Any]] = {}
    for member, block in zip(members, blocks, strict=True):
        row = rows[member.parameter]
        key = (row.tobytes(), member.inverse)
        sums[key] = (row, sums[key][1] + block if key in sums else block)
    return Terms(
        np.stack([block for _, block in sums.values()]),
        np.stack([row for row, _ in sums.values()]),
        np.array([inverse for _, inverse in sums]),
    )


def _after(group: FullSymmetries, blocks: Any, rest: dict[str, Tensor], rows: dict[str, Any], solution: Any) -> Any:
    """The trace of every parameter in the network that the scales and matrices make."""
    import numpy as np

    factors = {name: float(np.exp(-2 * (row @ solution.z))) for name, row in rows.items()}
    after = {name: float(value) * factors[name] for name, value in rest.items()}
    for frame, found, P in zip(group.frames, blocks, solution.P, strict=True):
        for member, block in zip(frame.members, found, strict=True):
            moved = np.trace(P @ block) if member.inverse else np.trace(np.linalg.solve(P, block))
            after[member.parameter] += float(moved) * factors[member.parameter]
    return after


def _root(P: Tensor) -> Tensor:
    """The symmetric A with A^T A = P."""
    values, vectors = torch.linalg.eigh(P)
    return (vectors * values.clamp_min(0).sqrt()) @ vectors.mT


def _status(group: FullSymmetries, solution: Any, names: list[str], condition: float, reached: float) -> StatusText:
    gap = magnitude(max(solution.log_value - solution.log_bound, 0.0), 0)
    vanishing = [name for name, gone in zip(names, solution.vanishing, strict=True) if gone]
    if vanishing:
        return Status.INFIMUM.told(names=", ".join(vanishing))
    bounded = [frame.name for frame, short in zip(group.frames, solution.bounded, strict=True) if short]
    if bounded:
        value = finite_exp(solution.log_value)
        above = percent(reached / value - 1, 2) + " above it" if value else f"at {number(reached)}"
        return Status.INFIMUM_OF_FRAMES.told(
            gap=gap, names=", ".join(bounded), condition=count(round(condition)), above=above
        )
    return Status.MINIMUM.told(gap=gap)


OTHERS["full"] = full_minimum_sharpness
