"""The one table: what minsharp knows about each operation.

A row says how the result depends on the arguments (`formula`, from which exactness and rescaling follow), how
cotangents pass back (`pull`), how they contract with a parameter at each argument (`contract`), and how scales pass
through channel by channel (`channels`). To teach minsharp an operation, add one row, and one model to the zoo in
``tests/zoo.py``. Only the formula is required: without `pull` and `contract` the engine goes through autograd, slower
and just as right, and without `channels` all entries of a tensor are scaled alike. An operation that is not in the
table counts as nonlinear in everything.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from ..curvature import contract, pullback
from ..curvature.contract import Contraction, Elementwise, Use
from ..curvature.pullback import Pullback
from . import channels
from .channels import Rule
from .formula import Formula, parse
from .records import Operation


@dataclass(frozen=True)
class Row:
    """What is known about one operation. ``rearranges``: the result holds the same entries, each once."""

    formula: str
    pull: Pullback = pullback.by_autograd
    contract: Mapping[str, Contraction] = field(default_factory=dict)
    channels: Rule | None = None
    rearranges: bool = False
    unless: str = ""
    """An argument that, if it is given, makes the row not apply."""
    otherwise: "Row | None" = None
    """What applies then; without it, nothing is known."""
    ignores: tuple[str, ...] = ()
    """Arguments of which only shape, type or device is used."""
    compares: bool = False
    """The result tells only which argument is larger: it stays if both are scaled alike."""

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
    found = TABLE.get(operation.name, _UNKNOWN)
    return found.otherwise or _UNKNOWN if found.unless and operation.arguments.get(found.unless) else found


def _other(use: Use) -> Tensor | float:
    """The other factor of a product."""
    name = "other" if use.argument == "self" else "self"
    return use.aligned(name) if isinstance(use.bound[name], Tensor) else float(use.bound[name])


def _alpha(use: Use) -> float:
    """The factor of the second term of a sum or difference."""
    sign = -1.0 if use.operation.name in ("sub", "subtract") else 1.0
    return sign * float(use.bound.get("alpha", 1))


def _divided(use: Use) -> Tensor | float:
    return 1 / use.aligned("other") if isinstance(use.bound["other"], Tensor) else 1 / float(use.bound["other"])


_BIAS = Elementwise()
_CHANNEL_BIAS = Elementwise(channel=True)
_CONVOLUTION = {"weight": contract.Convolution(), "bias": contract.ConvolutionBias()}
_TRANSPOSED = {"weight": contract.TransposedConvolution(), "bias": contract.ConvolutionBias()}
_CHANNEL_NORM = {"weight": Elementwise(contract.normalized, channel=True), "bias": _CHANNEL_BIAS}
_LAST_NORM = {"weight": Elementwise(contract.normalized), "bias": _BIAS}
_PRODUCT = {"self": Elementwise(_other), "other": Elementwise(_other)}
_SUM = {"self": _BIAS, "other": Elementwise(_alpha)}

_conv = Row("input*weight + bias", pullback.convolution, _CONVOLUTION, channels.convolution)
_conv_transpose = Row("input*weight + bias", pullback.convolution, _TRANSPOSED, channels.convolution)
_batch_norm = Row(
    "input*weight + 1*weight + bias",
    pullback.batch_norm,
    _CHANNEL_NORM,
    channels.norm(True),
    unless="training",
    otherwise=Row("f(input)*weight + bias", contract=_CHANNEL_NORM, channels=channels.norm(True)),
)
_shape = Row("self", pullback.reshaped, channels=channels.moved, rearranges=True)
_axes = Row("self", pullback.permuted, channels=channels.moved, rearranges=True)
_dropout = Row("input", pullback.reshaped, channels=channels.entrywise, rearranges=True)
_homogeneous = Row("self")
_moved = Row("self", channels=channels.moved)
_entry = Row("self", channels=channels.entrywise)
_window = Row("self", channels=channels.windows)
_along = Row("self", channels=channels.reduced)
_max_pool = Row("self", pullback.max_pool, channels=channels.windows)
_divide = Row(
    "self*f(other)",
    contract={"self": Elementwise(_divided)},
    channels=channels.entrywise,
    unless="rounding_mode",
)
_add = Row("self + other", pullback.added, _SUM, channels.entrywise)
_mul = Row("self*other", pullback.multiplied, _PRODUCT, channels.entrywise)
_cat = Row("sum(tensors)", pullback.concatenated, channels=channels.moved)
_resize = Row("self + input", channels=channels.windows)
_zeros = Row("0", channels=channels.zeros)
_blank = Row("1", ignores=("self",))
_compare = Row("step(self, other)", compares=True)

TABLE: dict[str, Row] = {
    # weights meet inputs
    "linear": Row(
        "input*weight + bias",
        pullback.linear,
        {"weight": contract.Matrix("input"), "bias": _BIAS},
        channels.matrix("weight", "input", "bias"),
    ),
    "matmul": Row(
        "self*other",
        pullback.matmul,
        {"other": contract.Matrix("self", transposed=True), "self": contract.MatrixFromLeft("other")},
        channels.matrices,
    ),
    "mm": Row(
        "self*mat2",
        pullback.matmul,
        {"mat2": contract.Matrix("self", transposed=True), "self": contract.MatrixFromLeft("mat2")},
        channels.matrices,
    ),
    "baddbmm": Row("self + batch1*batch2"),
    "bilinear": Row("input1*input2*weight + bias"),
    "tensordot": Row("self*other"),
    "mv": Row("self*vec"),
    "addcmul": Row("self + tensor1*tensor2"),
    "bmm": Row("self*mat2", pullback.matmul),
    "addmm": Row("self + mat1*mat2"),
    "einsum": Row("prod(tensors)"),
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "conv_transpose1d": _conv_transpose,
    "conv_transpose2d": _conv_transpose,
    "conv_transpose3d": _conv_transpose,
    "embedding": Row("weight", contract={"weight": contract.Embedding()}, channels=channels.embedding),
    "_weight_norm": Row("f(v)*g"),
    # norms
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "layer_norm": Row("f(input)*weight + bias", contract=_LAST_NORM, channels=channels.norm(False)),
    "native_layer_norm": Row("f(input)*weight + bias", contract=_LAST_NORM, channels=channels.norm(False)),
    "rms_norm": Row(
        "f(input)*weight", contract={"weight": Elementwise(contract.normalized)}, channels=channels.norm(False)
    ),
    "group_norm": Row("f(input)*weight + bias", contract=_CHANNEL_NORM, channels=channels.norm(True)),
    "instance_norm": Row("f(input)*weight + bias", contract=_CHANNEL_NORM, channels=channels.norm(True)),
    # activations: positively homogeneous
    "relu": Row("self", pullback.relu, channels=channels.entrywise),
    "leaky_relu": Row("self", pullback.elementwise(pullback.leaky_slope), channels=channels.entrywise),
    "prelu": Row(
        "self + self*weight",
        contract={"weight": Elementwise(lambda use: use.one("self").clamp_max(0), channel=True)},
        channels=channels.slope,
    ),
    "abs": Row("self", pullback.elementwise(lambda bound, out: bound["self"].sign()), channels=channels.entrywise),
    # activations: piecewise linear; homogeneous only where the corners are at zero
    "relu6": Row("self + 1", channels=channels.entrywise),
    "hardtanh": Row("self + min_val + max_val", channels=channels.entrywise),
    "clip": Row("self + min + max", channels=channels.entrywise),
    "clamp": Row("self + min + max", channels=channels.entrywise),
    "clamp_min": Row("self + min", channels=channels.entrywise),
    "clamp_max": Row("self + max", channels=channels.entrywise),
    "hardsigmoid": Row("self + 1", channels=channels.entrywise),
    "hardshrink": Row("self + lambd", channels=channels.entrywise),
    "softshrink": Row("self + lambd", channels=channels.entrywise),
    "threshold": Row("self + threshold + value", channels=channels.entrywise),
    # pools
    "max_pool1d": _max_pool,
    "max_pool1d_with_indices": _max_pool,
    "max_pool2d": _max_pool,
    "max_pool2d_with_indices": _max_pool,
    "max_pool3d": _max_pool,
    "max_pool3d_with_indices": _max_pool,
    "adaptive_max_pool1d": _window,
    "adaptive_max_pool2d": _window,
    "adaptive_max_pool3d": _window,
    "avg_pool1d": _window,
    "avg_pool2d": Row("self", pullback.avg_pool2d, channels=channels.windows),
    "avg_pool3d": _window,
    "adaptive_avg_pool1d": _window,
    "adaptive_avg_pool2d": _window,
    "adaptive_avg_pool3d": _window,
    "_adaptive_avg_pool2d": _window,
    "upsample_nearest1d": _resize,
    "upsample_nearest2d": _resize,
    "upsample_nearest3d": _resize,
    "upsample_linear1d": _resize,
    "upsample_bilinear2d": _resize,
    "upsample_bicubic2d": _resize,
    "pixel_shuffle": _moved,
    "pixel_unshuffle": _moved,
    # the same entries under another shape
    "view": replace(_shape, unless="dtype"),  # other numbers in the same bits
    "view_as": replace(_shape, ignores=("other",)),
    "reshape_as": replace(_shape, ignores=("other",)),
    "_unsafe_view": _shape,
    "reshape": _shape,
    "flatten": _shape,
    "unflatten": _shape,
    "squeeze": _shape,
    "unsqueeze": _shape,
    "contiguous": _shape,
    "clone": _shape,
    "alias": _shape,
    "detach": _shape,  # keeps values and their scale; that no derivative passes is in records and linearity
    "dropout": _dropout,
    "feature_dropout": _dropout,
    "alpha_dropout": _dropout,
    "permute": _axes,
    "transpose": _axes,
    "t": _axes,
    "numpy_T": _axes,
    "mT": _axes,
    "movedim": _axes,
    "swapaxes": _axes,
    "swapdims": _axes,
    "moveaxis": _axes,
    # some of the entries, or several times
    "select": _moved,
    "slice": _moved,
    "narrow": _moved,
    "index": _homogeneous,
    "index_select": _homogeneous,
    "gather": _homogeneous,
    "flip": _moved,
    "roll": _moved,
    "expand": Row("self", contract={"self": _BIAS}, channels=channels.moved),
    "expand_as": Row("self", ignores=("other",)),
    "broadcast_to": Row("self"),
    "repeat": _moved,
    "tile": _moved,
    "diagonal": _moved,
    "diag_embed": _homogeneous,
    "channel_shuffle": _moved,
    "rot90": _moved,
    "slice_scatter": Row("self + src", channels=channels.moved),
    "select_scatter": Row("self + src", channels=channels.moved),
    "scatter": Row("self + src + value", unless="reduce"),
    "index_put": Row("self + values"),
    "copy": Row("self + src", pullback.copied),
    "col2im": _homogeneous,
    "repeat_interleave": _homogeneous,
    "chunk": _moved,
    "split": _moved,
    "split_with_sizes": _moved,
    "unbind": _moved,
    "unfold": _moved,
    "im2col": _homogeneous,
    "tril": _entry,
    "triu": _entry,
    "constant_pad_nd": Row("self + value", channels=channels.padded),
    "pad": Row("self + value", channels=channels.padded),
    "reflection_pad1d": _window,
    "reflection_pad2d": _window,
    "replication_pad1d": _window,
    "replication_pad2d": _window,
    "to": _entry,
    "_to_copy": _entry,
    "type_as": replace(_entry, ignores=("other",)),
    # sums and maxima
    "add": _add,
    "sub": _add,
    "subtract": _add,
    "rsub": Row("self + other", channels=channels.entrywise),
    "neg": Row("self", pullback.elementwise(lambda bound, out: -1.0), channels=channels.entrywise),
    "cat": _cat,
    "concat": _cat,
    "hstack": Row("sum(tensors)", channels=channels.moved),
    "vstack": Row("sum(tensors)", channels=channels.moved),
    "stack": Row("sum(tensors)", channels=channels.moved),
    "sum": Row("self", pullback.averaged, channels=channels.reduced),
    "mean": Row("self", pullback.averaged, channels=channels.reduced),
    "cumsum": _along,
    "fmax": Row("self + other", channels=channels.entrywise),
    "fmin": Row("self + other", channels=channels.entrywise),
    "median": _homogeneous,
    "positive": _entry,
    "maximum": Row("self + other", channels=channels.entrywise),
    "minimum": Row("self + other", channels=channels.entrywise),
    "max": Row("self + other", channels=channels.maxima),
    "min": Row("self + other", channels=channels.maxima),
    "amax": _along,
    "amin": _along,
    "topk": _along,
    "sort": _along,
    "where": Row("self + other", channels=channels.entrywise),
    "masked_fill": Row("self + value", channels=channels.entrywise),
    # products
    "mul": _mul,
    "multiply": _mul,
    "div": _divide,
    "true_divide": _divide,
    "divide": _divide,
    "scaled_dot_product_attention": Row("f(query*key, attn_mask)*value", channels=channels.attention),
    # nothing
    "zeros": _zeros,
    "zeros_like": _zeros,
    "new_zeros": _zeros,
    "ones_like": _blank,
    "full_like": _blank,
    "empty_like": _blank,
    "new_ones": _blank,
    "new_full": _blank,
    "new_empty": _blank,
    # piecewise constant
    "gt": _compare,
    "ge": _compare,
    "lt": _compare,
    "le": _compare,
    "eq": _compare,
    "ne": _compare,
    "sign": Row("step(self)", compares=True),
    "floor": Row("step(self)"),
    "round": Row("step(self)"),
    "argmax": Row("step(self)"),
    # what the engine makes of a convolution and a max pool: curvature/rewrite.py
    "conv_by_place": Row("input*weight", contract={"weight": contract.ConvolutionByPlace()}),
    "max_over_places": Row("self", pullback.max_over_places),
    "add_to_channels": Row("self + other", pullback.added, {"other": _CHANNEL_BIAS}),
}
