"""Normalisation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..graph.records import Operation
from ..rules.apart import Call, along, by_parts, in_front
from ..rules.channels import Rule, Walk
from ..rules.contraction import Elementwise, Use
from ..rules.narrowing import before_normalized
from ..rules.pullback import Cotangents, Pull, by_autograd, wide
from ..rules.row import Row


def normalized(use: Use) -> Tensor:
    """The input of a norm layer after it is normalised and before weight and bias: run the layer without them."""
    samples = use.samples["input"]
    assert samples is not None
    bare = {name: None if name in ("weight", "bias") else given for name, given in use.bound.items()}
    result = use.operation.call(bare)
    return samples.split(wide(result[0] if use.operation.many else result), use.n)


def pull_batch_norm(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Any, Pull]:
    """In eval mode: a fixed scale per channel."""
    x, weight = bound["input"], bound["weight"]
    scale = (bound["running_var"] + bound["eps"]).rsqrt()
    if weight is not None:
        scale = scale * weight
    scale = scale.view(-1, *[1] * (x.dim() - 2)).to(x.dtype)

    def pull(G: Any) -> Cotangents:
        g = G[0] if operation.many else G
        return {} if g is None else {"input": g * scale}

    return operation.call(bound), pull


def pull_layer_norm(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Any, Pull]:
    """dx = (g - mean(g) - xhat mean(g xhat)) / sd, over the last axes; where mean and sd are used too, by autograd."""
    if wanted != {"input"}:
        return by_autograd(operation, bound, wanted)
    x, axes = wide(bound["input"]), _last(bound)
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    scale = (variance + bound["eps"]).rsqrt()
    xhat = (x - mean).mul_(scale)
    weight = None if bound["weight"] is None else wide(bound["weight"])

    def pull(G: Any) -> Cotangents:
        if operation.many and any(g is not None for g in G[1:]):
            return by_autograd(operation, bound, wanted)[1](G)
        g = G[0] if operation.many else G
        return {"input": _projected(wide(g), xhat, scale, axes, weight, centred=True).to(bound["input"].dtype)}

    return operation.call(bound), pull


def pull_rms_norm(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """dx = (g - xhat mean(g xhat)) / rms, over the last axes."""
    if wanted != {"input"}:
        return by_autograd(operation, bound, wanted)
    x, axes = wide(bound["input"]), _last(bound)
    eps = torch.finfo(bound["input"].dtype).eps if bound["eps"] is None else bound["eps"]
    scale = (x.square().mean(axes, keepdim=True) + eps).rsqrt()
    xhat, weight = x * scale, None if bound["weight"] is None else wide(bound["weight"])

    def pull(G: Tensor) -> Cotangents:
        return {"input": _projected(wide(G), xhat, scale, axes, weight, centred=False).to(bound["input"].dtype)}

    return operation.call(bound), pull


def pull_group_norm(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """As layer_norm, over the channels of a group and all positions."""
    if wanted != {"input"}:
        return by_autograd(operation, bound, wanted)
    x = bound["input"]
    grouped = wide(x).unflatten(1, (bound["num_groups"], -1)).flatten(2)  # (N, groups, channels/g * positions)
    variance, mean = torch.var_mean(grouped, -1, correction=0, keepdim=True)
    scale = (variance + bound["eps"]).rsqrt()
    xhat = (grouped - mean) * scale
    weight = None if bound["weight"] is None else wide(bound["weight"]).view(-1, *[1] * (x.dim() - 2))

    def pull(G: Tensor) -> Cotangents:
        g = wide(G) if weight is None else wide(G) * weight
        g = g.unflatten(2, (bound["num_groups"], -1)).flatten(3)  # (R, N, groups, channels/g * positions)
        return {"input": _projected(g, xhat, scale, [-1], None, centred=True).reshape(G.shape).to(x.dtype)}

    return operation.call(bound), pull


def pull_instance_norm(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """As layer_norm, over the positions of each channel."""
    x = bound["input"]
    if wanted != {"input"} or not bound["use_input_stats"]:
        return by_autograd(operation, bound, wanted)
    axes = list(range(-1, 1 - x.dim(), -1))
    variance, mean = torch.var_mean(wide(x), axes, correction=0, keepdim=True)
    scale = (variance + bound["eps"]).rsqrt()
    xhat = (wide(x) - mean) * scale
    weight = None if bound["weight"] is None else wide(bound["weight"]).view(-1, *[1] * (x.dim() - 2))

    def pull(G: Tensor) -> Cotangents:
        return {"input": _projected(wide(G), xhat, scale, axes, weight, centred=True).to(x.dtype)}

    return operation.call(bound), pull


def _last(bound: Mapping[str, Any]) -> list[int]:
    return [-1 - d for d in range(len(bound["normalized_shape"]))]


def _projected(g: Tensor, xhat: Tensor, scale: Tensor, axes: list[int], weight: Tensor | None, centred: bool) -> Tensor:
    """scale (wg - mean(wg) - xhat mean(wg xhat)), without the middle term where nothing was centred.

    In as few passes over the cotangents, (R, *shape), as can be: everything else is smaller by the number of columns.
    """
    size = prod(xhat.shape[axis] for axis in axes)
    w = scale if weight is None else scale * weight
    result = g * (xhat if weight is None else xhat * weight)
    along = result.sum(axes, keepdim=True).div_(size)
    middle = None
    if centred:
        middle = (g.mean(axes, keepdim=True) if weight is None else _dot(g, weight, axes).div_(size)).mul_(scale)
    torch.mul(g, w, out=result)
    result.addcmul_(xhat * scale, along, value=-1)
    return result if middle is None else result.sub_(middle)


def _dot(g: Tensor, weight: Tensor, axes: list[int]) -> Tensor:
    """The sum of products along some axes, which stay; of plain rows, a product with a vector."""
    if len(axes) == 1 and weight.dim() == 1:
        return (g @ weight).unsqueeze(-1)
    return (g * weight).sum(axes, keepdim=True)


def norm_scales(channel: bool) -> Rule:
    """Normalisation fixes the scale of what goes in; weight and bias give what comes out a new one."""

    def rule(walk: Walk, operation: Operation) -> Tensor | Sequence[Tensor]:
        given = operation.by_argument
        walk.fix(walk.scale_of(given["input"]), operation)
        shape = walk.graph.values[operation.outputs[0]].shape
        out = walk.one
        if "weight" in given:
            out = walk.forms.fresh(*walk.graph.values[given["weight"]].shape)
            walk.assign_scale(given["weight"], out, walk.one, operation)
        if "bias" in given:
            walk.assign_scale(given["bias"], out, walk.one, operation)
        if channel and out.dim():
            out = out.view(-1, *[1] * (len(shape) - 2))
        result = out.expand(shape)
        if not operation.many:
            return result
        return [result, *(walk.one.expand(walk.shape_of(name)) for name in operation.outputs[1:])]

    return rule


_CHANNEL_BIAS = Elementwise(channel=True)

_CHANNEL_NORM = {"weight": Elementwise(normalized, channel=True), "bias": _CHANNEL_BIAS}

_LAST_NORM = {"weight": Elementwise(normalized), "bias": Elementwise()}


def _with_statistics(call: Call) -> bool:
    """BatchNorm that has seen its mean and variance before."""
    return {"running_mean", "running_var"} <= set(call.given()) and along("input", in_front)(call)


_batch_norm = Row(
    "input*weight + 1*weight + bias",
    pull_batch_norm,
    _CHANNEL_NORM,
    norm_scales(True),
    apart=_with_statistics,
    unless="training",
    otherwise=Row("f(input)*weight + bias", contract=_CHANNEL_NORM, channels=norm_scales(True)),
)

ROWS: dict[str, Row] = {
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": replace(_batch_norm, statistics=True),
    "layer_norm": Row(
        "f(input)*weight + bias",
        pull_layer_norm,
        _LAST_NORM,
        norm_scales(False),
        narrows=before_normalized,
        apart=by_parts(before_normalized),
    ),
    "native_layer_norm": Row(
        "f(input)*weight + bias", pull_layer_norm, _LAST_NORM, norm_scales(False), statistics=True
    ),
    "rms_norm": Row(
        "f(input)*weight",
        pull_rms_norm,
        {"weight": Elementwise(normalized)},
        norm_scales(False),
        narrows=before_normalized,
        apart=by_parts(before_normalized),
    ),
    "group_norm": Row(
        "f(input)*weight + bias",
        pull_group_norm,
        _CHANNEL_NORM,
        norm_scales(True),
        apart=along("input", in_front),
    ),
    "instance_norm": Row("f(input)*weight + bias", pull_instance_norm, _CHANNEL_NORM, norm_scales(True)),
    "_weight_norm": Row("f(v)*g"),
}
