"""Entries that come together along axes: sums, means, maxima, sorting."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..graph.records import Operation
from ..rules.apart import along, left
from ..rules.channels import Walk, entrywise, reduced
from ..rules.frames import reduced_frames
from ..rules.pullback import Cotangents, Pull, by_autograd
from ..rules.row import Row


def pull_mean(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Mean or sum over axes: each entry that was summed gets the same, (R, *kept) -> (R, *shape)."""
    x = bound["self"]
    rank = x.dim()
    dim = bound.get("dim")
    dims = range(rank) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    axes = sorted(d % rank for d in dims)
    out = operation.call(bound)
    factor = out.numel() / x.numel() if operation.name == "mean" else 1.0

    def pull(G: Tensor) -> Cotangents:
        if not bound.get("keepdim", False):
            for axis in axes:
                G = G.unsqueeze(axis + 1)
        return {"self": (G * factor).expand(G.shape[0], *x.shape)}

    return out, pull


def pull_cumulative(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Sums from each entry on to the end."""
    x, dim = bound["self"], bound["dim"]
    axis = dim + 1 if dim >= 0 else dim
    if not x.dim():
        return by_autograd(operation, bound, wanted)
    return operation.call(bound), lambda G: {"self": G.flip(axis).cumsum(axis).flip(axis).to(x.dtype)}


def maxima_scales(walk: Walk, operation: Operation) -> Tensor | Sequence[Tensor]:
    """The maximum along an axis, of everything, or of two tensors entry by entry."""
    return entrywise(walk, operation) if "other" in operation.arguments else reduced(walk, operation)


_along = Row("self", channels=reduced)

_apart = along("self", left)

ROWS: dict[str, Row] = {
    "sum": Row("self", pull_mean, channels=reduced, frames=reduced_frames, apart=_apart),
    "mean": Row("self", pull_mean, channels=reduced, frames=reduced_frames, apart=_apart),
    "cumsum": Row("self", pull_cumulative, channels=reduced),
    "median": Row("self"),
    "max": Row("self + other", channels=maxima_scales),
    "min": Row("self + other", channels=maxima_scales),
    "amax": replace(_along, apart=_apart),
    "amin": replace(_along, apart=_apart),
    "topk": _along,
    "sort": _along,
    "argmax": Row("step(self)"),
}
