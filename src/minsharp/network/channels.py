"""How scales pass through an operation, entry by entry: the rules behind ``scope="neuron"``.

A rule sees the scales of an operation's arguments as tensors of forms, shaped like one sample, and returns those of
the result. What it ties together it ties on the walk; a parameter takes the scale that makes up the difference.
Operations without a rule, and calls that a rule was not made for (it raises `UnfitError`), have all entries of each
tensor tied, as in ``scope="layer"``: a smaller group, no wrong one.
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .forms import ANY
from .records import Operation

if TYPE_CHECKING:
    from .walk import Walk

Rule = Callable[["Walk", Operation], Tensor | Sequence[Tensor]]


class UnfitError(Exception):
    """A call of a kind that a rule was not made for."""


def entrywise(walk: "Walk", operation: Operation) -> Tensor:
    """The operation's formula, at each entry by itself, with broadcasting."""
    reads = [(slot, name) for slot, name in operation.reads if name in walk.graph.values]
    return walk.by_formula(operation, {slot: walk.scale_of(name) for slot, name in reads})


def moved(walk: "Walk", operation: Operation) -> Tensor | Sequence[Tensor]:
    """The result holds entries of the arguments: let the operation itself move the forms."""
    bound = operation.bind(
        {k: v.contiguous() if isinstance(v, Tensor) else v for k, v in walk.shadow(operation).items()}
    )
    return _called(operation, bound)


def _called(operation: Operation, bound: dict[str, Any]) -> Tensor | Sequence[Tensor]:
    try:
        result: Tensor | Sequence[Tensor] = operation.call(bound)
    except Exception as error:  # whatever torch has against whole numbers, or one sample
        raise UnfitError from error
    return result


def padded(walk: "Walk", operation: Operation) -> Tensor | Sequence[Tensor]:
    """Zeros have any scale; other modes fill with entries from along the axes that are padded."""
    bound = operation.bind(walk.shadow(operation))
    if bound.get("mode", "constant") != "constant":
        return _along_last(walk, operation, len(bound["pad"]) // 2)
    if bound["value"]:
        raise UnfitError
    return _called(operation, bound | {"value": ANY})


def reduced(walk: "Walk", operation: Operation) -> Tensor | Sequence[Tensor]:
    """Entries along some axes come together: they have to agree."""
    scale = walk.scale_of(dict(operation.reads)["self"])
    dim = operation.arguments.get("dim")
    shape = walk.graph.values[operation.outputs[0]].shape
    dims = list(range(scale.dim())) if dim is None or dim == () else [dim] if isinstance(dim, int) else list(dim)
    scale = walk.tie(scale, dims, operation)
    if len(shape) < scale.dim():
        for d in sorted((d % scale.dim() for d in dims), reverse=True):
            scale = scale.squeeze(d)
    scale = scale.expand(shape)
    return [scale] * len(operation.outputs) if operation.many else scale


def maxima(walk: "Walk", operation: Operation) -> Tensor | Sequence[Tensor]:
    """The maximum along an axis, of everything, or of two tensors entry by entry."""
    return entrywise(walk, operation) if "other" in operation.arguments else reduced(walk, operation)


def windows(walk: "Walk", operation: Operation) -> Tensor | Sequence[Tensor]:
    """Pools, pads and resizing: entries along the last axes come together, as many as the name says (``2d``)."""
    dimensions = re.search(r"(\d)d", operation.name)
    if dimensions is None:
        raise UnfitError
    return _along_last(walk, operation, int(dimensions[1]))


def _along_last(walk: "Walk", operation: Operation, axes: int) -> Tensor | Sequence[Tensor]:
    """Whatever leads, samples and channels or channels alone, stays apart."""
    reads = dict(operation.reads)
    scale = walk.scale_of(reads["self"] if "self" in reads else reads["input"])
    shape = walk.graph.values[operation.outputs[0]].shape
    if scale.dim() < axes or scale.shape[: scale.dim() - axes] != shape[: scale.dim() - axes]:
        raise UnfitError
    result = walk.tie(scale, range(-axes, 0), operation).expand(shape)
    return [result] * len(operation.outputs) if operation.many else result


def matrix(weight: str, other: str, bias: str | None = None, *, transposed: bool = False) -> Rule:
    """A weight that mixes the last axis: W_ij scales by out_i / in_j."""

    def rule(walk: "Walk", operation: Operation) -> Tensor | Sequence[Tensor]:
        reads = dict(operation.reads)
        shape = walk.graph.values[operation.outputs[0]].shape
        if walk.varies(reads[weight]) or walk.rank(reads[weight]) != 2 or walk.rank(reads[other]) < 2:
            raise UnfitError
        scale = walk.scale_of(reads[other])
        into = walk.tie(scale, range(scale.dim() - 1), operation).flatten()
        out = walk.forms.fresh(shape[-1])
        plus, minus = (out, into.unsqueeze(1)) if transposed else (out.unsqueeze(1), into)
        walk.give(reads[weight], plus, minus, operation)
        if bias is not None and bias in reads:
            walk.give(reads[bias], out, walk.one, operation)
        return out.expand(shape)

    return rule


def matrices(walk: "Walk", operation: Operation) -> Tensor | Sequence[Tensor]:
    """matmul: a weight on the right, on the left, or none."""
    reads = dict(operation.reads)
    first, second = ("self", "other") if "other" in reads else ("self", "mat2")
    if not walk.varies(reads[second]):
        return matrix(second, first, transposed=True)(walk, operation)
    if walk.varies(reads[first]) or walk.rank(reads[first]) != 2 or walk.rank(reads[second]) < 2:
        raise UnfitError
    scale = walk.scale_of(reads[second])
    others = [d for d in range(scale.dim()) if d != scale.dim() - 2]
    into = walk.tie(scale, others, operation).flatten()
    shape = walk.graph.values[operation.outputs[0]].shape
    out = walk.forms.fresh(shape[-2])
    walk.give(reads[first], out.unsqueeze(1), into, operation)
    return out.unsqueeze(1).expand(shape)


def convolution(walk: "Walk", operation: Operation) -> Tensor | Sequence[Tensor]:
    """W[o, i] scales by out_o / in_i, with i counted within the group of o."""
    reads = dict(operation.reads)
    scale = walk.scale_of(reads["input"])
    if walk.varies(reads["weight"]) or scale.dim() != walk.rank(reads["weight"]):  # channels come after the batch
        raise UnfitError
    groups: Any = operation.arguments["groups"]
    into = walk.tie(scale, [0, *range(2, scale.dim())], operation).reshape(groups, -1)  # (g, channels/g)
    shape = walk.graph.values[operation.outputs[0]].shape
    out = walk.forms.fresh(shape[1])
    ones = [1] * (scale.dim() - 2)
    if "output_padding" in operation.arguments:  # transposed: (channels, C/g, *taps)
        plus = out.view(groups, -1).repeat_interleave(into.shape[1], 0)
        minus = into.reshape(-1, 1)
    else:  # (C, channels/g, *taps)
        plus = out.view(-1, 1)
        minus = into.repeat_interleave(shape[1] // groups, 0)
    walk.give(reads["weight"], plus.view(*plus.shape, *ones), minus.view(*minus.shape, *ones), operation)
    if "bias" in reads:
        walk.give(reads["bias"], out, walk.one, operation)
    return out.view(1, -1, *ones).expand(shape)


def norm(channel: bool) -> Rule:
    """Normalisation fixes the scale of what goes in; weight and bias give what comes out a new one."""

    def rule(walk: "Walk", operation: Operation) -> Tensor | Sequence[Tensor]:
        reads = dict(operation.reads)
        walk.fix(walk.scale_of(reads["input"]), operation)
        shape = walk.graph.values[operation.outputs[0]].shape
        out = walk.one
        if "weight" in reads:
            out = walk.forms.fresh(*walk.graph.values[reads["weight"]].shape)
            walk.give(reads["weight"], out, walk.one, operation)
        if "bias" in reads:
            walk.give(reads["bias"], out, walk.one, operation)
        if channel and out.dim():
            out = out.view(-1, *[1] * (len(shape) - 2))
        result = out.expand(shape)
        if not operation.many:
            return result
        return [result, *(walk.one.expand(walk.shape_of(name)) for name in operation.outputs[1:])]

    return rule


def embedding(walk: "Walk", operation: Operation) -> Tensor:
    """Which rows are looked up is up to the data: the scale can only differ between columns."""
    reads = dict(operation.reads)
    shape = walk.graph.values[operation.outputs[0]].shape
    out = walk.forms.fresh(shape[-1])
    walk.give(reads["weight"], out, walk.one, operation)
    return out.expand(shape)


def slope(walk: "Walk", operation: Operation) -> Tensor:
    """PReLU: x + w min(x, 0) keeps the scale of x only if w keeps its own."""
    reads = dict(operation.reads)
    walk.give(reads["weight"], walk.one, walk.one, operation)
    return walk.scale_of(reads["self"])


def attention(walk: "Walk", operation: Operation) -> Tensor | Sequence[Tensor]:
    """The scores keep their scale if each channel of the queries undoes that of the keys; values pass through."""
    reads = dict(operation.reads)
    q, k, v = (walk.scale_of(reads[name]) for name in ("query", "key", "value"))
    if q.shape[:-2] != k.shape[:-2] or operation.arguments.get("enable_gqa"):
        raise UnfitError
    q, k, v = (walk.tie(t, [-2], operation) for t in (q, k, v))
    walk.fix(walk.forms.combine(q, k), operation)
    if "attn_mask" in reads:
        walk.fix(walk.scale_of(reads["attn_mask"]), operation)
    return v.expand(walk.graph.values[operation.outputs[0]].shape)


def zeros(walk: "Walk", operation: Operation) -> Tensor:
    """Zero at any scale."""
    return torch.full((), ANY).expand(walk.graph.values[operation.outputs[0]].shape)
