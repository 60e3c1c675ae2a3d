"""Attention."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..graph.records import Operation
from ..rules.channels import UnfitError, Walk
from ..rules.contraction import wide
from ..rules.frames import FrameWalk, Labels
from ..rules.pullback import Cotangents, Pull, by_autograd, unbroadcast
from ..rules.row import Row
from .linear import met

_BLOCK = 1 << 22  # numbers: how many scores of all columns are held at once


def pull_attention(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
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


def attention_scales(walk: Walk, operation: Operation) -> Tensor | Sequence[Tensor]:
    """The scores keep their scale if each channel of the queries undoes that of the keys; values pass through."""
    given = operation.by_argument
    q, k, v = (walk.scale_of(given[name]) for name in ("query", "key", "value"))
    if q.shape[:-2] != k.shape[:-2] or operation.arguments.get("enable_gqa"):
        raise UnfitError
    q, k, v = (walk.tie(t, [-2], operation) for t in (q, k, v))
    walk.fix(walk.forms.combine(q, k), operation)
    if "attn_mask" in given:
        walk.fix(walk.scale_of(given["attn_mask"]), operation)
    return v.expand(walk.graph.values[operation.outputs[0]].shape)


def attention_frames(walk: FrameWalk, operation: Operation) -> Labels:
    """Queries meet keys in inner products; values are added up with the weights that come of it."""
    given, shape = operation.by_argument, walk.graph.values[operation.outputs[0]].shape
    q, k, v = (
        walk.labels_of(given[name]) for name in ("query", "key", "value")
    )  # (..., L, E), (..., S, E), (..., S, W)
    if "attn_mask" in given and walk.labels_of(given["attn_mask"]).framed:
        raise UnfitError
    if operation.arguments.get("enable_gqa"):  # each key head serves several query heads
        k, v = (Labels(*(t.repeat_interleave(q.atoms.shape[-3] // t.shape[-3], -3) for t in x)) for x in (k, v))
    if q.framed or k.framed:
        walk.paired(q, k, operation)
    weights = walk.labels_of(operation.outputs[0])  # in no frame
    return met(walk, weights, v, shape, operation)


ROWS: dict[str, Row] = {
    "scaled_dot_product_attention": Row(
        "f(query*key, attn_mask)*value", pull_attention, channels=attention_scales, frames=attention_frames
    ),
}
