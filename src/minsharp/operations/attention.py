"""Attention."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..graph.records import Operation
from ..rules.apart import attended
from ..rules.channels import UnfitError, Walk
from ..rules.frames import FrameWalk, Labels
from ..rules.narrowing import of_queries
from ..rules.pullback import Cotangents, Pull, by_autograd, unbroadcast, wide
from ..rules.row import Row
from .linear import met

_BLOCK = 1 << 22  # numbers: how many scores of all columns are held at once


def pull_attention(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """y = p v with p = softmax(z), z = s q k^T + mask: dv = p^T G, dz = p (G v^T - <G, y>); dq = s dz k, dk = s dz^T q.

    Where several heads of queries share one of keys and values, what comes back to them is summed over the heads.
    """
    if bound["dropout_p"]:
        return by_autograd(operation, bound, wanted)
    q, k, v = (wide(bound[name]) for name in ("query", "key", "value"))  # (..., L, E), (..., S, E), (..., S, width)
    shapes = {"query": q.shape, "key": k.shape, "value": v.shape}
    if bound["enable_gqa"]:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    s = q.shape[-1] ** -0.5 if bound["scale"] is None else bound["scale"]
    p = torch.ops.aten._safe_softmax(s * q @ k.mT + _masked(bound, q, k), -1)  # (..., L, S)
    q, k, v = (t.expand(*p.shape[:-2], *t.shape[-2:]) for t in (q, k, v))

    def pull(G: Tensor) -> Cotangents:
        parts = [_back(block, s, p, q, k, v, wanted) for block in wide(G).split(max(1, _BLOCK // max(p.numel(), 1)))]
        found = {
            name: parts[0][name] if len(parts) == 1 else torch.cat([some[name] for some in parts]) for name in wanted
        }
        shapes["attn_mask"] = bound["attn_mask"].shape if "attn_mask" in wanted else p.shape
        return {name: _shared(given, shapes[name]).to(bound[name].dtype) for name, given in found.items()}

    return operation.call(bound), pull


def _back(G: Tensor, s: float, p: Tensor, q: Tensor, k: Tensor, v: Tensor, wanted: frozenset[str]) -> dict[str, Tensor]:
    """For some columns, (R, ..., L, width): put before the channels, so that each product is one of matrices."""
    g = G.movedim(0, -2).contiguous()  # (..., L, R, width)
    found = {}
    if "value" in wanted:
        found["value"] = (p.mT @ g.flatten(-2)).unflatten(-1, g.shape[-2:]).movedim(-2, 0)  # (..., S, R, width)
    if wanted == {"value"}:
        return found
    dz = (g.flatten(-3, -2) @ v.mT).unflatten(-2, g.shape[-3:-1]).mul_(p.unsqueeze(-2))  # (..., L, R, S)
    dz.addcmul_(p.unsqueeze(-2), dz.sum(-1, keepdim=True), value=-1)
    if "attn_mask" in wanted:
        found["attn_mask"] = dz.movedim(-2, 0)
    if "query" in wanted:
        found["query"] = (dz.flatten(-3, -2) @ k).mul_(s).unflatten(-2, dz.shape[-3:-1]).movedim(-2, 0)
    if "key" in wanted:
        back = (q.mT @ dz.flatten(-2)).mul_(s)  # (..., E, R * S)
        found["key"] = back.unflatten(-1, dz.shape[-2:]).movedim(-2, 0).mT
    return found


def _shared(g: Tensor, shape: torch.Size) -> Tensor:
    """Summed over what was broadcast, and over the heads that share: (R, ..., heads, *matrix) -> (R, *shape)."""
    if len(shape) > 2 and g.shape[-3] != shape[-3] > 1:
        g = g.unflatten(-3, (shape[-3], -1)).sum(-3)
    return unbroadcast(g, shape)


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
        "f(query*key, attn_mask)*value",
        pull_attention,
        channels=attention_scales,
        frames=attention_frames,
        narrows=of_queries,
        apart=attended,
    ),
}
