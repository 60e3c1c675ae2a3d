"""The same entries under another shape, some of them, or several times."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..graph.forms import ANY
from ..graph.records import Operation
from ..rules.channels import UnfitError, Walk, along_last, called, entrywise, moved
from ..rules.contraction import Elementwise
from ..rules.frames import carried
from ..rules.pullback import Pull, unbroadcast
from ..rules.row import Row


def pull_reshaped(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """The same entries in the same order under another shape: view, flatten, squeeze, contiguous, dropout."""
    (name,) = wanted
    x = bound[name]
    return operation.call(bound), lambda G: {name: G.reshape(G.shape[0], *x.shape)}


def pull_permuted(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Axes in another order: transpose, permute."""
    x = bound["self"]
    axes = _order(operation, bound, x.dim())
    inverse = [0] + [1 + axes.index(d) for d in range(x.dim())]
    return operation.call(bound), lambda G: {"self": G.permute(inverse)}


def _order(operation: Operation, bound: Mapping[str, Any], rank: int) -> list[int]:
    """Which axis of the input each axis of the output is, read off a tensor whose sizes are all different."""
    probe = torch.empty([d + 2 for d in range(rank)], device="meta")
    return [size - 2 for size in operation.call({**bound, "self": probe}).shape]


def pull_concatenated(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Cat: each part takes back its range."""
    parts, dim = bound["tensors"], bound["dim"]
    axis = dim + 1 if dim >= 0 else dim
    return operation.call(bound), lambda G: {"tensors": list(G.split([p.shape[dim] for p in parts], axis))}


def written_over(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """What aten.copy makes, which has no derivative."""
    return src.to(self).expand_as(self)


def pull_copied(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """The source written over everything: what was there before has no part in it."""
    src = bound["src"]
    return operation.call(bound), lambda G: {"src": unbroadcast(G, src.shape).to(src.dtype)}


def padded_scales(walk: Walk, operation: Operation) -> Tensor | Sequence[Tensor]:
    """Zeros have any scale; other modes fill with entries from along the axes that are padded."""
    bound = operation.bind(walk.scales_as_values(operation))
    if bound.get("mode", "constant") != "constant":
        return along_last(walk, operation, len(bound["pad"]) // 2)
    if bound["value"]:
        raise UnfitError
    return called(operation, bound | {"value": ANY})


_shape = Row("self", pull_reshaped, channels=moved, rearranges=True, in_order=True)

_axes = Row("self", pull_permuted, channels=moved, rearranges=True)

_dropout = Row("input", pull_reshaped, channels=entrywise, rearranges=True)

_homogeneous = Row("self")

_moved = Row("self", channels=moved)

_cat = Row("sum(tensors)", pull_concatenated, channels=moved, joins=True)

ROWS: dict[str, Row] = {
    "pixel_shuffle": _moved,
    "pixel_unshuffle": _moved,
    "view": replace(_shape, unless="dtype"),  # other numbers in the same bits
    "view_as": replace(_shape, ignores=("other",)),
    "reshape_as": replace(_shape, ignores=("other",)),
    "_unsafe_view": _shape,
    "reshape": _shape,
    "flatten": _shape,
    "unflatten": _shape,
    "squeeze": _shape,
    "unsqueeze": _shape,
    "contiguous": _shape,
    "clone": _shape,
    "alias": _shape,
    "detach": replace(_shape, detaches=True),
    "dropout": _dropout,
    "feature_dropout": _dropout,
    "alpha_dropout": _dropout,
    "permute": _axes,
    "transpose": _axes,
    "t": _axes,
    "numpy_T": _axes,
    "mT": _axes,
    "movedim": _axes,
    "swapaxes": _axes,
    "swapdims": _axes,
    "moveaxis": _axes,
    "select": _moved,
    "slice": _moved,
    "narrow": _moved,
    "index": _homogeneous,
    "index_select": _homogeneous,
    "gather": _homogeneous,
    "flip": _moved,
    "roll": _moved,
    "expand": Row("self", contract={"self": Elementwise()}, channels=moved),
    "expand_as": Row("self", ignores=("other",), frames=carried),
    "broadcast_to": Row("self", frames=carried),
    "repeat": _moved,
    "tile": _moved,
    "diagonal": _moved,
    "diag_embed": _homogeneous,
    "channel_shuffle": _moved,
    "rot90": _moved,
    "slice_scatter": Row("self + src", channels=moved),
    "select_scatter": Row("self + src", channels=moved),
    "scatter": Row("self + src + value", unless="reduce"),
    "index_put": Row("self + values"),
    "copy": Row("src", pull_copied, {"src": Elementwise()}, entrywise, ignores=("self",), target=written_over),
    "col2im": _homogeneous,
    "repeat_interleave": replace(_homogeneous, frames=carried),
    "chunk": _moved,
    "split": _moved,
    "split_with_sizes": _moved,
    "unbind": _moved,
    "unfold": _moved,
    "im2col": _homogeneous,
    "tril": Row("self", channels=entrywise),
    "triu": Row("self", channels=entrywise),
    "constant_pad_nd": Row("self + value", channels=padded_scales),
    "pad": Row("self + value", channels=padded_scales),
    "cat": _cat,
    "concat": _cat,
    "concatenate": _cat,
    "hstack": Row("sum(tensors)", channels=moved, joins=True),
    "vstack": Row("sum(tensors)", channels=moved, joins=True),
    "stack": Row("sum(tensors)", channels=moved),
}
