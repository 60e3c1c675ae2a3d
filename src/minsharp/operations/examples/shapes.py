"""The same entries under another shape or in another order."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .notation import Example
from .shorthand import Examples, called, unary

aten = torch.ops.aten


def _kept(call: Callable[..., Any]) -> list[Example]:
    """What changes nothing, also on a weight on its way to a linear layer."""
    return [
        *unary(call, "x(a,n,b)", "i(n,a)<5", "m(n,a)?", free=True),
        Example(lambda x, W: F.linear(x, call(W)), "x(n,i) W(o,i)", free=True),
        Example(lambda x, W: F.linear(x, call(W)) + call(W).sum(), "x(n,i) W(o,i)"),
    ]


def _swap(swap: Callable[..., Any]) -> list[Example]:
    """Two axes that change places: ``swap(x, a, b)``."""
    return [
        Example(lambda x: swap(x, 1, 2), "x(n,a,b)", free=True),
        Example(lambda x: swap(x, 0, 1), "x(n,a)"),
        Example(lambda x: swap(x, 0, -1), "x(a,b,n)"),
        Example(lambda x: swap(x, -1, -2), "x(n,a,b)"),
        Example(lambda x: swap(x, 1, 1), "x(n,a)"),
        Example(lambda x, W: F.linear(x, swap(W, 0, 1)), "x(n,i) W(i,o)", free=True),
        Example(lambda x, W: F.linear(x, swap(W, 0, 1)) @ W.mT, "x(n,i) W(i,o)"),
        Example(lambda x, W, b: F.conv1d(x, swap(W, 0, -1), b), "x(n,c,3) W(2,c,o) b(o)"),
        Example(lambda x: swap(x, 0, 1), "i(n,a)<5"),
        Example(lambda w: swap(w, 0, 1), "w(a,b)"),
    ]


def _moving(move: Callable[..., Any]) -> list[Example]:
    """Axes that move: ``move(x, from, to)``."""
    return [
        *_swap(move)[:7],
        Example(lambda x: move(x, (0, 1), (2, 0)), "x(a,n,b)"),
        Example(lambda x: move(x, [-1], [1]), "x(n,a,b,c)"),
        Example(lambda x, W: F.linear(x, move(W, (0, 1), (1, 0))), "x(n,i) W(i,o)"),
    ]


def _reshaped(reshape: Callable[..., Any]) -> list[Example]:
    """Reshapes: ``reshape(x, sizes)``."""
    return [
        Example(lambda x: reshape(x, (x.shape[0], -1)), "x(n,a,b)", free=True),
        Example(lambda x, a: reshape(x, (-1, a, 2)), "x(n,2a)"),
        Example(lambda x, a: reshape(reshape(x, (-1, 3)), (-1, 3 * a)), "x(n,a,3)"),
        Example(lambda x, a: torch.relu(reshape(x, (-1, 2))).view(-1, a, 2), "x(n,a,2)"),
        Example(lambda x, a: torch.relu(reshape(x.contiguous(), (a * x.shape[1], 2))).view(a, -1, 2), "x(a,n,2)"),
        Example(lambda x, a: reshape(x, (a, -1)), "x(a,1,n)"),
        Example(lambda x, W, i: F.linear(x, reshape(W, (-1, i))), "x(n,i) W(2,i,o)", free=True),
        Example(lambda x, W, i: F.linear(x, reshape(W, (-1, i))), "x(n,i) W(2i)"),
        Example(lambda w: reshape(w, (-1,)), "w(a,b)"),
        Example(lambda x: reshape(x, (x.shape[0], -1)), "i(n,a,b)<5"),
        Example(lambda x: (x > 0).to(torch.float64) * reshape((x > 0).to(x.dtype), (-1, x.shape[1])), "x(n,a)"),
        Example(lambda x, a: reshape(x, (-1, a)), "x(n,a)", {"a": (1, 3)}),
    ]


EXAMPLES: Examples = {
    "reshape": [
        *_reshaped(torch.reshape),
        *_reshaped(lambda x, sizes: x.view(sizes))[:6],  # views are read as reshapes
        *_reshaped(aten._unsafe_view)[:3],
        Example(lambda x: x.mT.reshape(x.shape[0], -1), "x(n,a,b)"),
        Example(lambda x, W, i: F.linear(x, W.transpose(0, 1).reshape(-1, i)), "x(n,i) W(o,2,i)"),
    ],
    "view_as": [
        Example(lambda x, y: x.view_as(y), "x(n,2a) y(n,2,a)"),
        Example(lambda x, y: x.view_as(y), "x(n,2a) y(n,2,a)!"),
        Example(lambda w, v: w.view_as(v), "w(2a) v(2,a)"),
        Example(lambda x, W, V: F.linear(x, W.view_as(V)) + V.sum(), "x(n,3) W(6) V(2,3)"),
    ],
    "reshape_as": [
        Example(lambda x, y: x.reshape_as(y), "x(n,2a) y(n,2,a)"),
        Example(lambda x, y: x.mT.reshape_as(y), "x(n,2,a) y(n,2a)!"),
        Example(lambda w, v: w.reshape_as(v), "w(2a) v(2,a)"),
        Example(lambda x, W, V: F.linear(x, W.reshape_as(V)) + V.sum(), "x(n,3) W(6) V(2,3)"),
    ],
    "flatten": [
        *called(lambda x: x.flatten(1), "x(n,a,b)", "x(n,a)", "x(n,a,b,c)", "i(n,a,b)<5", free=True),
        Example(lambda x: x.flatten(-2, -1), "x(n,a,b)"),
        Example(lambda x: x.flatten(0, 1), "x(a,b,n)"),
        Example(lambda x, a: torch.relu(x.flatten(0, 1)).unflatten(0, (-1, a)), "x(n,a,b)"),
        Example(lambda w: w.flatten(), "w(a,b)"),
        Example(lambda x: x.flatten(), "x(n)"),
        Example(lambda x, W: F.linear(x, W.flatten(0, 1)), "x(n,i) W(2,o,i)", free=True),
        Example(lambda w: w.flatten(), "w()"),
        Example(lambda x: x.flatten(1), "x(n,a,b)", empty=True),
    ],
    "unflatten": [
        Example(lambda x, a: x.unflatten(1, (2, a)), "x(n,2a)", free=True),
        Example(lambda x: x.unflatten(-1, (-1, 2)), "x(n,a,2b)"),
        Example(lambda x, a: x.unflatten(0, (a, 2)), "x(2a,n)"),
        Example(lambda x, W: F.linear(x, W.unflatten(0, (-1, x.shape[1]))), "x(n,2) W(2o)"),
        Example(lambda w: w.unflatten(0, (2, -1)), "w(2a)"),
        Example(lambda x: x.unflatten(1, (2, -1)), "i(n,2a)<5"),
    ],
    "squeeze": [
        *called(lambda x: x.squeeze(1), "x(n,1,a)", "x(n,a)", "x(n,1)", "x(a,1,n)", "i(n,1)<5", free=True),
        Example(lambda x: x.squeeze(), "x(n,1,a,1)"),
        Example(lambda x: x.squeeze((1, -1)), "x(n,1,a,1)"),
        Example(lambda x: x.squeeze(0), "x(1,n,a)"),
        Example(lambda x, W: F.linear(x, W.squeeze(-1)), "x(n,i) W(o,i,1)", free=True),
        Example(lambda w: w.squeeze(), "w(1,a)"),
    ],
    "unsqueeze": [
        *called(lambda x: x.unsqueeze(1), "x(n,a)", "x(n)", "i(n,a)<5", "w(a)", free=True),
        *called(lambda x: x.unsqueeze(0), "x(n,a)", "x(a,n)", "w()"),
        Example(lambda x: x.unsqueeze(-1), "x(n,a,b)"),
        Example(lambda x, w: F.linear(x, w.unsqueeze(0)), "x(n,i) w(i)", free=True),
    ],
    "contiguous": [
        *called(lambda x: x.mT.contiguous(), "x(n,a,b)", "x(a,b,n)", "w(a,b)", "i(n,a,2)<5", "m(n,a,2)?"),
        Example(lambda x, W: F.linear(x, W.mT.contiguous()), "x(n,i) W(i,o)", free=True),
        Example(lambda x, W: F.linear(x, W.mT.contiguous()) + W.sum(), "x(n,i) W(i,o)"),
        Example(lambda x: x.contiguous(memory_format=torch.channels_last), "x(n,c,h,2)"),
    ],
    "clone": [
        *_kept(torch.clone),
        *called(lambda x: aten.alias(x.clone()), "x(n,a)", "w(a)"),
        *called(lambda x: x.clone().view(torch.int64), "x(n,a)", "w(a)"),
        Example(lambda x: x.clone().view(torch.int32), "x(n,a)"),
        Example(lambda x: x.clone().view(torch.int64).view(torch.float64), "x(n,a)"),
        Example(lambda x: x.mT.clone(memory_format=torch.contiguous_format), "x(n,a,b)"),
        Example(lambda x: x.expand(-1, 3).clone(), "x(n,1)"),
    ],
    "dropout": _kept(lambda x: F.dropout(x, 0.3, training=False)),
    "feature_dropout": [
        *called(lambda x: F.dropout2d(x, 0.3, training=False), "x(n,c,h,l)", "x(n,c,h)", "w(c,h,l)"),
        Example(lambda x: F.dropout1d(x, 0.3, training=False), "x(n,c,l)"),
        Example(lambda x: F.dropout3d(x, 0.3, training=False), "x(n,c,2,h,l)"),
    ],
    "alpha_dropout": _kept(lambda x: F.alpha_dropout(x, 0.3, training=False)),
    "permute": [
        Example(lambda x: x.permute(0, 2, 1), "x(n,a,b)", free=True),
        Example(lambda x: x.permute(2, 0, 1), "x(a,b,n)"),
        Example(lambda x: x.permute(-1, 0, -2), "x(a,n,b)"),
        Example(lambda x: x.permute(1, 0), "x(n,a)"),
        Example(lambda x, W: F.linear(x, W.permute(1, 0)), "x(n,i) W(i,o)", free=True),
        Example(lambda x, W, b: F.conv1d(x, W.permute(2, 0, 1), b), "x(n,c,3) W(c,2,o) b(o)"),
        Example(lambda x, W: F.linear(x, W.permute(1, 0)) @ W.mT, "x(n,i) W(i,o)"),
        Example(lambda w: w.permute(1, 0), "w(a,b)"),
        Example(lambda x: x.permute(1, 0), "m(a,n)?"),
    ],
    "transpose": _swap(torch.transpose),
    "swapaxes": _swap(torch.swapaxes),
    "swapdims": _swap(torch.swapdims),
    "movedim": _moving(torch.movedim),
    "moveaxis": _moving(torch.moveaxis),
    "t": [
        *called(lambda x: x.t(), "x(n,a)", "x(a,n)", "x(n)", "w(a,b)", "i(a,n)<5"),
        Example(lambda x, W: F.linear(x, W.t()), "x(n,i) W(i,o)", free=True),
    ],
    "numpy_T": [
        *called(lambda x: x.T, "x(n,a)", "x(a,n)", "w(a,b)", "i(a,n)<5"),
        Example(lambda x, W: F.linear(x, W.T), "x(n,i) W(i,o)", free=True),
    ],
    "mT": [
        *called(lambda x: x.mT, "x(n,a)", "x(a,n)", "x(n,a,b)", "x(a,b,n)", "w(a,b)"),
        Example(lambda x, W: F.linear(x, W.mT), "x(n,i) W(i,o)", free=True),
    ],
}
