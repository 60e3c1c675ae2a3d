"""The one table: what minsharp knows about each operation.

A row says how the result depends on the arguments (`formula`, from which exactness and rescaling follow), how
cotangents pass back (`pull`), and how they contract with a parameter at each argument (`contract`). To teach
minsharp an operation, add one row, and one model to the zoo in ``tests/zoo.py``. Only the formula is required:
without `pull` and `contract` the engine goes through autograd, slower and just as right. An operation that is not
in the table counts as nonlinear in everything.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..curvature import contract, pullback
from ..curvature.contract import Contraction, Elementwise, Use
from ..curvature.pullback import Pullback
from .formula import Formula, parse
from .records import Operation


@dataclass(frozen=True)
class Row:
    """What is known about one operation. ``rearranges``: the result holds the same entries, each once."""

    formula: str
    pull: Pullback = pullback.by_autograd
    contract: Mapping[str, Contraction] = field(default_factory=dict)
    rearranges: bool = False

    def formula_of(self, operation: Operation) -> Formula:
        """The formula with the lists of this very call written out: ``sum(tensors)`` as ``tensors[0] + ...``."""

        def items(match: re.Match[str]) -> str:
            kind, name = match.groups()
            count = len(operation.arguments[name])
            return {"sum": " + ", "prod": "*"}[kind].join(f"{name}[{i}]" for i in range(count))

        return parse(re.sub(r"\b(sum|prod)\((\w+)\)", items, self.formula))


_UNKNOWN = Row("1")  # names no argument: nonlinear in, and pinning, whatever goes in


def row(operation: Operation) -> Row:
    """The row of an operation."""
    return TABLE.get(operation.name, _UNKNOWN)


def _other(use: Use) -> Tensor | float:
    """The other factor of a product."""
    name = "other" if use.argument == "self" else "self"
    return use.one(name) if isinstance(use.bound[name], Tensor) else float(use.bound[name])


def _alpha(use: Use) -> float:
    """The factor of the second term of a sum or difference."""
    sign = -1.0 if use.operation.name == "sub" else 1.0
    return sign * float(use.bound.get("alpha", 1))


def _divided(use: Use) -> Tensor | float:
    return 1 / use.one("other") if isinstance(use.bound["other"], Tensor) else 1 / float(use.bound["other"])


_BIAS = Elementwise()
_CHANNEL_BIAS = Elementwise(channel=True)
_CONVOLUTION = {"weight": contract.Convolution(), "bias": _CHANNEL_BIAS}
_TRANSPOSED = {"weight": contract.TransposedConvolution(), "bias": _CHANNEL_BIAS}
_CHANNEL_NORM = {"weight": Elementwise(contract.normalized, channel=True), "bias": _CHANNEL_BIAS}
_LAST_NORM = {"weight": Elementwise(contract.normalized), "bias": _BIAS}
_PRODUCT = {"self": Elementwise(_other), "other": Elementwise(_other)}
_SUM = {"self": _BIAS, "other": Elementwise(_alpha)}

_conv = Row("input*weight + bias", pullback.convolution, _CONVOLUTION)
_conv_transpose = Row("input*weight + bias", pullback.convolution, _TRANSPOSED)
_batch_norm = Row("input*weight + 1*weight + bias", pullback.batch_norm, _CHANNEL_NORM)
_shape = Row("self", pullback.reshaped, rearranges=True)
_axes = Row("self", pullback.permuted, rearranges=True)
_homogeneous = Row("self")
_max_pool = Row("self", pullback.max_pool)
_compare = Row("step(self, other)")

TABLE: dict[str, Row] = {
    # weights meet inputs
    "linear": Row("input*weight + bias", pullback.linear, {"weight": contract.Matrix("input"), "bias": _BIAS}),
    "matmul": Row(
        "self*other",
        pullback.matmul,
        {"other": contract.Matrix("self", transposed=True), "self": contract.MatrixFromLeft("other")},
    ),
    "mm": Row(
        "self*mat2",
        pullback.matmul,
        {"mat2": contract.Matrix("self", transposed=True), "self": contract.MatrixFromLeft("mat2")},
    ),
    "bmm": Row("self*mat2", pullback.matmul),
    "addmm": Row("self + mat1*mat2"),
    "einsum": Row("prod(tensors)"),
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "conv_transpose1d": _conv_transpose,
    "conv_transpose2d": _conv_transpose,
    "conv_transpose3d": _conv_transpose,
    "embedding": Row("weight", contract={"weight": contract.Embedding()}),
    "_weight_norm": Row("f(v)*g"),
    # norms
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "layer_norm": Row("f(input)*weight + bias", contract=_LAST_NORM),
    "native_layer_norm": Row("f(input)*weight + bias", contract=_LAST_NORM),
    "rms_norm": Row("f(input)*weight", contract={"weight": Elementwise(contract.normalized)}),
    "group_norm": Row("f(input)*weight + bias", contract=_CHANNEL_NORM),
    "instance_norm": Row("f(input)*weight + bias", contract=_CHANNEL_NORM),
    # activations: positively homogeneous
    "relu": Row("self", pullback.relu),
    "leaky_relu": Row("self", pullback.elementwise(pullback.leaky_slope)),
    "prelu": Row(
        "self + self*weight",
        contract={"weight": Elementwise(lambda use: use.one("self").clamp_max(0), channel=True)},
    ),
    "abs": Row("self", pullback.elementwise(lambda bound, out: bound["self"].sign())),
    # activations: piecewise linear; homogeneous only where the corners are at zero
    "relu6": Row("self + 1"),
    "hardtanh": Row("self + min_val + max_val"),
    "clamp": Row("self + min + max"),
    "clamp_min": Row("self + min"),
    "clamp_max": Row("self + max"),
    "hardsigmoid": Row("self + 1"),
    "hardshrink": Row("self + lambd"),
    "softshrink": Row("self + lambd"),
    "threshold": Row("self + threshold + value"),
    # pools
    "max_pool1d": _max_pool,
    "max_pool1d_with_indices": _max_pool,
    "max_pool2d": _max_pool,
    "max_pool2d_with_indices": _max_pool,
    "max_pool3d": _max_pool,
    "max_pool3d_with_indices": _max_pool,
    "adaptive_max_pool1d": _homogeneous,
    "adaptive_max_pool2d": _homogeneous,
    "adaptive_max_pool3d": _homogeneous,
    "avg_pool1d": _homogeneous,
    "avg_pool2d": Row("self", pullback.avg_pool2d),
    "avg_pool3d": _homogeneous,
    "adaptive_avg_pool1d": _homogeneous,
    "adaptive_avg_pool2d": _homogeneous,
    "adaptive_avg_pool3d": _homogeneous,
    "_adaptive_avg_pool2d": _homogeneous,
    "upsample_nearest1d": _homogeneous,
    "upsample_nearest2d": _homogeneous,
    "upsample_nearest3d": _homogeneous,
    "upsample_linear1d": _homogeneous,
    "upsample_bilinear2d": _homogeneous,
    "upsample_bicubic2d": _homogeneous,
    "pixel_shuffle": _homogeneous,
    "pixel_unshuffle": _homogeneous,
    # the same entries under another shape
    "view": _shape,
    "_unsafe_view": _shape,
    "reshape": _shape,
    "flatten": _shape,
    "unflatten": _shape,
    "squeeze": _shape,
    "unsqueeze": _shape,
    "contiguous": _shape,
    "clone": _shape,
    "alias": _shape,
    "dropout": Row("input", pullback.reshaped, rearranges=True),
    "feature_dropout": Row("input", pullback.reshaped, rearranges=True),
    "alpha_dropout": Row("input", pullback.reshaped, rearranges=True),
    "permute": _axes,
    "transpose": _axes,
    "t": _axes,
    "numpy_T": _axes,
    "mT": _axes,
    "movedim": _axes,
    "swapaxes": _axes,
    # some of the entries, or several times
    "select": _homogeneous,
    "slice": _homogeneous,
    "narrow": _homogeneous,
    "index": _homogeneous,
    "index_select": _homogeneous,
    "gather": _homogeneous,
    "flip": _homogeneous,
    "roll": _homogeneous,
    "expand": Row("self", contract={"self": _BIAS}),
    "repeat": _homogeneous,
    "repeat_interleave": _homogeneous,
    "chunk": _homogeneous,
    "split": _homogeneous,
    "split_with_sizes": _homogeneous,
    "unbind": _homogeneous,
    "unfold": _homogeneous,
    "im2col": _homogeneous,
    "tril": _homogeneous,
    "triu": _homogeneous,
    "constant_pad_nd": Row("self + value"),
    "pad": Row("self + value"),
    "reflection_pad1d": _homogeneous,
    "reflection_pad2d": _homogeneous,
    "replication_pad1d": _homogeneous,
    "replication_pad2d": _homogeneous,
    "to": _homogeneous,
    "_to_copy": _homogeneous,
    "type_as": _homogeneous,
    # sums and maxima
    "add": Row("self + other", pullback.added, _SUM),
    "sub": Row("self + other", pullback.added, _SUM),
    "rsub": Row("self + other"),
    "neg": Row("self", pullback.elementwise(lambda bound, out: -1.0)),
    "cat": Row("sum(tensors)", pullback.concatenated),
    "stack": Row("sum(tensors)"),
    "sum": Row("self", pullback.averaged),
    "mean": Row("self", pullback.averaged),
    "cumsum": _homogeneous,
    "maximum": Row("self + other"),
    "minimum": Row("self + other"),
    "max": Row("self + other"),
    "min": Row("self + other"),
    "amax": _homogeneous,
    "amin": _homogeneous,
    "topk": _homogeneous,
    "sort": _homogeneous,
    "where": Row("self + other"),
    "masked_fill": Row("self + value"),
    # products
    "mul": Row("self*other", pullback.multiplied, _PRODUCT),
    "div": Row("self*f(other)", contract={"self": Elementwise(_divided)}),
    "scaled_dot_product_attention": Row("f(query, key, attn_mask)*value"),
    # piecewise constant
    "gt": _compare,
    "ge": _compare,
    "lt": _compare,
    "le": _compare,
    "eq": _compare,
    "ne": _compare,
    "sign": Row("step(self)"),
    "floor": Row("step(self)"),
    "round": Row("step(self)"),
    "argmax": Row("step(self)"),
}
