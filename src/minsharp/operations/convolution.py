"""Convolutions, plain and transposed."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..graph.records import Graph, Operation
from ..rules.apart import along, in_front_as
from ..rules.channels import UnfitError, Walk
from ..rules.contraction import Elementwise, Outer, Use, square_sum
from ..rules.frames import FrameWalk, Labels
from ..rules.pullback import Pull, by_autograd, stacked
from ..rules.row import Row
from .windows import Geometry

_GRADIENT_BLOCK = 1 << 21
"""Numbers: of how many samples the gradients are taken at once."""
_WIDE, _LARGE = 32, 64
"""From how many channels and positions on oneDNN is faster by more than two copies where the channels come last."""


def _batched(operation: Operation, graph: Graph) -> bool:
    """Whether the input of a convolution has a batch axis, as the weight has one for its outputs."""
    ranks = {argument: len(graph.values[v].shape) for argument, v in operation.by_argument.items() if v in graph.values}
    return ranks["input"] == ranks["weight"]


def _gradient(bound: Mapping[str, Any], x: Tensor, g: Tensor) -> Tensor:
    """The weight's, sample by sample: (n, channels, *in), (n, C, *out) -> (n * C, channels, *taps)."""
    geometry, (n, C), shape = Geometry.of(bound), g.shape[:2], bound["weight"].shape
    like = bound["weight"] if n * C == shape[0] else g.new_empty(1).expand(n * C, *shape[1:])
    tensors = (g, x, like) if n == 1 else (g.flatten(0, 1).unsqueeze(0), x.flatten(0, 1).unsqueeze(0), like)
    options = (None, geometry.stride, geometry.before, geometry.dilation, False, (0,) * len(geometry.kernel), n)
    gradients = torch.ops.aten.convolution_backward(*tensors, *options, (False, True, False))
    made: Tensor = gradients[1]
    return made


def _in_onednn(tensor: Tensor) -> bool:
    """Whether it is of the kind that torch hands to oneDNN."""
    mkldnn = torch.backends.mkldnn
    on = mkldnn.is_available() and bool(mkldnn.enabled)
    return on and tensor.device.type == "cpu" and tensor.dtype == torch.float32


class Convolution(Outer):
    """The weight of a convolution: the inputs are the windows it slides over."""

    def fits(self, operation: Operation, argument: str, graph: Graph) -> bool:
        """Whether the input has a batch axis: (n, channels, *space)."""
        return _batched(operation, graph)

    def cotangents(self, use: Use, G: Tensor) -> Tensor:
        """As they come: (n, R, inner, channels, *space) to (n, R, g, C, inner * L)."""
        g = use.columns(G).unflatten(3, (use.bound["groups"], -1)).flatten(5)
        return g.movedim(2, -2).flatten(-2)

    def inputs(self, use: Use) -> Tensor:
        """The windows of the input: (n * inner, g, J, L) to (n, g, J, inner * L)."""
        windows = Geometry.of(use.bound).windows(use.per_sample("input").flatten(0, 1))
        return windows.unflatten(0, (use.n, -1)).movedim(1, -2).flatten(-2)

    def directly(self, use: Use, g: Tensor) -> Tensor:
        """As a convolution's own derivative, one group for each sample, where that beats products with windows."""
        if not self._as_convolution(use):
            return super().directly(use, g)
        x, (n, R, _, C, _), space = use.per_sample("input").flatten(0, 1), g.shape, use.output[2:]
        if g.stride(3) == 1 < g.stride(4) and len(space) == 2:  # channels last, and they stay there
            x, stacks = x.contiguous(memory_format=torch.channels_last), g[:, :, 0].unflatten(3, space)
            pairs = [(some, row) for some, stack in zip(x.split(1), stacks, strict=True) for row in stack.split(1)]
        else:
            together = max(1, _GRADIENT_BLOCK // (R * prod(use.shape)))
            rows = g.reshape(n, R * C, *space)
            pairs = list(zip(x.split(together), rows.split(together), strict=True))
        return torch.stack([square_sum(_gradient(use.bound, some, part)) for some, part in pairs]).sum()

    def _as_convolution(self, use: Use) -> bool:
        """Plain batches on a CPU, in the one type that oneDNN takes, and a kernel that would have to be unfolded."""
        x, weight, geometry = use.per_sample("input"), use.bound["weight"], Geometry.of(use.bound)
        plain = x.shape[:2] == (use.n, 1) and use.output[0] == geometry.groups == 1
        same = geometry.before == geometry.after and prod(geometry.kernel) > 1
        return plain and same and _in_onednn(x) and _in_onednn(weight)

    def gram(self, use: Use) -> Tensor:
        """From the Gram matrix of the pixels, if that is smaller than that of the windows."""
        if not self._through_pixels(use):
            return super().gram(use)
        geometry = Geometry.of(use.bound)
        x = geometry.padded(use.per_sample("input").flatten(0, 1))
        X = x.unflatten(1, (geometry.groups, -1)).flatten(3)  # (n, g, channels/g, pixels)
        gram = torch.einsum("ngcp,ngcq->ngpq", X, X)
        gram = geometry.add_taps(gram.unflatten(3, x.shape[2:]).unflatten(2, x.shape[2:]))
        return gram.flatten(2, 1 + len(geometry.kernel)).flatten(3)

    def gram_cost(self, use: Use, J: int, L: int) -> int:
        """The cheaper of the two ways."""
        return self._pixel_cost(use) if self._through_pixels(use) else L * L * J

    def _pixel_cost(self, use: Use) -> int:
        geometry, x = Geometry.of(use.bound), use.bound["input"]
        pixels = prod(s + b + a for s, b, a in zip(x.shape[2:], geometry.before, geometry.after, strict=True))
        return pixels * pixels * (x.shape[1] // geometry.groups + sum(geometry.kernel))

    def _through_pixels(self, use: Use) -> bool:
        """One sample to a window's batch, and fewer multiplications; copying windows costs about eight each."""
        J, L = prod(use.shape[1:]), prod(use.output[2:])
        return use.output[0] == 1 and self._pixel_cost(use) < L * (L + 8) * J

    def restore(self, product: Tensor, use: Use) -> Tensor:
        """(..., g, C, J) is already in the order of (g*C, channels, *taps)."""
        return product.reshape(*product.shape[:-3], *use.shape)

    def floats(self, operation: Operation, shape: tuple[int, ...], output: tuple[int, ...]) -> tuple[int, int]:
        """Windows per sample; the gradient or a copy of the cotangents per column."""
        channels = shape[1] * operation.arguments["groups"]
        return channels * prod(shape[2:]) * prod(output) // shape[0], min(prod(shape), 4 * prod(output))

    def matrices(self, operation: Operation, tensor: Tensor) -> Tensor | None:
        """(g*C, channels/g, *taps)."""
        return tensor.flatten(2).sum(2).unflatten(0, (operation.arguments.get("groups", 1), -1))


class ConvolutionBias(Elementwise):
    """The bias of a convolution: a number per channel, at every position."""

    def __init__(self) -> None:
        super().__init__(channel=True)

    def fits(self, operation: Operation, argument: str, graph: Graph) -> bool:
        """Whether the input has a batch axis: (n, channels, *space)."""
        return _batched(operation, graph)


class TransposedConvolution(Outer):
    """The weight of a transposed convolution: the windows slide over the cotangents instead."""

    def fits(self, operation: Operation, argument: str, graph: Graph) -> bool:
        """Whether the input has a batch axis: (n, channels, *space)."""
        return _batched(operation, graph)

    def cotangents(self, use: Use, G: Tensor) -> Tensor:
        """Their windows: (n, R, g, C/g * taps, inner * L)."""
        g, space = use.columns(G), use.bound["input"].shape[2:]
        windows = Geometry.of(use.bound).windows(g.flatten(0, 2), space).unflatten(0, g.shape[:3])
        return windows.movedim(2, -2).flatten(-2)

    def inputs(self, use: Use) -> Tensor:
        """As they come: (n, inner, channels, *space) to (n, g, channels/g, inner * L)."""
        x = use.per_sample("input").unflatten(2, (use.bound["groups"], -1)).flatten(4)
        return x.movedim(1, -2).flatten(-2)

    def restore(self, product: Tensor, use: Use) -> Tensor:
        """(..., g, C/g * taps, channels/g) to (..., channels, C/g, *taps)."""
        return product.mT.reshape(*product.shape[:-3], *use.shape)

    def floats(self, operation: Operation, shape: tuple[int, ...], output: tuple[int, ...]) -> tuple[int, int]:
        """Windows of every column."""
        return prod(output), prod(shape[2:]) * prod(output)

    def matrices(self, operation: Operation, tensor: Tensor) -> Tensor | None:
        """(channels, C/g, *taps)."""
        return tensor.flatten(2).sum(2).unflatten(0, (operation.arguments.get("groups", 1), -1)).mT


def pull_convolution(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """The transposed convolution; for a transposed convolution, the plain one."""
    x, weight = bound["input"], bound["weight"]
    if wanted != {"input"} or x.dim() != weight.dim():  # no batch axis
        return by_autograd(operation, bound, wanted)
    geometry = Geometry.of(bound)
    rank = len(geometry.kernel)
    options = {"stride": geometry.stride, "dilation": geometry.dilation, "groups": geometry.groups}
    if "output_padding" in bound:
        conv = getattr(F, f"conv{rank}d")
        space = tuple(slice(size) for size in x.shape[2:])  # output padding may leave room for more windows
        return operation.call(bound), lambda G: {
            "input": stacked(lambda b: conv(b, weight, padding=geometry.before, **options)[:, :, *space], G)
        }
    lopsided = geometry.before != geometry.after  # padding="same" with an even kernel
    options["padding"] = (0,) * rank if lopsided else geometry.before
    options["output_padding"] = geometry.left_over(x.shape[2:])
    transposed = getattr(F, f"conv_transpose{rank}d")

    out = operation.call(bound)
    turned = rank == 2 and _gains_from_channels_last(x, weight, out)

    def back(batch: Tensor) -> Tensor:
        given = batch.contiguous(memory_format=torch.channels_last) if turned else batch
        result: Tensor = transposed(given, weight, **options)
        return F.pad(result, [-p for p in geometry.pads]) if lopsided else result

    return out, lambda G: {"input": stacked(back, G)}


def _gains_from_channels_last(x: Tensor, weight: Tensor, out: Tensor) -> bool:
    """Whether a convolution with so many channels and positions is so much faster that two copies are paid for."""
    wide_enough = min(weight.shape[:2]) >= _WIDE and prod(out.shape[2:]) >= _LARGE
    return wide_enough and _in_onednn(x) and _in_onednn(weight)


def convolution_scales(walk: Walk, operation: Operation) -> Tensor | Sequence[Tensor]:
    """W[o, i] scales by out_o / in_i, with i counted within the group of o."""
    given = operation.by_argument
    scale = walk.scale_of(given["input"])
    if walk.varies(given["weight"]) or scale.dim() != walk.rank(given["weight"]):  # channels come after the batch
        raise UnfitError
    groups: Any = operation.arguments["groups"]
    into = walk.tie(scale, [0, *range(2, scale.dim())], operation).reshape(groups, -1)  # (g, channels/g)
    shape = walk.graph.values[operation.outputs[0]].shape
    out = walk.forms.fresh(shape[1])
    ones = [1] * (scale.dim() - 2)
    if "output_padding" in operation.arguments:  # transposed: (channels, C/g, *taps)
        plus = out.view(groups, -1).repeat_interleave(into.shape[1], 0)
        minus = into.reshape(-1, 1)
    else:  # (C, channels/g, *taps)
        plus = out.view(-1, 1)
        minus = into.repeat_interleave(shape[1] // groups, 0)
    walk.assign_scale(given["weight"], plus.view(*plus.shape, *ones), minus.view(*minus.shape, *ones), operation)
    if "bias" in given:
        walk.assign_scale(given["bias"], out, walk.one, operation)
    return out.view(1, -1, *ones).expand(shape)


def convolution_frames(walk: FrameWalk, operation: Operation) -> Labels:
    """Matrices act on the channels that come out, and inverses on those that go in, the same for every tap."""
    given, shape = operation.by_argument, walk.graph.values[operation.outputs[0]].shape
    weight = walk.entries_of(given["weight"])  # (o, i, *taps)
    bias = walk.entries_of(given["bias"]) if "bias" in given else None
    if weight is None or operation.arguments["groups"] != 1 or weight.dim() != len(shape):
        raise UnfitError
    walk.consumed(walk.labels_of(given["input"]).movedim(1, -1), weight.transpose(0, 1), operation)
    if "bias" in given and bias is None:
        return walk.labels_of(operation.outputs[0])
    return walk.produced(shape, 1, [weight, *([bias.unsqueeze(1)] if bias is not None else [])])


_CONVOLUTION = {"weight": Convolution(), "bias": ConvolutionBias()}

_TRANSPOSED = {"weight": TransposedConvolution(), "bias": ConvolutionBias()}

_apart = along("input", in_front_as("weight"))

_conv = Row(
    "input*weight + bias",
    pull_convolution,
    _CONVOLUTION,
    convolution_scales,
    frames=convolution_frames,
    apart=_apart,
)

_conv_transpose = Row("input*weight + bias", pull_convolution, _TRANSPOSED, convolution_scales, apart=_apart)

ROWS: dict[str, Row] = {
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "conv_transpose1d": _conv_transpose,
    "conv_transpose2d": _conv_transpose,
    "conv_transpose3d": _conv_transpose,
}
