"""Functions of each entry by itself: activations, sums, products, comparisons."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..graph.records import Operation
from ..rules.apart import along, by_entry, in_front, other_than
from ..rules.channels import Walk, entrywise
from ..rules.contraction import Elementwise, Use
from ..rules.frames import added_frames, multiplied, passed
from ..rules.narrowing import each_entry, other_than_dim
from ..rules.pullback import Cotangents, Pull, by_autograd, by_derivative, by_slope, laid_as, unbroadcast
from ..rules.row import Row


def pull_relu(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Zero where the output is zero."""
    out = operation.call(bound)
    return out, lambda G: {"self": torch.ops.aten.threshold_backward(G, laid_as(out, G), 0)}


def hard_sigmoid(x: Tensor) -> Tensor:
    """From zero at -3 to one at 3."""
    return (x + 3).clamp(0, 6) / 6


def leaky_slope(bound: Mapping[str, Any], out: Tensor) -> Tensor:
    """One, or the negative slope."""
    x = bound["self"]
    return torch.where(x > 0, x.new_ones(()), x.new_full((), float(bound["negative_slope"])))


def pull_sum(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Sum or difference, with broadcasting."""
    factors = {name: _factor(operation, name, bound.get("alpha", 1)) for name in wanted}

    def pull(G: Tensor) -> Cotangents:
        return {
            name: unbroadcast(G if factor == 1 else G * factor, bound[name].shape).to(bound[name].dtype)
            for name, factor in factors.items()
        }

    return operation.call(bound), pull


def _factor(operation: Operation, argument: str, alpha: float) -> float:
    """What an argument of a sum or difference is multiplied by; of ``rsub`` it is the first that is subtracted."""
    if operation.name == "rsub":
        return -alpha if argument == "self" else 1
    if argument == "self":
        return 1
    return -alpha if operation.name in ("sub", "subtract") else alpha


def pull_product(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Product of two tensors, or of a tensor and a number."""
    other = {"self": "other", "other": "self"}
    return operation.call(bound), lambda G: {
        name: unbroadcast(G * bound[other[name]], bound[name].shape).to(bound[name].dtype) for name in wanted
    }


def pull_quotient(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """a/b: to a G/b, to b -G a/b²."""
    x, y = bound["self"], bound["other"]

    def pull(G: Tensor) -> Cotangents:
        g = G / y
        found = {"self": g} | ({"other": g * (-x / y)} if "other" in wanted else {})
        return {name: unbroadcast(found[name], bound[name].shape).to(bound[name].dtype) for name in wanted}

    return operation.call(bound), pull


def pull_where(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Each takes back what it gave, zero elsewhere."""
    taken = {"self": bound["condition"], "other": ~bound["condition"]}
    return operation.call(bound), lambda G: {
        name: unbroadcast(torch.where(taken[name], G, 0.0), bound[name].shape).to(bound[name].dtype) for name in wanted
    }


def pull_masked_fill(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Zero where the value was written; to the value, the sum of what stands there."""
    taken = {"self": ~bound["mask"], "value": bound["mask"]}
    return operation.call(bound), lambda G: {
        name: unbroadcast(torch.where(taken[name], G, 0.0), bound[name].shape).to(bound[name].dtype) for name in wanted
    }


def pull_softmax(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """y = softmax(x): dx = y (G - <G, y>), (R, *shape) -> (R, *shape)."""
    x, y = bound["self"], operation.call(bound)
    axis = bound["dim"] % max(x.dim(), 1)

    def pull(G: Tensor) -> Cotangents:
        weighted = G * y
        return {"self": weighted.addcmul_(y, weighted.sum(axis + 1, keepdim=True), value=-1).to(x.dtype)}

    return y, pull


def pull_log_softmax(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """dx = G - exp(y) <G, 1>."""
    x, y = bound["self"], operation.call(bound)
    axis, p = bound["dim"] % max(x.dim(), 1), y.exp()
    return y, lambda G: {"self": (G - p * G.sum(axis + 1, keepdim=True)).to(x.dtype)}


def pull_prelu(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """One, or the slope of the channel."""
    x, weight = bound["self"], bound["weight"]
    if wanted != {"self"}:
        return by_autograd(operation, bound, wanted)
    slope = torch.where(x > 0, 1.0, weight.view(-1, *[1] * (x.dim() - 2)) if x.dim() > 1 else weight)
    return operation.call(bound), lambda G: {"self": G * slope}


def prelu_scales(walk: Walk, operation: Operation) -> Tensor:
    """PReLU: x + w min(x, 0) keeps the scale of x only if w keeps its own."""
    given = operation.by_argument
    walk.assign_scale(given["weight"], walk.one, walk.one, operation)
    return walk.scale_of(given["self"])


def _other(use: Use) -> Tensor | float:
    """The other factor of a product."""
    name = "other" if use.argument == "self" else "self"
    return use.aligned(name) if isinstance(use.bound[name], Tensor) else float(use.bound[name])


def _alpha(use: Use) -> float:
    """The factor of a term of a sum or difference."""
    return float(_factor(use.operation, use.argument, use.bound.get("alpha", 1)))


def _divided(use: Use) -> Tensor | float:
    return 1 / use.aligned("other") if isinstance(use.bound["other"], Tensor) else 1 / float(use.bound["other"])


_BIAS = Elementwise()

_PRODUCT = {"self": Elementwise(_other), "other": Elementwise(_other)}

_SUM = {"self": _BIAS, "other": Elementwise(_alpha)}

_divide = Row(
    "self*f(other)",
    pull_quotient,
    contract={"self": Elementwise(_divided)},
    channels=entrywise,
    unless="rounding_mode",
    frames=multiplied,
)

_add = Row("self + other", pull_sum, _SUM, entrywise, frames=added_frames)

_mul = Row("self*other", pull_product, _PRODUCT, entrywise, frames=multiplied)

_compare = Row("step(self, other)", compares=True)

_SMOOTH = (
    *("gelu", "silu", "tanh", "sigmoid", "softplus", "elu", "selu", "celu", "mish", "hardswish", "log_sigmoid"),
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "square", "reciprocal", "sin", "cos"),
    *("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "erfc", "logit", "sinc"),
)
"""Functions of each entry by itself, and not piecewise linear."""

_EACH_ENTRY: dict[str, Row] = {
    "relu": Row("self", pull_relu, channels=entrywise),
    "leaky_relu": Row("self", by_derivative(leaky_slope), channels=entrywise),
    "abs": Row("self", by_derivative(lambda bound, out: bound["self"].sign()), channels=entrywise),
    "relu6": Row("self + 1", by_slope, channels=entrywise),
    "hardtanh": Row("self + min_val + max_val", by_slope, channels=entrywise),
    "clip": Row("self + min + max", by_slope, channels=entrywise),
    "clamp": Row("self + min + max", by_slope, channels=entrywise),
    "clamp_min": Row("self + min", by_slope, channels=entrywise),
    "clamp_max": Row("self + max", by_slope, channels=entrywise),
    "hardsigmoid": Row("self + 1", by_slope, channels=entrywise, twice=hard_sigmoid),
    "hardshrink": Row("self + lambd", by_slope, channels=entrywise),
    "softshrink": Row("self + lambd", by_slope, channels=entrywise),
    "threshold": Row("self + threshold + value", by_slope, channels=entrywise),
    **dict.fromkeys(_SMOOTH, Row("f(self)", by_slope)),
    "pow": Row("f(self, exponent)", by_slope),
    "add": _add,
    "sub": _add,
    "subtract": _add,
    "rsub": Row("self + other", pull_sum, {"self": Elementwise(_alpha), "other": _BIAS}, entrywise),
    "neg": Row("self", by_derivative(lambda bound, out: -1.0), channels=entrywise, frames=passed),
    "fmax": Row("self + other", channels=entrywise),
    "fmin": Row("self + other", channels=entrywise),
    "positive": Row("self", by_derivative(lambda bound, out: 1.0), channels=entrywise, frames=passed),
    "maximum": Row("self + other", channels=entrywise),
    "minimum": Row("self + other", channels=entrywise),
    "where": Row("self + other", pull_where, channels=entrywise),
    "masked_fill": Row("self + value", pull_masked_fill, channels=entrywise),
    "mul": _mul,
    "multiply": _mul,
    "div": _divide,
    "true_divide": _divide,
    "divide": _divide,
    "gt": _compare,
    "ge": _compare,
    "lt": _compare,
    "le": _compare,
    "eq": _compare,
    "ne": _compare,
    "sign": Row("step(self)", compares=True),
    "floor": Row("step(self)"),
    "ceil": Row("step(self)"),
    "trunc": Row("step(self)"),
    "frac": Row("self + 1"),
    "round": Row("step(self)"),
}

_softmax = Row("f(self)", pull_softmax, narrows=other_than_dim, apart=along("self", other_than("dim")))

_log_softmax = replace(_softmax, pull=pull_log_softmax)

ROWS: dict[str, Row] = {
    **{name: replace(row, narrows=each_entry, apart=by_entry) for name, row in _EACH_ENTRY.items()},
    "prelu": Row(
        "self + self*weight",
        pull_prelu,
        contract={"weight": Elementwise(lambda use: use.per_sample("self").clamp_max(0), channel=True)},
        channels=prelu_scales,
        apart=along("self", in_front),
    ),
    "softmax": _softmax,
    "_softmax": _softmax,
    "log_softmax": _log_softmax,
    "_log_softmax": _log_softmax,
}
