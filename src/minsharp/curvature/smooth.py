"""Pullbacks of smooth operations in closed form: all columns at once, no call of autograd for each.

Letters: x an input, y the output, G the stacked cotangents (R, *shape of y), g = G times the weight of a norm.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..network.records import Operation
from .contract import wide
from .pullback import Cotangents, Pull, by_autograd, unbroadcast


def entrywise(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """A function of each entry by itself: its slope, by one backward pass, times the cotangents."""
    if wanted != {"self"}:
        return by_autograd(operation, bound, wanted)
    x = bound["self"].detach().requires_grad_()
    with torch.enable_grad():
        y = operation.call({**bound, "self": x})
    if y.shape != x.shape:  # broadcast: an entry goes to several places
        return by_autograd(operation, bound, wanted)
    (slope,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return y.detach(), lambda G: {"self": G * slope}


def softmax(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """dx = y (G - <G, y>)."""
    x, y = bound["self"], operation.call(bound)
    axis = bound["dim"] % max(x.dim(), 1)

    def pull(G: Tensor) -> Cotangents:
        weighted = G * y
        return {"self": (weighted - y * weighted.sum(axis + 1, keepdim=True)).to(x.dtype)}

    return y, pull


def log_softmax(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """dx = G - exp(y) <G, 1>."""
    x, y = bound["self"], operation.call(bound)
    axis, p = bound["dim"] % max(x.dim(), 1), y.exp()
    return y, lambda G: {"self": (G - p * G.sum(axis + 1, keepdim=True)).to(x.dtype)}


def layer_norm(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """dx = (g - mean(g) - xhat mean(g xhat)) / sd, over the last axes."""
    if wanted != {"input"}:
        return by_autograd(operation, bound, wanted)
    x, axes = wide(bound["input"]), _last(bound)
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    scale = (variance + bound["eps"]).rsqrt()
    xhat = (x - mean) * scale
    weight = bound["weight"]

    def pull(G: Tensor) -> Cotangents:
        g = wide(G) if weight is None else wide(G) * wide(weight)
        return {"input": _centred(g, xhat, scale, axes).to(bound["input"].dtype)}

    return operation.call(bound), pull


def rms_norm(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """dx = (g - xhat mean(g xhat)) / rms, over the last axes."""
    if wanted != {"input"}:
        return by_autograd(operation, bound, wanted)
    x, axes = wide(bound["input"]), _last(bound)
    eps = torch.finfo(bound["input"].dtype).eps if bound["eps"] is None else bound["eps"]
    scale = (x.square().mean(axes, keepdim=True) + eps).rsqrt()
    xhat, weight = x * scale, bound["weight"]

    def pull(G: Tensor) -> Cotangents:
        g = wide(G) if weight is None else wide(G) * wide(weight)
        return {"input": (scale * (g - xhat * (g * xhat).mean(axes, keepdim=True))).to(bound["input"].dtype)}

    return operation.call(bound), pull


def group_norm(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
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
        return {"input": _centred(g, xhat, scale, [-1]).reshape(G.shape).to(x.dtype)}

    return operation.call(bound), pull


def _last(bound: Mapping[str, Any]) -> list[int]:
    return [-1 - d for d in range(len(bound["normalized_shape"]))]


def _centred(g: Tensor, xhat: Tensor, scale: Tensor, axes: list[int]) -> Tensor:
    return scale * (g - g.mean(axes, keepdim=True) - xhat * (g * xhat).mean(axes, keepdim=True))


_BLOCK = 1 << 22  # numbers: how many scores of all columns are held at once


def attention(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """y = p v with p = softmax(s q k^T + mask): dv = p^T G, and through the scores dz = p (G v^T - <G, y>)."""
    if bound["enable_gqa"] or bound["dropout_p"] or "attn_mask" in wanted:
        return by_autograd(operation, bound, wanted)
    q, k, v = (wide(bound[name]) for name in ("query", "key", "value"))  # (..., L, E), (..., S, E), (..., S, width)
    s = q.shape[-1] ** -0.5 if bound["scale"] is None else bound["scale"]
    p = torch.ops.aten._safe_softmax(s * q @ k.mT + _masked(bound, q, k), -1)  # (..., L, S)
    y = p @ v

    def some(G: Tensor) -> Cotangents:
        g = wide(G)
        found: Cotangents = {"value": p.mT @ g} if "value" in wanted else {}
        if wanted - {"value"}:
            dz = (g @ v.mT - (g * y).sum(-1, keepdim=True)).mul_(p).mul_(s)  # (R, ..., L, S)
            found |= {"query": dz @ k} if "query" in wanted else {}
            found |= {"key": dz.mT @ q} if "key" in wanted else {}
        return {name: unbroadcast(given, bound[name].shape).to(bound[name].dtype) for name, given in found.items()}

    def pull(G: Tensor) -> Cotangents:
        parts = [some(block) for block in G.split(max(1, _BLOCK // max(p.numel(), 1)))]
        return {name: torch.cat([part[name] for part in parts]) for name in wanted}

    return operation.call(bound), pull


def _masked(bound: Mapping[str, Any], q: Tensor, k: Tensor) -> Tensor:
    """What is added to the scores: zero, or minus infinity where nothing is to be seen."""
    mask: Tensor | None = bound["attn_mask"]
    if bound["is_causal"]:
        mask = q.new_ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    if mask is None:
        return q.new_zeros(())
    return q.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else wide(mask)
