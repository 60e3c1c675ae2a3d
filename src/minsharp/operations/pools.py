"""Pools, resizing, and pads that repeat entries: windows over the last axes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..graph.records import Operation
from ..rules.apart import along, before_windows
from ..rules.channels import UnfitError, Walk, along_last
from ..rules.frames import pooled_frames
from ..rules.pullback import Cotangents, Pull, by_autograd, stacked
from ..rules.row import Row
from .windows import each

aten = torch.ops.aten


def pull_max_pool(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Any, Pull]:
    """Scatter back to where the maximum was: in one, two or three dimensions."""
    x = bound["self"]
    rank = x.dim() - 2
    if rank != len(bound["kernel_size"]):  # no batch axis
        return by_autograd(operation, bound, wanted)
    window = [bound[k] for k in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")]
    out, indices = getattr(aten, f"max_pool{rank}d_with_indices")(x, *window)
    kernel = bound["kernel_size"]
    steps, dilation = each(bound["stride"] or kernel, kernel), each(bound["dilation"], kernel)
    apart = set(dilation) == {1} and all(s >= k for s, k in zip(steps, kernel, strict=True))

    def pull(G: Any) -> Cotangents:
        g = (G[0] if operation.many else G).transpose(0, 1).flatten(3)  # (n, R, C, windows)
        where = indices.flatten(2).unsqueeze(1).expand_as(g)
        back = g.new_zeros(*g.shape[:3], x[0, 0].numel())
        (back.scatter_ if apart else back.scatter_add_)(3, where, g)
        return {"self": back.transpose(0, 1).unflatten(3, x.shape[2:])}

    return ((out, indices) if operation.many else out), pull


def pull_avg_pool2d(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Spread over the window."""
    x = bound["self"]
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    window = [bound[k] for k in names]

    def pull(G: Tensor) -> Cotangents:
        like = x.new_empty(1).expand(G.shape[0] * x.shape[0], *x.shape[1:])
        return {"self": stacked(lambda b: aten.avg_pool2d_backward(b.contiguous(), like, *window), G)}

    return operation.call(bound), pull


def window_scales(walk: Walk, operation: Operation) -> Tensor | Sequence[Tensor]:
    """Pools, pads and resizing: entries along the last axes come together, as many as the name says (``2d``)."""
    dimensions = re.search(r"(\d)d", operation.name)
    if dimensions is None:
        raise UnfitError
    return along_last(walk, operation, int(dimensions[1]))


_apart = along("self", before_windows)

_window = Row("self", channels=window_scales, apart=_apart)


def _average(axes: int) -> Row:
    """Averages over windows of the last axes."""
    return Row("self", channels=window_scales, frames=pooled_frames(axes), apart=_apart)


_max_pool = Row("self", pull_max_pool, channels=window_scales, apart=_apart)

_resize = Row(
    "self + input",
    channels=window_scales,
    apart=lambda call: _apart(call) or along("input", before_windows)(call),
)

ROWS: dict[str, Row] = {
    "max_pool1d": _max_pool,
    "max_pool1d_with_indices": _max_pool,
    "max_pool2d": _max_pool,
    "max_pool2d_with_indices": _max_pool,
    "max_pool3d": _max_pool,
    "max_pool3d_with_indices": _max_pool,
    "adaptive_max_pool1d": _window,
    "adaptive_max_pool2d": _window,
    "adaptive_max_pool3d": _window,
    "avg_pool1d": _average(1),
    "avg_pool2d": replace(_average(2), pull=pull_avg_pool2d),
    "avg_pool3d": _average(3),
    "adaptive_avg_pool1d": _average(1),
    "adaptive_avg_pool2d": _average(2),
    "adaptive_avg_pool3d": _average(3),
    "_adaptive_avg_pool2d": _average(2),
    "upsample_nearest1d": _resize,
    "upsample_nearest2d": _resize,
    "upsample_nearest3d": _resize,
    "upsample_linear1d": _resize,
    "upsample_bilinear2d": _resize,
    "upsample_bicubic2d": _resize,
    "reflection_pad1d": _window,
    "reflection_pad2d": _window,
    "replication_pad1d": _window,
    "replication_pad2d": _window,
}
