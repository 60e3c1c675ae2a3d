"""The same entries under another shape, some of them, or several times."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..graph.forms import ANY
from ..graph.records import Operation, Value
from ..rules.apart import (
    along,
    before_padded,
    beside_part,
    by_entry,
    by_parts,
    expanded,
    in_order,
    in_order_as,
    joined,
    left,
    other_than,
    squeezed,
    unflattened,
)
from ..rules.channels import UnfitError, Walk, along_last, called, entrywise, moved
from ..rules.contraction import Elementwise
from ..rules.frames import carried, picked
from ..rules.narrowing import Parts, same_place, taken_beside
from ..rules.pullback import Cotangents, Pull, by_autograd, unbroadcast
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


def pull_stacked(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Stack: each part takes back its place along the new axis."""
    return operation.call(bound), lambda G: {"tensors": list(G.unbind(_after_columns(bound["dim"])))}


def pull_taken(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Any, Pull]:
    """A part, or several, of what goes in, as views: slice, select, diagonal, split. Write into the same of zeros."""
    x, made = bound["self"], operation.call(bound)
    axes = {name: _after_columns(bound[name]) for name in ("dim", "dim1", "dim2") if name in bound}

    def pull(G: Any) -> Cotangents:
        given = G if operation.many else [G]
        columns = next((g for g in given if g is not None), None)
        if columns is None:
            return {}
        if columns.shape[1:] == x.shape:  # all of it
            return {"self": columns}
        covered = operation.many and all(g is not None for g in given)
        back = (room if covered else blank)(columns, x.shape)
        views = operation.call({**bound, **axes, "self": back})
        for view, g in zip(views if operation.many else [views], given, strict=True):
            if g is not None:
                view.copy_(g)
        return {"self": back}

    return made, pull


def room(G: Tensor, shape: Sequence[int]) -> Tensor:
    """For the cotangents of an argument, (R, *shape), sample by sample in memory; not yet written."""
    if not len(shape):
        return G.new_empty(len(G))
    return G.new_empty(shape[0], len(G), *shape[1:]).transpose(0, 1)


def blank(G: Tensor, shape: Sequence[int]) -> Tensor:
    """The same with zeros."""
    return room(G, shape).zero_()


def permuted_parts(values: Mapping[str, Value], operation: Operation, axis: int, size: int) -> Parts:
    """The same axis, where it was."""
    rank = len(values[operation.outputs[0]].shape)
    return Parts({"self": _order(operation, operation.arguments, rank)[axis]})


def _after_columns(dim: int) -> int:
    """An axis of a value as an axis of its cotangents, which have the columns in front."""
    return dim + 1 if dim >= 0 else dim


def pull_expanded(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Entries that are used several times, by expand: the sum."""
    x = bound["self"]
    return operation.call(bound), lambda G: {"self": unbroadcast(G, x.shape)}


def pull_repeated(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Copies side by side along each axis: their sum, (R, times * size, ...) -> (R, size, ...)."""
    x, out = bound["self"], operation.call(bound)
    if 0 in out.shape:
        return by_autograd(operation, bound, wanted)
    sizes = [1] * (out.dim() - x.dim()) + list(x.shape)
    apart = [n for total, size in zip(out.shape, sizes, strict=True) for n in (total // size, size)]
    copies = [1 + 2 * d for d in range(out.dim())]

    def pull(G: Tensor) -> Cotangents:
        total = G.reshape(len(G), *apart).sum(copies) if copies else G
        return {"self": total.reshape(len(G), *x.shape)}

    return out, pull


def pull_flipped(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """The other way round, once more."""
    return operation.call(bound), lambda G: {"self": G.flip([_after_columns(d) for d in bound["dims"]])}


def pull_padded(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Take off what was put around, and put back zeros where something was taken off."""
    if bound.get("mode", "constant") != "constant" or wanted != {"self"}:
        return by_autograd(operation, bound, wanted)
    return operation.call(bound), lambda G: {"self": F.pad(G, [-p for p in bound["pad"]])}


def pull_triangle(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """The same triangle."""
    return operation.call(bound), lambda G: {"self": operation.call({**bound, "self": G})}


def pull_index(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """x[..., indices, ...]: each entry goes back to where it was, and adds to what is there."""
    x, indices = bound["self"], bound["indices"]
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if axes != list(range(axes[0], axes[-1] + 1)):  # then the result has the indexed axes in front
        return by_autograd(operation, bound, wanted)
    whole = len(axes) == 1 and indices[axes[0]].dtype in (torch.int32, torch.int64)

    def pull(G: Tensor) -> Cotangents:
        back = blank(G, x.shape)
        if whole:
            index, axis = indices[axes[0]], axes[0] + 1
            flat = G.flatten(axis, axis + index.dim() - 1) if index.dim() else G.unsqueeze(axis)
            return {"self": back.index_add_(axis, index.flatten() % max(x.shape[axes[0]], 1), flat)}
        return {"self": torch.ops.aten.index_put_(back, [None, *indices], G, True)}

    return operation.call(bound), pull


def pull_index_select(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Each row adds to where it was."""
    x, axis = bound["self"], _after_columns(bound["dim"])
    if not x.dim():
        return by_autograd(operation, bound, wanted)
    return operation.call(bound), lambda G: {"self": blank(G, x.shape).index_add_(axis, bound["index"].flatten(), G)}


def pull_gathered(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Each entry adds to where it was."""
    x, index = bound["self"], bound["index"]
    if not x.dim() or not index.dim():
        return by_autograd(operation, bound, wanted)

    def pull(G: Tensor) -> Cotangents:
        return {"self": blank(G, x.shape).scatter_add_(_after_columns(bound["dim"]), index.expand(G.shape), G)}

    return operation.call(bound), pull


def written_over(self: Tensor, src: Tensor | float, non_blocking: bool = False) -> Tensor:
    """What aten.copy makes, which has no derivative; torch takes a number too."""
    return torch.as_tensor(src).to(self).expand_as(self)


def pull_copied(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """The source written over everything: what was there before has no part in it."""
    src = bound["src"]
    return operation.call(bound), lambda G: {"src": unbroadcast(G, src.shape)}


def padded_scales(walk: Walk, operation: Operation) -> Tensor | Sequence[Tensor]:
    """Zeros have any scale; other modes fill with entries from along the axes that are padded."""
    bound = operation.bind(walk.scales_as_values(operation))
    if bound.get("mode", "constant") != "constant":
        return along_last(walk, operation, len(bound["pad"]) // 2)
    if bound["value"]:
        raise UnfitError
    return called(operation, bound | {"value": ANY})


_shape = Row("self", pull_reshaped, channels=moved, rearranges=True, in_order=True)

_same_place = replace(_shape, narrows=same_place)

_axes = Row(
    "self", pull_permuted, channels=moved, rearranges=True, narrows=permuted_parts, apart=by_parts(permuted_parts)
)

_as_it_is = replace(_same_place, apart=by_entry)

_dropout = Row("input", pull_reshaped, channels=entrywise, rearranges=True, narrows=same_place, apart=by_entry)

_homogeneous = Row("self")

_moved = Row("self", channels=moved)

_taken = Row("self", pull_taken, channels=moved)

_one_taken = replace(_taken, narrows=taken_beside, apart=along("self", beside_part))

_several_taken = replace(_taken, apart=along("self", other_than("dim")))

_padded = Row("self + value", pull_padded, channels=padded_scales, apart=along("self", before_padded))

_turned = along("self", other_than("dims"))

_cat = Row("sum(tensors)", pull_concatenated, channels=moved, joins=True, apart=joined(new=False))

ROWS: dict[str, Row] = {
    "pixel_shuffle": _moved,
    "pixel_unshuffle": _moved,
    "view": replace(_shape, unless="dtype"),  # other numbers in the same bits
    "view_as": replace(_shape, ignores=("other",), apart=in_order_as),
    "reshape_as": replace(_shape, ignores=("other",), apart=in_order_as),
    "_unsafe_view": _shape,
    "reshape": replace(_same_place, apart=in_order("shape")),
    "flatten": replace(_same_place, apart=in_order()),
    "unflatten": replace(_same_place, apart=unflattened),
    "squeeze": replace(_shape, apart=squeezed),
    "unsqueeze": replace(_same_place, apart=in_order()),
    "contiguous": _as_it_is,
    "clone": _as_it_is,
    "alias": _shape,
    "detach": replace(_shape, detaches=True, apart=by_entry),
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
    "select": replace(_one_taken, apart=along("self", left)),
    "slice": _one_taken,
    "narrow": _one_taken,
    "index": Row("self", pull_index, frames=picked),
    "index_select": Row("self", pull_index_select, frames=picked),
    "gather": Row("self", pull_gathered),
    "flip": Row("self", pull_flipped, channels=moved, apart=_turned),
    "roll": replace(_moved, apart=_turned),
    "expand": Row("self", pull_expanded, {"self": Elementwise()}, moved, copies="blocks", apart=expanded),
    "expand_as": Row(
        "self",
        pull_expanded,
        {"self": Elementwise()},
        ignores=("other",),
        frames=carried,
        copies="blocks",
        apart=by_entry,
    ),
    "broadcast_to": Row("self", pull_expanded, {"self": Elementwise()}, frames=carried, copies="blocks"),
    "repeat": Row("self", pull_repeated, channels=moved, copies="blocks"),
    "tile": Row("self", pull_repeated, channels=moved, copies="blocks"),
    "diagonal": _taken,
    "diag_embed": _homogeneous,
    "channel_shuffle": _moved,
    "rot90": _moved,
    "slice_scatter": Row("self + src", channels=moved),
    "select_scatter": Row("self + src", channels=moved),
    "scatter": Row("self + src + value", unless="reduce"),
    "index_put": Row("self + values"),
    "copy": Row("src", pull_copied, {"src": Elementwise()}, entrywise, ignores=("self",), target=written_over),
    "col2im": _homogeneous,
    "repeat_interleave": replace(_homogeneous, frames=carried, copies="entries"),
    "chunk": _several_taken,
    "split": _several_taken,
    "tensor_split": _several_taken,
    "split_with_sizes": _several_taken,
    "unbind": replace(_taken, apart=along("self", left)),
    "unfold": _moved,
    "im2col": _homogeneous,
    "tril": Row("self", pull_triangle, channels=entrywise),
    "triu": Row("self", pull_triangle, channels=entrywise),
    "constant_pad_nd": _padded,
    "pad": _padded,
    "cat": _cat,
    "concat": _cat,
    "concatenate": _cat,
    "hstack": Row("sum(tensors)", channels=moved, joins=True),
    "vstack": Row("sum(tensors)", channels=moved, joins=True),
    "stack": Row("sum(tensors)", pull_stacked, channels=moved, apart=joined(new=True)),
}
