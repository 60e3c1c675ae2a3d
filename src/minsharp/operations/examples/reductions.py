"""Sums and maxima along axes, sorting, and tensors side by side."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .notation import Example
from .shorthand import Examples, along, called


def _reduced(call: Callable[..., Any], *, many: bool = False) -> list[Example]:
    """``call(x, dim, keepdim=...)``, and of several axes at once where that is allowed."""
    found = [
        *along(call),
        Example(lambda x: call(x, 1, keepdim=True), "x(n,i,a)"),
        Example(lambda x: call(x, -1, keepdim=True), "x(a,n,i)"),
        Example(lambda x: x * call(x, 1, keepdim=True), "x(n,i)"),
    ]
    if many:
        found += [
            Example(lambda x: call(x, (1, 2)), "x(n,a,b)"),
            Example(lambda x: call(x, (-1, 1)), "x(n,a,b,c)"),
            Example(lambda x: call(x, (0, 2)), "x(a,n,b)"),
            Example(lambda x: call(x, (0, -1), keepdim=True), "x(a,n,b)"),
            Example(lambda w: call(w, (0, 1)), "w(a,b)"),
        ]
    return found


def _picked(call: Callable[..., Any]) -> list[Example]:
    """``call(x, dim, keepdim)``, which returns values and places."""
    return [
        *_reduced(call)[:-1],
        Example(lambda x: x * call(x, 1, keepdim=True)[0], "x(n,i)"),
        Example(lambda x: call(x, 1)[0], "x(n,i)"),
        Example(lambda x: call(x, 1)[1], "x(n,i)"),
        Example(lambda x: call(x, -1)[1], "x(n,a,i)"),
        Example(lambda w: call(w, 0)[1], "w(i,a)"),
        Example(lambda x: call(x, 1), "i(n,a)<5"),
    ]


def _joined(cat: Callable[..., Any]) -> list[Example]:
    return [
        Example(lambda x, y: cat([x, y], 1), "x(n,a) y(n,b)"),
        Example(lambda x, y: cat([x, y, x], -1), "x(n,a,b) y(n,a,c)"),
        Example(lambda x, w: cat([x, w.expand(x.shape[0], -1)], 1), "x(n,a) w(b)"),
        Example(lambda w, x: cat([w.expand(x.shape[0], -1, -1), x], 1), "w(1,1,b) x(n,a,b)"),
        Example(lambda x, y: cat([x, y], 0), "x(a,n) y(b,n)"),
        Example(lambda x, y: cat([x, y], 1), "x(n,a) y(n,b)!"),
        Example(lambda w, v: cat([w, v]), "w(a) v(b)"),
        Example(lambda x, w, v: F.linear(x, cat([w, v])), "x(n,i) w(a,i) v(b,i)"),
        Example(lambda x, w: F.linear(x, cat([w, w])), "x(n,i) w(a,i)"),
        Example(lambda x: cat([torch.tensor([], dtype=x.dtype), x], 1), "x(n,a)"),
        Example(lambda x: cat([torch.tensor([], dtype=x.dtype), x], -2), "x(n,a,b)"),
        Example(lambda x: cat([x, x.new_zeros(x.shape[0], 0)], 1), "x(n,a)"),
        Example(lambda x, i: cat([x, i], 1), "x(n,a) i(n,b)<5"),
        Example(lambda i, m: cat([i, m], 1), "i(n,a)<5 m(n,b)?"),
        Example(lambda x: cat([x], 1), "x(n,a)"),
        Example(lambda x, y: cat([x, y.float()], 1), "x(n,a) y(n,b)"),
    ]


def _apart(p: float) -> list[Example]:
    """Distances between rows of one sample and of another thing."""
    texts = ("x(n,a,i) y(n,b,i)", "x(n,a,i) w(b,i)", "x(n,i) w(b,i)")
    return called(lambda x, y: torch.cdist(x, y, p), *texts)


EXAMPLES: Examples = {
    "cdist": [*_apart(2.0), *_apart(1.0), *_apart(3.0)],
    "_cdist_forward": called(lambda x, w: torch.ops.aten._cdist_forward(x, w, 2.0, None), "x(n,a,i) w(b,i)"),
    "sum": [
        *_reduced(torch.sum, many=True),
        Example(lambda x: x.sum(1, dtype=torch.float32), "x(n,i)"),
        Example(lambda x: x.sum(1), "i(n,a)<5"),
        Example(lambda x: x.sum(1), "m(n,a)?"),
        Example(lambda x: x.sum(1, dtype=torch.float64), "i(n,a)<5"),
        Example(lambda w: w.sum(), "w(a,b)"),
        Example(lambda x, W: F.linear(x, W.sum(0)), "x(n,i) W(2,o,i)"),
        Example(lambda x: x.sum(1), "x(n,a,b)", empty=True),
        Example(lambda x: x.sum(1), "x(n,0,b)"),
        Example(lambda x: x.sum(-1), "x(n,i,j)", free=True),
        Example(lambda x: (9 * x).sum(1, dtype=torch.int64), "x(n,i)!"),
    ],
    "mean": [
        *_reduced(torch.mean, many=True),
        Example(lambda x: x.mean(1, dtype=torch.float32), "x(n,i)"),
        Example(lambda w: w.mean(), "w(a,b)"),
        Example(lambda x: x.mean(1, dtype=torch.float64), "i(n,a)<5"),
        Example(lambda x: x.mean((2, 3)), "x(n,c,h,l)", free=True),
    ],
    "cumsum": [
        *along(torch.cumsum),
        Example(lambda x: x.cumsum(1, dtype=torch.float32), "x(n,i)"),
        Example(lambda x: x.cumsum(1), "i(n,a)<5"),
        Example(lambda x: x.cumsum(1), "m(n,a)?"),
        Example(lambda x: (x > 0).cumsum(1), "x(n,a)"),
        Example(lambda x: (9 * x).cumsum(1, dtype=torch.int64), "x(n,i)!"),
    ],
    "median": [*_picked(torch.median), Example(lambda w: w.median(), "w(a,b)")],
    "max": [
        *_picked(torch.max),
        *called(torch.max, "x(n,a) y(n,a)", "x(n,a) w(a)", "w(a) x(n,a)", "x(n,a,1) w(b,1,1,2)", "w(a) v(a)"),
        Example(lambda w: w.max(), "w(a,b)"),
        Example(lambda x: torch.max(x, torch.zeros_like(x)), "x(n,a)"),
        Example(lambda x: torch.max(x, x), "x(n,a)"),
    ],
    "min": [
        *_picked(torch.min),
        *called(torch.min, "x(n,a) y(n,a)", "x(n,a) w(a)", "w(a) x(n,a)", "x(n,a,1) w(b,1,1,2)", "w(a) v(a)"),
        Example(lambda w: w.min(), "w(a,b)"),
        Example(lambda x: torch.min(x, torch.zeros_like(x)), "x(n,a)"),
    ],
    "amax": [
        *_reduced(torch.amax, many=True),
        Example(lambda w: w.amax(), "w(a,b)"),
        *called(lambda x: x.amax(1), "i(n,a)<5"),
    ],
    "amin": [
        *_reduced(torch.amin, many=True),
        Example(lambda w: w.amin(), "w(a,b)"),
        *called(lambda x: x.amin(1), "i(n,a)<5"),
    ],
    "topk": [
        *along(lambda x, dim: x.topk(1, dim)),
        Example(lambda x: x.topk(2, 1), "x(n,i)", {"i": (2, 4)}),
        Example(lambda x: x.topk(2, 1, largest=False), "x(n,i)", {"i": (2, 4)}),
        Example(lambda x: x.topk(2, -1, sorted=True)[0], "x(n,a,i)", {"i": (2, 4)}),
        Example(lambda x: x.topk(2, 1)[1], "x(n,i)", {"i": (2, 4)}),
        Example(lambda x: x.topk(2, 1), "i(n,3)<9"),
    ],
    "sort": [
        *along(lambda x, dim: x.sort(dim)),
        Example(lambda x: x.sort(1, descending=True), "x(n,i)"),
        Example(lambda x: x.sort(stable=True, dim=-1, descending=True), "x(n,a,i)"),
        Example(lambda x: x.sort(1)[0], "x(n,i,a)"),
        Example(lambda x: x.sort(1)[1], "x(n,i)"),
        Example(lambda x: x.sort(1), "i(n,a)<9"),
        Example(lambda x: x.sort(), "m(n,a)?"),
    ],
    "argmax": [
        *along(torch.argmax),
        Example(lambda x: x.argmax(1, keepdim=True), "x(n,i)"),
        Example(lambda w: w.argmax(), "w(a,b)"),
        Example(lambda x: F.one_hot(x.argmax(1), 3) * x, "x(n,3)"),
        Example(lambda x: x.argmax(1), "i(n,a)<9"),
    ],
    "cat": _joined(torch.cat),
    "concat": _joined(torch.concat),
    "concatenate": _joined(torch.concatenate),
    "hstack": [
        *called(lambda x, y: torch.hstack([x, y]), "x(n,a) y(n,b)", "x(n,a,c) y(n,b,c)", "w(a) v(b)", "x(n,a) y(n,b)!"),
        Example(lambda x, w: torch.hstack([x, w.expand(x.shape[0], -1)]), "x(n,a) w(b)"),
        Example(lambda x: torch.hstack([x, x]), "x(n,a)"),
    ],
    "vstack": [
        *called(lambda x, y: torch.vstack([x, y]), "x(a,n) y(b,n)", "x(n) y(n)", "w(a) v(a)"),
        Example(lambda x, w: torch.vstack([x, w.expand(-1, x.shape[1])]), "x(a,n) w(b,1)"),
    ],
    "stack": [
        Example(lambda x, y: torch.stack([x, y], 1), "x(n,a) y(n,a)"),
        Example(lambda x, y: torch.stack([x, y, x], -1), "x(n,a) y(n,a)!"),
        Example(lambda x, y: torch.stack([x, y]), "x(n) y(n)"),
        Example(lambda x, y: torch.stack([x, y], -2), "x(a,n) y(a,n)"),
        Example(lambda x, w: torch.stack([x, w.expand_as(x)], 1), "x(n,a) w(a)"),
        Example(lambda w, v: torch.stack([w, v]), "w(a) v(a)"),
        Example(lambda x, w, v: F.linear(x, torch.stack([w, v, w])), "x(n,i) w(i) v(i)"),
        Example(lambda i, m: torch.stack([i, i], 1) * m, "i(n,a)<5 m(a)!?"),
    ],
}
