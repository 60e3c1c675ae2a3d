"""How stacked cotangents pass backwards through one operation.

A pullback runs the operation forward and returns the output together with a function that maps cotangents of the
output, (R, *output shape), to cotangents of the wanted arguments, (R, *argument shape): all R columns at once.
Operations without a rule of their own go through `by_autograd`, one column at a time.

In memory a stack of cotangents lies sample by sample, (n, R, ...), and only looks like (R, n, ...): so columns and
samples merge into one large batch, and the contraction of one sample reads one block, both without a copy.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..network.records import Operation
from .contract import Geometry, each

Cotangents = dict[str, Any]
"""By argument name: a tensor, or a list of them where the argument is a list."""
Pull = Callable[[Any], Cotangents]
Pullback = Callable[[Operation, Mapping[str, Any], frozenset[str]], tuple[Any, Pull]]

aten = torch.ops.aten


def stacked(function: Callable[[Tensor], Tensor], G: Tensor) -> Tensor:
    """Apply a function of a batch to (R, N, ...), with columns and rows merged into one batch."""
    if G.stride(0) > G.stride(1):
        return _merged(function, G)
    return _merged(function, G.transpose(0, 1)).transpose(0, 1)


def _merged(function: Callable[[Tensor], Tensor], G: Tensor) -> Tensor:
    made = function(G.flatten(0, 1))
    return made.view(*G.shape[:2], *made.shape[1:])


def unbroadcast(G: Tensor, shape: torch.Size) -> Tensor:
    """Sum stacked cotangents over the axes along which an argument of this shape was broadcast."""
    extra = G.dim() - 1 - len(shape)
    axes = [d + 1 for d in range(extra)]
    axes += [1 + extra + d for d, size in enumerate(shape) if size == 1 and G.shape[1 + extra + d] != 1]
    return (G.sum(axes, keepdim=True) if axes else G).reshape(G.shape[0], *shape)


def by_autograd(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Any, Pull]:
    """Any operation at all: autograd through this one operation, column by column."""
    bound = dict(bound)
    for name in wanted:
        given = bound[name]
        bound[name] = [_leaf(item) for item in given] if isinstance(given, list) else _leaf(given)
    with torch.enable_grad():
        made = operation.call(bound)
    outputs = tuple(made) if operation.many else (made,)
    leaves = [
        item
        for name in wanted
        for item in (bound[name] if isinstance(bound[name], list) else [bound[name]])
        if isinstance(item, Tensor) and item.requires_grad
    ]

    def pull(G: Any) -> Cotangents:
        pairs = [
            (output, g)
            for output, g in zip(outputs, G if operation.many else (G,), strict=True)
            if g is not None and isinstance(output, Tensor) and output.requires_grad
        ]
        if not pairs:
            return {}
        columns = pairs[0][1].shape[0]
        rows = [
            torch.autograd.grad(
                [output for output, _ in pairs],
                leaves,
                [g[k] for _, g in pairs],
                retain_graph=True,
                allow_unused=True,
            )
            for k in range(columns)
        ]
        found = {
            id(leaf): None if parts[0] is None else torch.stack(parts, dim=1).transpose(0, 1)
            for leaf, parts in zip(leaves, zip(*rows, strict=True), strict=True)
        }
        return {
            name: [found.get(id(item)) for item in bound[name]]
            if isinstance(bound[name], list)
            else found[id(bound[name])]
            for name in wanted
        }

    detached = tuple(o.detach() if isinstance(o, Tensor) else o for o in outputs)
    return (detached if operation.many else detached[0]), pull


def _leaf(item: Any) -> Any:
    floating = isinstance(item, Tensor) and item.dtype.is_floating_point
    return item.detach().requires_grad_() if floating else item


# Rearrangements


def reshaped(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """The same entries in the same order under another shape: view, flatten, squeeze, contiguous, dropout."""
    (name,) = wanted
    x = bound[name]
    return operation.call(bound), lambda G: {name: G.reshape(G.shape[0], *x.shape)}


def permuted(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Axes in another order: transpose, permute."""
    x = bound["self"]
    axes = _axes(operation, bound, x.dim())
    inverse = [0] + [1 + axes.index(d) for d in range(x.dim())]
    return operation.call(bound), lambda G: {"self": G.permute(inverse)}


def _axes(operation: Operation, bound: Mapping[str, Any], rank: int) -> list[int]:
    """Which axis of the input each axis of the output is, read off a tensor whose sizes are all different."""
    probe = torch.empty([d + 2 for d in range(rank)], device="meta")
    return [size - 2 for size in operation.call({**bound, "self": probe}).shape]


def concatenated(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Cat: each part takes back its range."""
    parts, dim = bound["tensors"], bound["dim"]
    axis = dim + 1 if dim >= 0 else dim
    return operation.call(bound), lambda G: {"tensors": list(G.split([p.shape[dim] for p in parts], axis))}


def copied(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """The source written over everything: what was there before has no part in it."""
    return operation.call(bound), lambda G: {"src": unbroadcast(G, bound["src"].shape)} if "src" in wanted else {}


# Entry by entry


def elementwise(derivative: Callable[[Mapping[str, Any], Tensor], Tensor | float]) -> Pullback:
    """A function of each entry, with its derivative given arguments and output."""

    def rule(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
        (name,) = wanted
        out = operation.call(bound)
        slope = derivative(bound, out)
        return out, lambda G: {name: G * slope}

    return rule


def relu(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Zero where the output is zero."""
    out = operation.call(bound)
    return out, lambda G: {"self": aten.threshold_backward(G, out, 0)}


def leaky_slope(bound: Mapping[str, Any], out: Tensor) -> Tensor:
    """One, or the negative slope."""
    x = bound["self"]
    return torch.where(x > 0, x.new_ones(()), x.new_full((), float(bound["negative_slope"])))


def added(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Sum or difference, with broadcasting."""
    sign = -1 if operation.name in ("sub", "subtract") else 1
    factors = {"self": 1, "other": sign * bound.get("alpha", 1)}

    def pull(G: Tensor) -> Cotangents:
        result = {}
        for name in wanted:
            g = G if factors[name] == 1 else G * factors[name]
            result[name] = unbroadcast(g, bound[name].shape).to(bound[name].dtype)
        return result

    return operation.call(bound), pull


def multiplied(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Product of two tensors, or of a tensor and a number."""
    other = {"self": "other", "other": "self"}
    return operation.call(bound), lambda G: {
        name: unbroadcast(G * bound[other[name]], bound[name].shape).to(bound[name].dtype) for name in wanted
    }


def averaged(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Mean or sum over axes."""
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


def batch_norm(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Any, Pull]:
    """In eval mode: a fixed scale per channel."""
    x, weight = bound["input"], bound["weight"]
    scale = (bound["running_var"] + bound["eps"]).rsqrt()
    if weight is not None:
        scale = scale * weight
    scale = scale.view(-1, *[1] * (x.dim() - 2)).to(x.dtype)

    def pull(G: Any) -> Cotangents:
        return {"input": (G[0] if operation.many else G) * scale}

    return operation.call(bound), pull


# Pools


def max_pool(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Any, Pull]:
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


def max_over_places(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """The largest along axis 2; back to the first that is as large, as a max pool does."""
    x = bound["self"]
    out = operation.call(bound)
    first = x.clone().eq_(out.unsqueeze(2))  # in numbers: faster than in booleans
    free = 1 - first[:, :, 0]
    for place in first.unbind(2)[1:]:
        free -= place.mul_(free)
    return out, lambda G: {"self": G.unsqueeze(3) * first}


def avg_pool2d(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Spread over the window."""
    x = bound["self"]
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    window = [bound[k] for k in names]

    def pull(G: Tensor) -> Cotangents:
        like = x.new_empty(1).expand(G.shape[0] * x.shape[0], *x.shape[1:])
        return {"self": stacked(lambda b: aten.avg_pool2d_backward(b.contiguous(), like, *window), G)}

    return operation.call(bound), pull


# Products


def linear(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Times the weight."""
    weight = bound["weight"]
    if wanted != {"input"} or weight.dim() != 2:
        return by_autograd(operation, bound, wanted)
    return operation.call(bound), lambda G: {"input": stacked(lambda b: b @ weight, G)}


def matmul(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Product of two matrices, or of two stacks of matrices."""
    a, b = (bound[name] for name in ("self", "mat2" if "mat2" in bound else "other"))
    second = "mat2" if "mat2" in bound else "other"
    if a.dim() < 2 or b.dim() < 2:
        return by_autograd(operation, bound, wanted)

    def pull(G: Tensor) -> Cotangents:
        result: Cotangents = {}
        if "self" in wanted:
            plain = b.dim() == 2
            result["self"] = stacked(lambda g: g @ b.mT, G) if plain else unbroadcast(G @ b.mT, a.shape)
        if second in wanted:
            result[second] = unbroadcast(a.mT @ G, b.shape)
        return result

    return operation.call(bound), pull


def convolution(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """The transposed convolution; for a transposed convolution, the plain one."""
    x, weight = bound["input"], bound["weight"]
    if wanted != {"input"} or x.dim() != weight.dim():  # no batch axis
        return by_autograd(operation, bound, wanted)
    geometry = Geometry.of(bound)
    rank = len(geometry.kernel)
    options = {"stride": geometry.stride, "dilation": geometry.dilation, "groups": geometry.groups}
    if "output_padding" in bound:
        conv = getattr(F, f"conv{rank}d")
        space = tuple(slice(size) for size in x.shape[2:])  # output padding may leave room for more windows
        return operation.call(bound), lambda G: {
            "input": stacked(lambda b: conv(b, weight, padding=geometry.before, **options)[:, :, *space], G)
        }
    lopsided = geometry.before != geometry.after  # padding="same" with an even kernel
    options["padding"] = (0,) * rank if lopsided else geometry.before
    options["output_padding"] = geometry.left_over(x.shape[2:])
    transposed = getattr(F, f"conv_transpose{rank}d")

    def back(batch: Tensor) -> Tensor:
        result: Tensor = transposed(batch, weight, **options)
        return F.pad(result, [-p for p in geometry.pads]) if lopsided else result

    return operation.call(bound), lambda G: {"input": stacked(back, G)}
