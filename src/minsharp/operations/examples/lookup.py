"""Embeddings, attention and casts."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .notation import Example
from .shorthand import Examples, binary, called, unary

aten = torch.ops.aten


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, **given: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, **given)


EXAMPLES: Examples = {
    "embedding": [
        Example(lambda i, W: F.embedding(i, W), "i(n)<5 W(5,d)", free=True),
        Example(lambda i, W: F.embedding(i, W), "i(n,l)<3 W(3,d)"),
        Example(lambda i, W: F.embedding(i, W), "i(l,n)<3 W(3,d)"),
        Example(lambda i, W: F.embedding(i, W), "i(n,a,b)<3 W(3,d)"),
        Example(lambda i, W: F.embedding(i, W, padding_idx=1), "i(n,l)<3 W(3,d)"),
        Example(lambda i, W: F.embedding(i, W, padding_idx=-1), "i(n,l)<3 W(3,d)"),
        Example(lambda i, W: F.embedding(i, W), "i(a)!<3 W(3,d)"),
        Example(lambda i, x: F.embedding(i, x), "i(a)!<3 x(3,n)"),
        Example(lambda i, W: F.embedding(i, W) @ W.mT, "i(n,l)<3 W(3,d)"),
        Example(lambda i, W, V: F.embedding(i, W @ V), "i(n,l)<3 W(3,a) V(a,d)"),
        Example(lambda i, W: F.embedding(i, W.t()), "i(n,l)<3 W(d,3)"),
        Example(lambda i, W: F.embedding(i, W), "i(n,l)<3 W(3,d)!"),
        Example(lambda x, W: F.embedding(x.argmax(1), W), "x(n,3) W(3,d)"),
        Example(lambda x, W: F.embedding((3 * x.abs()).long().clamp(0, 2), W), "x(n,l) W(3,d)"),
        Example(lambda m, W: F.embedding(m.int().cumsum(1), W), "m(n,2)? W(3,d)"),
    ],
    "embedding_bag": [
        *(Example(lambda i, W, m=m: F.embedding_bag(i, W, mode=m), "i(n,l)<3 W(3,d)") for m in ("sum", "mean", "max")),
        Example(lambda i, W: F.embedding_bag(i, W, mode="sum", padding_idx=1), "i(n,l)<3 W(3,d)"),
        Example(lambda i, W: F.embedding_bag(i, W, mode="mean", padding_idx=-1), "i(n,l)<3 W(3,d)"),
        Example(lambda i, W, x: F.embedding_bag(i, W, mode="sum", per_sample_weights=x), "i(n,l)<3 W(3,d) x(n,l)"),
        Example(
            lambda i, W, w: F.embedding_bag(i, W, mode="sum", per_sample_weights=w.expand_as(i)), "i(n,l)<3 W(3,d) w(l)"
        ),
        Example(lambda i, W, V: F.embedding_bag(i, W @ V, mode="sum"), "i(n,l)<3 W(3,a) V(a,d)"),
    ],
    "scaled_dot_product_attention": [
        Example(_attend, "q(n,h,s,d) k(n,h,t,d) v(n,h,t,e)", {"h": (1, 2), "s": (2, 3), "t": (3, 4)}),
        Example(_attend, "q(n,s,d) k(n,t,d) v(n,t,e)"),
        Example(_attend, "q(h,n,s,d) k(h,n,t,d) v(h,n,t,e)", {"h": (1, 2), "s": (2, 3), "t": (3, 4)}),
        Example(lambda q, k, v: _attend(q, k, v, is_causal=True), "q(n,h,s,d) k(n,h,s,d) v(n,h,s,e)", {"h": (1, 2)}),
        Example(lambda q, k, v: _attend(q, k, v, scale=0.3), "q(n,2,s,d) k(n,2,t,d) v(n,2,t,e)"),
        Example(_attend, "q(n,2,s,d) k(n,2,t,d) v(n,2,t,e) a(s,t)!"),
        Example(_attend, "q(n,2,s,d) k(n,2,t,d) v(n,2,t,e) a(s,t)"),
        Example(_attend, "q(n,2,s,d) k(n,2,t,d) v(n,2,t,e) a(2,1,t)"),
        Example(_attend, "q(n,2,s,d) k(n,2,t,d) v(n,2,t,e) x(n,1,s,t)"),
        Example(
            lambda q, k, v, m: _attend(q, k, v, m | (torch.arange(3) == 0)),
            "q(n,2,s,d) k(n,2,3,d) v(n,2,3,e) m(n,1,s,3)?",
        ),
        Example(
            lambda q, k, v: _attend(q, k, v, torch.ones(3, 3, dtype=torch.bool).tril()),
            "q(n,2,3,d) k(n,2,3,d) v(n,2,3,e)",
        ),
        Example(lambda q, k, v: _attend(q, k, v, enable_gqa=True), "q(n,4,s,d) k(n,2,t,d) v(n,2,t,e)"),
        Example(lambda q, k, v: _attend(q, k, v, enable_gqa=True, is_causal=True), "q(n,3,s,d) k(n,1,s,d) v(n,1,s,e)"),
        Example(lambda q, k, v, m: _attend(q, k, v, m, enable_gqa=True), "q(n,4,s,d) k(n,2,t,d) v(n,2,t,e) m(n,1,s,t)"),
        Example(lambda x: _attend(x, x, x), "x(n,h,s,d)"),
        Example(lambda q, k: _attend(q, k, k), "q(n,h,s,d) k(n,h,t,d)"),
        Example(lambda q, k, v: _attend(q.expand(k.shape[0], -1, -1, -1), k, v), "q(1,2,s,d) k(n,2,t,d) v(n,2,t,e)"),
        Example(lambda q, k, v: _attend(q, k.expand(q.shape[0], -1, -1), v), "q(n,s,d) k(1,t,d) v(n,t,e)"),
        Example(_attend, "q(2,s,d) k(2,t,d) v(2,t,e)"),
        Example(_attend, "q(n,h,s,d) k(h,t,d) v(h,t,e)"),
        Example(_attend, "q(n,h,s,d) k(n,1,t,d) v(n,1,t,e)"),
        Example(_attend, "q(n,h,s,d) k(n,h,t,d) v(n,1,t,e)"),
    ],
    "to": [
        *unary(lambda x: x.to(torch.float32), "i(n,a)<5", "m(n,a)?"),
        *called(lambda x: (9 * x).to(torch.int32), "x(n,a)", "w(a)", "x(a,n)"),
        *called(lambda x: (9 * x).long(), "x(n,a)", "w(a)"),
        *called(lambda x: x.to(torch.bool), "x(n,a)", "w(a)"),
        *called(lambda x: x.to(torch.bfloat16), "x(n,a)"),
        *called(lambda x: x.half(), "x(n,a)", "w(a)"),
        Example(lambda x, y: x.to(y), "x(n,a) y(n,a)"),
        Example(lambda x, y: (9 * x).to(y), "x(n,a) i(n,a)<5"),
        Example(lambda x: x.to(torch.float64, copy=True), "x(n,a)"),
        Example(lambda x: x * (3 * x).long(), "x(n,a)"),
        Example(lambda x, w: (3 * x).int() * w, "x(n,a) w(a)"),
        Example(lambda x: (9 * x).int().to(x.dtype).view(-1, x.shape[1]), "x(n,a)"),
        Example(lambda x: x.to("cpu", torch.float32), "x(n,a)"),
        *binary(lambda x, y: x.type_as(y))[:3],
        Example(lambda x, y: x.type_as(y), "x(n,a) y(n,b)"),
        Example(lambda x, i: (9 * x).type_as(i), "x(n,a) i(n)<5"),
        Example(lambda x, m: x.type_as(m), "x(n,a) m(n)?"),
        Example(lambda i, x: i.type_as(x), "i(n,a)<5 x(n,a)"),
        Example(lambda w, c: w.type_as(c), "w(a) c(b)!"),
    ],
    "_to_copy": [
        *unary(lambda x: aten._to_copy(x, dtype=torch.float32), "i(n,a)<5"),
        *called(lambda x: aten._to_copy(9 * x, dtype=torch.int64), "x(n,a)", "w(a)"),
        Example(lambda x: aten._to_copy(x, dtype=torch.bool), "x(n,a)"),
        Example(lambda x: aten._to_copy(x), "x(n,a)"),
        Example(lambda x: aten._to_copy(x > 0, dtype=torch.float64) * x, "x(n,a)"),
    ],
}
