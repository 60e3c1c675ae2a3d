"""From the cotangents at an operation's output to the curvature of a parameter that goes into it.

Every rule here knows one thing: the gradient of the stacked columns with respect to the parameter, one sample
at a time, (n, R, *shape). The trace is its sum of squares and the diagonal its squares summed over samples and
columns. Rules for which the gradient need never be formed say so by their own `trace` and `diagonal`.

Letters: n samples, R columns of the loss factor S, g groups, C output channels, J inputs (times kernel taps) that
meet in one output channel, L positions at which the same weight is used.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..network.records import Graph, Operation, Samples

IN_ROWS = Samples(0)


def wide(tensor: Tensor) -> Tensor:
    """Half precision cannot hold squares: contract in float32."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


class Use(NamedTuple):
    """One place where a tensor without samples, a parameter or made of parameters, meets the samples."""

    operation: Operation
    argument: str
    leaf: str
    shape: tuple[int, ...]
    bound: Mapping[str, Any]
    values: Mapping[str, Any]
    samples: Mapping[str, Samples | None]
    layouts: tuple[Samples | None, ...]
    output: tuple[int, ...]
    n: int
    memo: dict[str, Tensor]
    """Of the cotangents at hand, what the arguments of one operation can share; emptied before the next."""
    rows: dict[str, Tensor]
    """By name of the value, the squared norms of its rows where they are known: for all columns alike."""

    def one(self, argument: str) -> Tensor:
        """An argument one sample at a time: (n, *shape for a batch of one)."""
        samples, tensor = self.samples[argument], wide(self.bound[argument])
        return tensor.unsqueeze(0) if samples is None else samples.split(tensor, self.n)

    def aligned(self, argument: str) -> Tensor:
        """An argument one sample at a time, with the rank of the output: what broadcasts against its cotangents."""
        x = self.one(argument)
        return x.view(x.shape[0], *[1] * (len(self.output) + 1 - x.dim()), *x.shape[1:])

    def squares(self, G: Tensor) -> Tensor | None:
        """Each sample's squared cotangents, summed (n,), where they are rows (R, n, C) as they come; else None."""
        if G.dim() != 3 or self.layouts[0] != IN_ROWS:
            return None
        if "squares" not in self.memo:
            self.memo["squares"] = squares_of_rows(wide(G).transpose(0, 1))
        return self.memo["squares"]

    def row_squares(self, argument: str) -> Tensor:
        """Of an argument that is a matrix with one row per sample, the squared norm of each row: (n,)."""
        name = self.operation.arguments[argument].name
        if name not in self.rows:
            self.rows[name] = squares_of_rows(wide(self.bound[argument]))
        return self.rows[name]

    def columns(self, G: Tensor) -> Tensor:
        """Stacked cotangents one sample at a time: (n, R, *output shape for a batch of one)."""
        samples = self.layouts[0]
        assert samples is not None
        return samples.split_columns(wide(G), self.n)


def square_sum(tensor: Tensor) -> Tensor:
    """The sum of squares, accumulated in the widest type the device has."""
    return squares_of_rows(tensor).sum()


def squares_of_rows(tensor: Tensor) -> Tensor:
    """The sum of squares of each row, or of all that lies along the first axis, in the widest type the device has."""
    return widest(torch.linalg.vector_norm(tensor.flatten(1), dim=1)).square_()


def widest(tensor: Tensor) -> Tensor:
    """In float64; where the device has none, on the CPU."""
    return tensor.cpu().double() if tensor.device.type == "mps" else tensor.double()


class Contraction(ABC):
    """How the cotangents at an operation's output contract with one of its arguments."""

    def fits(self, operation: Operation, argument: str, graph: Graph) -> bool:
        """Whether the rule covers this call; where not, `PerSampleVJP` takes over."""
        return True

    @abstractmethod
    def gradient(self, use: Use, G: Tensor) -> Tensor:
        """The gradient of every column with respect to the argument: (n, R, *shape)."""

    def trace(self, use: Use, G: Tensor) -> Tensor:
        """The squared gradient summed over everything."""
        return square_sum(self.gradient(use, G))

    def diagonal(self, use: Use, G: Tensor) -> Tensor:
        """The squared gradient summed over samples and columns."""
        return self.gradient(use, G).square_().sum((0, 1))

    def floats(self, operation: Operation, shape: tuple[int, ...], output: tuple[int, ...]) -> tuple[int, int]:
        """Working memory: numbers per sample, and numbers per sample and column."""
        return 0, prod(shape)

    def matrices(self, operation: Operation, tensor: Tensor) -> Tensor | None:
        """Numbers shaped like the argument as matrices (groups, outputs, inputs), summed over kernel taps.

        None for an argument that is not a weight between inputs and outputs. Where the rule knows no better, the first
        axis counts as outputs and the second as inputs.
        """
        return tensor.flatten(2).sum(2).unsqueeze(0) if tensor.dim() > 2 else tensor.unsqueeze(0)


class PerSampleVJP(Contraction):
    """The rule of last resort: one backward pass through the operation per sample and column. Slow, and right."""

    def gradient(self, use: Use, G: Tensor) -> Tensor:
        """Mask the cotangent down to one sample, then let autograd do it."""
        leaf = use.values[use.leaf].detach().requires_grad_()
        with torch.enable_grad():
            outputs = use.operation.call(use.operation.bind({**use.values, use.leaf: leaf}))
        cotangents: Sequence[Tensor | None] = G if use.operation.many else (G,)  # type: ignore[assignment]
        made = tuple(outputs) if use.operation.many else (outputs,)
        parts = [
            (output, cotangent, layout)
            for output, cotangent, layout in zip(made, cotangents, use.layouts, strict=True)
            if cotangent is not None and layout is not None and output.requires_grad
        ]
        columns = next(g for g in cotangents if g is not None).shape[0]
        result = leaf.new_zeros(use.n, columns, *leaf.shape)
        for i in range(use.n if parts else 0):
            for k in range(columns):
                masked = [_only(g[k], layout, i, use.n) for _, g, layout in parts]
                (row,) = torch.autograd.grad(
                    [output for output, _, _ in parts], [leaf], masked, retain_graph=True, allow_unused=True
                )
                if row is not None:
                    result[i, k] = row
        return wide(result)


def _only(cotangent: Tensor, samples: Samples, i: int, n: int) -> Tensor:
    """The cotangent with every sample but one set to zero."""
    result = torch.zeros_like(cotangent)
    shape = (samples.outer, n, samples.inner)
    source = cotangent.unflatten(samples.axis, shape).select(samples.axis + 1, i)
    result.unflatten(samples.axis, shape).select(samples.axis + 1, i).copy_(source)
    return result


class Elementwise(Contraction):
    """A tensor broadcast over the output and added, or multiplied by ``coefficient``.

    ``channel=True``: it runs along axis 1 of the output (a convolution's bias, a norm's weight), otherwise it is
    broadcast by the usual rule.
    """

    def __init__(self, coefficient: Callable[[Use], Tensor | float] | None = None, *, channel: bool = False):
        self.coefficient = coefficient
        self.channel = channel

    def gradient(self, use: Use, G: Tensor) -> Tensor:
        """Multiply, then sum over everything the tensor was broadcast over."""
        g = use.columns(G)
        if self.coefficient is not None:
            factor = self.coefficient(use)
            g = g * (factor.unsqueeze(1) if isinstance(factor, Tensor) else factor)  # (n, R, ...)
        shape = use.shape + (1,) * (g.dim() - 4) if self.channel else use.shape
        kept = g.dim() - len(shape)
        summed = [d for d in range(2, g.dim()) if g.shape[d] > 1 and (d < kept or shape[d - kept] == 1)]
        if summed:
            g = g.sum(summed, keepdim=True)
        return g.reshape(*g.shape[:2], *use.shape)

    def trace(self, use: Use, G: Tensor) -> Tensor:
        """A bias of plain rows has the cotangents themselves as gradient."""
        squares = use.squares(G) if self.coefficient is None and use.shape == G.shape[2:] else None
        return super().trace(use, G) if squares is None else squares.sum()

    def diagonal(self, use: Use, G: Tensor) -> Tensor:
        """As ever, but the gradient may be a view of the cotangents, which others still need."""
        return self.gradient(use, G).square().sum((0, 1))

    def matrices(self, operation: Operation, tensor: Tensor) -> Tensor | None:
        """Not a weight."""
        return None

    def floats(self, operation: Operation, shape: tuple[int, ...], output: tuple[int, ...]) -> tuple[int, int]:
        """A product as large as the output."""
        return 0, prod(output) if self.coefficient is not None else prod(shape)


class Outer(Contraction):
    """A weight whose gradient is a sum over positions of outer products: linear layers, convolutions, matmul.

    The gradient is a product of matrices: (n, R, g, C, J) = sum over L of G (n, R, g, C, L) and U (n, g, J, L).
    """

    @abstractmethod
    def cotangents(self, use: Use, G: Tensor) -> Tensor:
        """G, lined up: (n, R, g, C, L)."""

    @abstractmethod
    def inputs(self, use: Use) -> Tensor:
        """U, what the weight multiplies at each position: (n, g, J, L)."""

    @abstractmethod
    def restore(self, product: Tensor, use: Use) -> Tensor:
        """From (..., g, C, J) to (..., *shape of the weight)."""

    def gram(self, use: Use) -> Tensor:
        """U^T U: (n, g, L, L)."""
        U = self.inputs(use)
        return torch.einsum("ngjl,ngjm->nglm", U, U)

    def gram_cost(self, use: Use, J: int, L: int) -> int:
        """Multiplications for U^T U, per sample and group."""
        return L * L * J

    def gradient(self, use: Use, G: Tensor) -> Tensor:
        """The outer products, summed over positions."""
        return self.restore(torch.einsum("nrgcl,ngjl->nrgcj", self.cotangents(use, G), self.inputs(use)), use)

    def trace(self, use: Use, G: Tensor) -> Tensor:
        """Directly, ||G U^T||^2, or through Gram matrices, <U^T U, G^T G>: whichever has fewer multiplications."""
        g = self.cotangents(use, G)
        _, R, groups, C, L = g.shape
        J = prod(use.shape) // (groups * C)
        if L == 1:  # ||g u^T||^2 = ||g||^2 ||u||^2
            norms = torch.linalg.vector_norm(g, dim=(1, 3, 4))  # (n, g)
            norms = norms * torch.linalg.vector_norm(self.inputs(use), dim=(2, 3))
            return widest(norms).square().sum()
        rows = g.transpose(1, 2).flatten(2, 3)  # (n, g, R * C, L), copied if there are groups or the channels come last
        if L * L * R * C + self.gram_cost(use, J, L) < L * J * R * C:
            product = (rows.mT @ rows).mul_(self.gram(use))
            return widest(product.flatten(1).sum(1)).sum()
        return square_sum(self.inputs(use) @ rows.mT)  # faster than rows @ inputs.mT

    def diagonal(self, use: Use, G: Tensor) -> Tensor:
        """Form the gradients and square them; with few positions, expand the square over pairs of positions."""
        g, U = self.cotangents(use, G), self.inputs(use)
        R, L = g.shape[1], g.shape[4]
        if L == 1:  # sum_k (g_k u)^2 = (sum_k g_k^2) u^2
            result = torch.einsum("ngcl,ngjl->gcj", g.square().sum(1), U.square())
        elif L + 1 <= 2 * R:
            result = _diagonal_by_pairs(g, U)
        else:
            result = _diagonal_directly(g, U)
        return self.restore(result, use)

    def floats(self, operation: Operation, shape: tuple[int, ...], output: tuple[int, ...]) -> tuple[int, int]:
        """The unfolded input per sample; the gradient or the copied cotangents per column."""
        channels = max(shape[0], 1)
        return prod(shape) // channels * max(prod(output) // channels, 1), min(prod(shape), 4 * prod(output))


def _diagonal_by_pairs(g: Tensor, U: Tensor) -> Tensor:
    """(sum_l g_l u_l)^2 = sum over pairs l <= m of 2 (g_l g_m) (u_l u_m), halved where l = m: one matrix product."""
    L = g.shape[4]
    l, m = torch.triu_indices(L, L, device=g.device)  # noqa: E741
    weight = torch.where(l == m, 1, 2).to(g.dtype)
    pairs = torch.einsum("nrgcl,nrgcm->ngclm", g, g)[..., l, m] * weight
    return torch.einsum("ngcp,ngjp->gcj", pairs, U[..., l] * U[..., m]).clamp_min_(0)


_GRADIENT_BLOCK = 1 << 20  # numbers: small enough to be squared while they are in the cache


def _diagonal_directly(g: Tensor, U: Tensor) -> Tensor:
    """Form a few samples' gradients at a time."""
    n, R, groups, C, _ = g.shape
    J = U.shape[2]
    step = max(1, _GRADIENT_BLOCK // (R * groups * C * J))
    result = g.new_zeros(groups, C, J)
    for start in range(0, n, step):
        block = torch.einsum("nrgcl,ngjl->nrgcj", g[start : start + step], U[start : start + step])
        result += block.square_().sum((0, 1))
    return result


class Matrix(Outer):
    """A matrix that multiplies the last axis of ``argument``: ``input @ weight.T``, or ``input @ weight``."""

    def __init__(self, other: str, *, transposed: bool = False):
        self.other = other
        self.transposed = transposed

    def fits(self, operation: Operation, argument: str, graph: Graph) -> bool:
        """Both are matrices, or the other one a stack of them."""
        ranks = {name: len(graph.values[value].shape) for name, value in operation.reads}
        return ranks[argument] == 2 and ranks[self.other] >= 2

    def trace(self, use: Use, G: Tensor) -> Tensor:
        """One row per sample: ||g x^T||^2 = ||g||^2 ||x||^2."""
        x = use.bound[self.other]
        squares = use.squares(G) if x.dim() == 2 and use.samples[self.other] == IN_ROWS else None
        if squares is None:
            return super().trace(use, G)
        return torch.dot(squares, use.row_squares(self.other))

    def cotangents(self, use: Use, G: Tensor) -> Tensor:
        """All axes between the samples and the last are positions."""
        return use.columns(G).flatten(2, -2).mT.unsqueeze(2)

    def inputs(self, use: Use) -> Tensor:
        """Likewise."""
        return use.one(self.other).flatten(1, -2).mT.unsqueeze(1)

    def restore(self, product: Tensor, use: Use) -> Tensor:
        """(..., 1, C, J) to (C, J), or to (J, C)."""
        matrix = product.squeeze(-3)
        return matrix.mT if self.transposed else matrix

    def matrices(self, operation: Operation, tensor: Tensor) -> Tensor | None:
        """(C, J), or (J, C)."""
        return (tensor.mT if self.transposed else tensor).unsqueeze(0)


class MatrixFromLeft(Outer):
    """A matrix on the left: ``weight @ input``."""

    def __init__(self, other: str):
        self.other = other

    def fits(self, operation: Operation, argument: str, graph: Graph) -> bool:
        """Both are matrices, or the other one a stack of them."""
        ranks = {name: len(graph.values[value].shape) for name, value in operation.reads}
        return ranks[argument] == 2 and ranks[self.other] >= 2

    def cotangents(self, use: Use, G: Tensor) -> Tensor:
        """All axes but the last but one are positions."""
        return use.columns(G).movedim(-2, 2).flatten(3).unsqueeze(2)

    def inputs(self, use: Use) -> Tensor:
        """Likewise."""
        return use.one(self.other).movedim(-2, 1).flatten(2).unsqueeze(1)

    def restore(self, product: Tensor, use: Use) -> Tensor:
        """(..., 1, C, J) to (C, J)."""
        return product.squeeze(-3)


@dataclass(frozen=True)
class Geometry:
    """A convolution's window: the same numbers for one, two or three dimensions."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @staticmethod
    def of(bound: Mapping[str, Any]) -> "Geometry":
        """Read from a convolution's arguments."""
        kernel = tuple(bound["weight"].shape[2:])
        stride, dilation = each(bound["stride"], kernel), each(bound["dilation"], kernel)
        padding = bound["padding"]
        if padding == "valid":
            before = after = (0,) * len(kernel)
        elif padding == "same":
            total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
            before = tuple(t // 2 for t in total)
            after = tuple(t - t // 2 for t in total)
        else:
            before = after = each(padding, kernel)
        return Geometry(kernel, stride, before, after, dilation, bound["groups"])

    @property
    def pads(self) -> list[int]:
        """In the order that `torch.nn.functional.pad` wants."""
        return [p for pair in reversed(list(zip(self.before, self.after, strict=True))) for p in pair]

    def left_over(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """How many rows at the end of each axis no window reaches, because the stride does not divide."""
        return tuple(
            (size + before + after - dilation * (kernel - 1) - 1) % stride
            for size, before, after, dilation, kernel, stride in zip(
                sizes, self.before, self.after, self.dilation, self.kernel, self.stride, strict=True
            )
        )

    def padded(self, x: Tensor) -> Tensor:
        """With the zeros around it."""
        return F.pad(x, self.pads) if any(self.pads) else x

    def by_place(self, window: Sequence[int], x: Tensor) -> tuple["Geometry", list[Tensor]]:
        """What of the input is met at each place in the windows of a pool that follows, and how to slide over it.

        The windows lie side by side from the first position on; positions that none of them covers are left out.
        """
        x = self.padded(x)
        reaches = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]
        starts, lengths = [], []
        for size, reach, step, width in zip(x.shape[2:], reaches, self.stride, window, strict=True):
            count = ((size - reach) // step + 1) // width
            starts.append(range(0, width * step, step))
            lengths.append((count - 1) * width * step + reach)
        parts = [
            x[:, :, *(slice(start, start + length) for start, length in zip(place, lengths, strict=True))]
            for place in product(*starts)
        ]
        none = (0,) * len(self.kernel)
        stride = tuple(step * width for step, width in zip(self.stride, window, strict=True))
        return replace(self, stride=stride, before=none, after=none), parts

    def add_taps(self, gram: Tensor) -> Tensor:
        """From products of pixels to products of windows: (n, g, *space, *space) to (n, g, *positions, *positions).

        <window l, window m> = sum over taps t of pixel(l + t) pixel(m + t), one axis of the image after the other.
        """
        D = len(self.kernel)
        for d in range(D):
            reach = (self.kernel[d] - 1) * self.dilation[d]
            span = gram.shape[2 + d] - reach
            total: Tensor | None = None
            for tap in range(0, reach + 1, self.dilation[d]):
                part = gram.narrow(2 + d, tap, span).narrow(2 + D + d, tap, span)
                if self.stride[d] > 1:
                    index = [slice(None)] * gram.dim()
                    index[2 + d] = index[2 + D + d] = slice(None, None, self.stride[d])
                    part = part[tuple(index)]
                total = part.clone() if total is None else total.add_(part)
            assert total is not None
            gram = total
        return gram

    def windows(self, x: Tensor, positions: Sequence[int] | None = None) -> Tensor:
        """(N, channels, *space) to (N, g, channels/g * taps, positions); all positions, or the first so many."""
        return self._rows(self._taps(x, positions))

    def windows_by_place(self, window: Sequence[int], x: Tensor) -> Tensor:
        """The same, with the positions sorted by their place in the windows of a pool that follows."""
        geometry, parts = self.by_place(window, x)
        return self._rows(torch.stack([geometry._taps(part) for part in parts], dim=2 + len(self.kernel)))

    def _rows(self, taps: Tensor) -> Tensor:
        """(N, channels, *taps, ...) to (N, g, channels/g * taps, all the rest)."""
        channels, rest = taps.shape[1] // self.groups, taps.shape[2 + len(self.kernel) :]
        return taps.reshape(taps.shape[0], self.groups, channels * prod(self.kernel), prod(rest))

    def _taps(self, x: Tensor, positions: Sequence[int] | None = None) -> Tensor:
        """What each tap of the kernel meets, a view: (N, channels, *taps, *positions)."""
        x = self.padded(x)
        D = len(self.kernel)
        for d in range(D):
            x = x.unfold(2 + d, (self.kernel[d] - 1) * self.dilation[d] + 1, self.stride[d])
            x = x[..., :: self.dilation[d]]
            if positions is not None:
                x = x.narrow(2 + d, 0, positions[d])
        return x.permute(0, 1, *range(2 + D, 2 + 2 * D), *range(2, 2 + D))


def each(value: int | Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
    """One number for every dimension of a kernel, where one may stand for all."""
    items = (value,) if isinstance(value, int) else tuple(value)
    return items * len(kernel) if len(items) == 1 else items


def _batched(operation: Operation, graph: Graph) -> bool:
    """Whether the input of a convolution has a batch axis, as the weight has one for its outputs."""
    ranks = {slot: len(graph.values[name].shape) for slot, name in operation.reads if name in graph.values}
    return ranks["input"] == ranks["weight"]


class Convolution(Outer):
    """The weight of a convolution: the inputs are the windows it slides over."""

    def fits(self, operation: Operation, argument: str, graph: Graph) -> bool:
        """Batches alone."""
        return _batched(operation, graph)

    def cotangents(self, use: Use, G: Tensor) -> Tensor:
        """As they come: (n, R, inner, channels, *space) to (n, R, g, C, inner * L)."""
        g = use.columns(G).unflatten(3, (use.bound["groups"], -1)).flatten(5)
        return g.movedim(2, -2).flatten(-2)

    def inputs(self, use: Use) -> Tensor:
        """The windows of the input: (n * inner, g, J, L) to (n, g, J, inner * L)."""
        windows = Geometry.of(use.bound).windows(use.one("input").flatten(0, 1))
        return windows.unflatten(0, (use.n, -1)).movedim(1, -2).flatten(-2)

    def gram(self, use: Use) -> Tensor:
        """From the Gram matrix of the pixels, if that is smaller than that of the windows."""
        if not self._through_pixels(use):
            return super().gram(use)
        geometry = Geometry.of(use.bound)
        x = geometry.padded(use.one("input").flatten(0, 1))
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
        """Batches alone."""
        return _batched(operation, graph)


class ConvolutionByPlace(Convolution):
    """A convolution whose positions are sorted by their place in the windows of a pool: see `rewrite`."""

    def inputs(self, use: Use) -> Tensor:
        """The windows, in that order."""
        return Geometry.of(use.bound).windows_by_place(use.bound["window"], use.bound["input"])

    def _through_pixels(self, use: Use) -> bool:
        """Their order is not that of the pixels."""
        return False


class TransposedConvolution(Outer):
    """The weight of a transposed convolution: the windows slide over the cotangents instead."""

    def fits(self, operation: Operation, argument: str, graph: Graph) -> bool:
        """Batches alone."""
        return _batched(operation, graph)

    def cotangents(self, use: Use, G: Tensor) -> Tensor:
        """Their windows: (n, R, g, C/g * taps, inner * L)."""
        g, space = use.columns(G), use.bound["input"].shape[2:]
        windows = Geometry.of(use.bound).windows(g.flatten(0, 2), space).unflatten(0, g.shape[:3])
        return windows.movedim(2, -2).flatten(-2)

    def inputs(self, use: Use) -> Tensor:
        """As they come: (n, inner, channels, *space) to (n, g, channels/g, inner * L)."""
        x = use.one("input").unflatten(2, (use.bound["groups"], -1)).flatten(4)
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


class Embedding(Contraction):
    """Rows looked up by index. A row that is looked up twice in a sample adds up before it is squared."""

    def _rows(self, use: Use, G: Tensor) -> tuple[Tensor, Tensor]:
        """The indices (n, L), and the cotangents (n, R, L, width), zero at the padding index."""
        index = use.one("indices").flatten(1)
        g = use.columns(G).flatten(2, -2)
        padding = use.bound.get("padding_idx", -1)
        if padding is not None and padding >= 0:
            g = g * (index != padding)[:, None, :, None]
        return index, g

    def gradient(self, use: Use, G: Tensor) -> Tensor:
        """Add each cotangent to its row of the table."""
        index, g = self._rows(use, G)
        result = g.new_zeros(*g.shape[:2], *use.shape)
        return result.scatter_add_(2, index[:, None, :, None].expand_as(g), g)

    def trace(self, use: Use, G: Tensor) -> Tensor:
        """Sum the products of the cotangents at every two positions that look up the same row."""
        index, g = self._rows(use, G)
        same = index.unsqueeze(2) == index.unsqueeze(1)  # (n, L, L)
        gram = torch.einsum("nrld,nrmd->nlm", g, g) * same
        return widest(gram.flatten(1).sum(1)).sum()

    def diagonal(self, use: Use, G: Tensor) -> Tensor:
        """Each of the m positions that share a row holds their whole sum, and gives 1/m of its square."""
        index, g = self._rows(use, G)
        same = (index.unsqueeze(2) == index.unsqueeze(1)).to(g.dtype)
        total = torch.einsum("nlm,nrmd->nrld", same, g)
        squares = total.square().sum(1) / same.sum(2).unsqueeze(-1)  # (n, L, width)
        return g.new_zeros(use.shape).index_add_(0, index.flatten(), squares.flatten(0, 1))

    def floats(self, operation: Operation, shape: tuple[int, ...], output: tuple[int, ...]) -> tuple[int, int]:
        """One number per pair of positions."""
        return (prod(output) // shape[1]) ** 2, prod(output)

    def matrices(self, operation: Operation, tensor: Tensor) -> Tensor | None:
        """A row of the table is what one word, an input, gives to each output."""
        return tensor.mT.unsqueeze(0)


def normalized(use: Use) -> Tensor:
    """The input of a norm layer after it is normalised and before weight and bias: run the layer without them."""
    samples = use.samples["input"]
    assert samples is not None
    bare = {name: None if name in ("weight", "bias") else given for name, given in use.bound.items()}
    result = use.operation.call(bare)
    return samples.split(wide(result[0] if use.operation.many else result), use.n)
