"""Functions of each entry, and of entries that meet by broadcasting."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from .notation import Example
from .shorthand import Examples, binary, called, unary

aten = torch.ops.aten
INFINITY = float("inf")
WHOLE = ("i(n,a)<5 x(n,a)", "x(n,a) i(n,a)<5", "w(a) i(n,a)<5", "i(n,a)<5 j(a)!<5", "x(n,a) m(n,a)?")
"""Integers and booleans beside floats."""


def _clamped(clamp: Callable[..., Any]) -> list[Example]:
    return [
        *unary(lambda x: clamp(x, min=0), "i(n,a)<5"),
        *called(lambda x: clamp(x, min=-0.3), "x(n,a)", "w(a)"),
        *called(lambda x: clamp(x, max=0.0), "x(n,a)"),
        *called(lambda x: clamp(x, max=0.5), "x(n,a)"),
        *called(lambda x: clamp(x, -0.5, 0.5), "x(n,a)", "i(n,a)<5", "w(a)"),
        *called(lambda x: clamp(x, 0.0, 0.5), "x(n,a)"),
        *called(lambda x: clamp(x, 0.0, INFINITY), "x(n,a)"),
        *called(lambda x: clamp(x, -INFINITY, INFINITY), "x(n,a)"),
        *called(lambda x: clamp(x, -INFINITY, 0.25), "x(n,a)"),
        *called(lambda x, y: clamp(x, min=y), "x(n,a) y(n,a)", "x(n,a) w(a)", "w(a) x(n,a)", "x(n,1) w(b,1,a)"),
        *called(lambda x, y: clamp(x, max=y), "x(n,a) w()", "x(a,n) w(a,1)", "x(n,a) c(a)!"),
        *called(lambda x, y, z: clamp(x, y, z), "x(n,a) v(a) w(a)", "x(n,a) y(n,1) w(a)", "w(a) x(n,a) y(n,a)"),
        Example(lambda x, w: clamp(x, -w, w), "x(n,a) w(a)+"),
        Example(lambda x: clamp(x, min=torch.zeros_like(x)), "x(n,a)"),
        Example(lambda x, i: clamp(x, min=i), "x(n,a) i(n,a)<2"),
    ]


def _added(add: Callable[..., Any]) -> list[Example]:
    return [
        *binary(add, *WHOLE[: 5 if add is torch.add else 4]),
        *binary(lambda x, y: add(x, y, alpha=-2.5))[:8],
        Example(lambda x, y: add(x, y, alpha=0), "x(n,i) y(n,i)"),
        *called(lambda x: add(x, 1.5), "x(n,a)", "w(a)", "i(n,a)<5"),
        Example(lambda x: add(x, 0), "x(n,a)"),
        Example(lambda x: add(x, 2, alpha=3), "x(n,a)"),
        Example(lambda x, w: add(x, w.float()), "x(n,a) w(a)"),
    ]


def _multiplied(mul: Callable[..., Any]) -> list[Example]:
    return [
        *binary(mul, *WHOLE, free=True),
        *called(lambda x: mul(x, -1.5), "x(n,a)", "w(a)", "i(n,a)<5"),
        Example(lambda x: mul(x, 0), "x(n,a)"),
        Example(lambda x, w: mul(x, w.float()), "x(n,a) w(a)"),
        Example(lambda x: mul(x, x > 0), "x(n,a)"),
    ]


def _divided(div: Callable[..., Any], *, modes: bool = True) -> list[Example]:
    found = [
        *binary(div, *WHOLE[:1], "i(n,a)<5 w(a)", "w(a) c(a)!"),
        *called(lambda x: div(x, -1.5), "x(n,a)", "w(a)", "i(n,a)<5"),
        Example(lambda x, i: div(x, i + 1), "x(n,a) i(n,a)<5"),
        Example(lambda x: div(1.0 + 0 * x, x), "x(n,a)"),
    ]
    for mode in ("floor", "trunc") if modes else ():
        rounded = partial(div, rounding_mode=mode)
        found += called(lambda x, y, r=rounded: r(x, y), "x(n,a) y(n,a)", "x(n,a) w(a)", "w(a) x(n,a)", "i(n,a)<5 w(a)")
        found += called(lambda x, r=rounded: r(x, 0.25), "x(n,a)", "w(a)")
    return found


def _largest(call: Callable[..., Any]) -> list[Example]:
    return [
        *binary(call, "i(n,a)<5 j(n,a)<5"),
        Example(lambda x: call(x, torch.zeros_like(x)), "x(n,a)"),
        Example(lambda x: call(x, torch.tensor(0.0, dtype=x.dtype)), "x(n,a)"),
        Example(lambda x: call(x, torch.tensor(0.5, dtype=x.dtype)), "x(n,a)"),
    ]


def _compared(call: Callable[..., Any]) -> list[Example]:
    return [
        *binary(call, "i(n,a)<5 j(n,a)<5", "x(n,a) i(n,a)<5"),
        *called(lambda x: call(x, 0.0), "x(n,a)", "w(a)", "i(n,a)<5"),
        *called(lambda x: call(x, 0.5), "x(n,a)", "w(a)"),
        Example(lambda x, y: x * call(x, y), "x(n,a) y(n,a)"),
        Example(lambda x: torch.where(call(x, 0), x, 0.5 * x), "x(n,a)"),
        Example(lambda x, w: torch.where(call(x, w), x, -x), "x(n,a) w(a)"),
    ]


EXAMPLES: Examples = {
    "relu": unary(torch.relu, "i(n,a)<5", free=True),
    "leaky_relu": [
        *unary(F.leaky_relu, free=True),
        *called(lambda x: F.leaky_relu(x, -0.5), "x(n,a)", "w(a)"),
        *called(lambda x: F.leaky_relu(x, 0.0), "x(n,a)"),
        *called(lambda x: F.leaky_relu(x, 1.0), "x(n,a)"),
    ],
    "prelu": [
        *called(F.prelu, "x(n,c) w(c)", "x(n,c) w(1)", "x(n,c,l) w(c)", "x(n,c,l) w(1)", "x(n,c,h,l) w(c)"),
        *called(F.prelu, "x(n) w(1)", "x(a,n) y(n)", "x(a,n) w(1)", "v(a,c) w(c)", "x(n,c) c(c)!", "v(a) x(1)!"),
        Example(lambda x, w: F.prelu(F.prelu(x, w), w), "x(n,c) w(c)"),
        Example(lambda x, w: F.prelu(x * w, w), "x(n,c) w(c)"),
    ],
    "abs": unary(torch.abs, "i(n,a)<5", free=True),
    "neg": unary(torch.neg, "i(n,a)<5", free=True),
    "positive": unary(torch.positive, "i(n,a)<5"),
    "relu6": unary(F.relu6),
    "hardtanh": [
        *unary(F.hardtanh),
        *called(lambda x: F.hardtanh(x, 0.0, INFINITY), "x(n,a)"),
        *called(lambda x: F.hardtanh(x, -INFINITY, INFINITY), "x(n,a)"),
        *called(lambda x: F.hardtanh(x, 0.0, 0.5), "x(n,a)", "w(a)"),
        *called(lambda x: F.hardtanh(x, -0.5, 0.0), "x(n,a)"),
    ],
    "clamp": _clamped(torch.clamp),
    "clip": _clamped(torch.clip),
    "clamp_min": [
        *unary(lambda x: torch.clamp_min(x, 0)),
        *called(lambda x: torch.clamp_min(x, 0.3), "x(n,a)"),
        *called(lambda x: torch.clamp_min(x, -INFINITY), "x(n,a)"),
        *called(torch.clamp_min, "x(n,a) y(n,a)", "x(n,a) w(a)", "w(a) x(n,a)", "x(n,a) w()", "x(n,1) w(a,1,2)"),
    ],
    "clamp_max": [
        *unary(lambda x: torch.clamp_max(x, 0)),
        *called(lambda x: torch.clamp_max(x, 0.3), "x(n,a)"),
        *called(torch.clamp_max, "x(n,a) y(n,a)", "x(n,a) w(a)", "w(a) x(n,a)", "x(a,n) w(a,1)"),
    ],
    "hardsigmoid": unary(F.hardsigmoid),
    "hardshrink": [
        *unary(F.hardshrink),
        *called(lambda x: F.hardshrink(x, 0.0), "x(n,a)"),
        *called(lambda x: F.hardshrink(x, -0.5), "x(n,a)"),
    ],
    "softshrink": [*unary(F.softshrink), *called(lambda x: F.softshrink(x, 0.0), "x(n,a)", "w(a)")],
    "threshold": [
        *unary(lambda x: F.threshold(x, 0.0, 0.0)),
        *called(lambda x: F.threshold(x, 0.5, 0.0), "x(n,a)", "w(a)"),
        *called(lambda x: F.threshold(x, 0.0, 1.0), "x(n,a)"),
        *called(lambda x: F.threshold(x, -0.5, -0.5), "x(n,a)"),
        *called(lambda x: F.threshold(x, -INFINITY, 0.0), "x(n,a)"),
    ],
    "add": _added(torch.add),
    "sub": _added(torch.sub),
    "subtract": _added(torch.subtract),
    "rsub": _added(torch.rsub),
    "mul": _multiplied(torch.mul),
    "multiply": _multiplied(torch.multiply),
    "div": _divided(torch.div),
    "divide": _divided(torch.divide),
    "true_divide": _divided(torch.true_divide, modes=False),
    "fmax": _largest(torch.fmax),
    "fmin": _largest(torch.fmin),
    "maximum": _largest(torch.maximum),
    "minimum": _largest(torch.minimum),
    "where": [
        *called(
            torch.where, "m(n,a)? x(n,a) y(n,a)", "m(n,a)? x(n,a) w(a)", "m(n,1)? w(a) x(n,a)", "m(a)!? w(a) x(n,a)"
        ),
        *called(
            torch.where, "m(n,1)? w(a) v(b,1,1)", "m(n,a)? i(n,a)<5 x(n,a)", "m(a)!? w(a) v(a)", "m(a,n)? x(a,n) w()"
        ),
        *called(torch.where, "m(n,a)? i(n,a)<5 j(n,a)<5", "m(n,a)? x(n,a) c(a)!"),
        Example(lambda m, x: torch.where(m, x, 0.0), "m(n,a)? x(n,a)"),
        Example(lambda m, x: torch.where(m, x, 1.5), "m(n,a)? x(n,a)"),
        Example(lambda m, x: torch.where(m, 0, x), "m(n,a)? x(n,a)"),
        Example(lambda m, x: torch.where(m, 2.0, -1.0) * x, "m(n,a)? x(n,a)"),
        Example(lambda x: torch.where(x > 0, x, 0.1 * x), "x(n,a)"),
        Example(lambda x: torch.where(x > 0.5, x, 0.1 * x), "x(n,a)"),
        Example(lambda x, y: torch.where(x > y, x, y), "x(n,a) y(n,a)"),
    ],
    "masked_fill": [
        *called(lambda x, m: x.masked_fill(m, 0.0), "x(n,a) m(n,a)?", "x(n,a) m(a)!?", "w(a) m(n,a)?", "x(a,n) m(n)?"),
        *called(lambda x, m: x.masked_fill(m, 1.5), "x(n,a) m(n,1)?", "i(n,a)<5 m(n,a)?", "w(a) m(a)!?"),
        *called(lambda x, m: F.relu(x.masked_fill(m, -INFINITY)), "x(n,a) m(n,a)?"),
        *called(lambda x, m, w: x.masked_fill(m, w), "x(n,a) m(n,a)? w()", "w(a) m(n,a)? v()"),
        Example(lambda x: x.masked_fill(x < 0, 0.0), "x(n,a)"),
        Example(lambda x: x.masked_fill(x < 0.5, 0.0), "x(n,a)"),
    ],
    "gt": _compared(torch.gt),
    "ge": _compared(torch.ge),
    "lt": _compared(torch.lt),
    "le": _compared(torch.le),
    "eq": _compared(torch.eq),
    "ne": _compared(torch.ne),
    "sign": [*unary(torch.sign, "i(n,a)<5"), Example(lambda x, w: torch.sign(x) * w, "x(n,a) w(a)")],
    "floor": [*unary(lambda x: torch.floor(3 * x)), Example(lambda x: x - torch.floor(x), "x(n,a)")],
    "ceil": [*unary(lambda x: torch.ceil(3 * x)), Example(lambda x: x - torch.ceil(x), "x(n,a)")],
    "trunc": [*unary(lambda x: torch.trunc(3 * x)), Example(lambda x, w: x * torch.trunc(3 * w), "x(n,a) w(a)")],
    "frac": [*unary(lambda x: torch.frac(3 * x)), Example(lambda x, w: x * torch.frac(w), "x(n,a) w(a)")],
    "round": [
        *unary(lambda x: torch.round(3 * x)),
        Example(lambda x: torch.round(x, decimals=1), "x(n,a)"),
        Example(lambda x, w: x + torch.round(w), "x(n,a) w(a)"),
    ],
}
