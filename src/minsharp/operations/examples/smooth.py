"""Functions of each entry that bend, softmax, and what lets no derivative through."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .notation import Example
from .shorthand import Examples, along, called

aten = torch.ops.aten


def _bent(call: Callable[..., Any]) -> list[Example]:
    return called(call, "x(n,a)", "x(a,n,2)", "w(a)")


def _above(call: Callable[..., Any], least: float = 0.1) -> list[Example]:
    """For numbers above a bound."""
    return called(lambda x: call(x.abs() + least), "x(n,a)", "x(a,n,2)", "w(a)")


def _within(call: Callable[..., Any]) -> list[Example]:
    """For numbers between 0 and 1."""
    return called(lambda x: call(0.9 * torch.sigmoid(x)), "x(n,a)", "x(a,n,2)", "w(a)")


def _shared(call: Callable[..., Any]) -> list[Example]:
    """Softmax, ``call(x, dim)``."""
    return [*along(call), Example(lambda x: call(x, 0), "x(a,n,b)")]


EXAMPLES: Examples = {
    "gelu": [*_bent(F.gelu), *_bent(lambda x: F.gelu(x, approximate="tanh"))],
    "silu": _bent(F.silu),
    "tanh": _bent(torch.tanh),
    "sigmoid": _bent(torch.sigmoid),
    "softplus": [*_bent(F.softplus), *called(lambda x: F.softplus(x, beta=2.0, threshold=0.5), "x(n,a)", "w(a)")],
    "elu": [
        *_bent(F.elu),
        *called(lambda x: F.elu(x, alpha=0.3), "x(n,a)"),
        *called(lambda x: aten.elu(x, 0.5, 2.0, 3.0), "x(n,a)"),
    ],
    "selu": _bent(F.selu),
    "celu": [*_bent(F.celu), *called(lambda x: F.celu(x, alpha=0.3), "x(n,a)")],
    "mish": _bent(F.mish),
    "hardswish": _bent(F.hardswish),
    "log_sigmoid": _bent(F.logsigmoid),
    "exp": _bent(torch.exp),
    "exp2": _bent(torch.exp2),
    "expm1": _bent(torch.expm1),
    "log": _above(torch.log),
    "log2": _above(torch.log2),
    "log10": _above(torch.log10),
    "log1p": _above(torch.log1p),
    "sqrt": _above(torch.sqrt),
    "rsqrt": _above(torch.rsqrt),
    "square": _bent(torch.square),
    "reciprocal": _above(torch.reciprocal),
    "sin": _bent(torch.sin),
    "cos": _bent(torch.cos),
    "tan": _within(torch.tan),
    "asin": _within(torch.asin),
    "acos": _within(torch.acos),
    "atan": _bent(torch.atan),
    "sinh": _bent(torch.sinh),
    "cosh": _bent(torch.cosh),
    "asinh": _bent(torch.asinh),
    "acosh": _above(torch.acosh, 1.1),
    "atanh": _within(torch.atanh),
    "erf": _bent(torch.erf),
    "erfc": _bent(torch.erfc),
    "logit": [
        *_within(lambda x: torch.logit(x + 0.01)),
        *called(lambda x: torch.logit(torch.sigmoid(x), 0.4), "x(n,a)"),
    ],
    "sinc": _bent(torch.sinc),
    "pow": [
        *_bent(lambda x: torch.pow(x, 2)),
        *_bent(lambda x: torch.pow(x, 3)),
        *called(lambda x: torch.pow(x, 1), "x(n,a)"),
        *called(lambda x: torch.pow(x, 0), "x(n,a)"),
        *_above(lambda x: torch.pow(x, -0.5)),
        *called(lambda x, y: torch.pow(x.abs() + 0.1, y), "x(n,a) y(n,a)", "x(n,a) w(a)", "w(a) x(n,a)", "w(a) v(a)"),
        *called(lambda x: torch.pow(2.0, x), "x(n,a)", "w(a)"),
        *called(lambda x, i: torch.pow(x, i), "x(n,a) i(n,a)<3"),
        *called(lambda i: torch.pow(i, 2), "i(n,a)<5"),
    ],
    "softmax": [
        *_shared(torch.softmax),
        Example(lambda x: x.softmax(1, dtype=torch.float32), "x(n,a)"),
        Example(lambda i: i.softmax(1, dtype=torch.float64), "i(n,a)<5"),
    ],
    "log_softmax": [
        *_shared(torch.log_softmax),
        Example(lambda x: x.log_softmax(1, dtype=torch.float32), "x(n,a)"),
    ],
    "_softmax": _shared(lambda x, dim: aten._softmax(x, dim, False)),
    "_log_softmax": _shared(lambda x, dim: aten._log_softmax(x, dim, False)),
    "detach": [
        *called(lambda x: x.detach(), "x(n,a)", "x(a,n)", "w(a)"),
        Example(lambda x, w: x.detach() * w, "x(n,a) w(a)"),
        Example(lambda x, w: F.linear(x, w.detach()), "x(n,i) w(o,i)"),
        Example(lambda x, w: F.linear(x, w.detach()) @ w, "x(n,i) w(o,i)"),
        Example(lambda x: x - x.detach(), "x(n,a)"),
    ],
}
