"""From the cotangents at an operation's output to the curvature of a parameter that goes into it.

Every rule here knows one thing: the gradient of the stacked columns with respect to the parameter, one sample
at a time, (n, R, *shape). The trace is its sum of squares and the diagonal its squares summed over samples and
columns. Rules for which the gradient need never be formed say so by their own `trace` and `diagonal`.

Letters: n samples, R columns of the loss factor S, g groups, C output channels, J inputs (times kernel taps) that
meet in one output channel, L positions at which the same weight is used.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..graph.records import Graph, Operation, Samples
from .pullback import gradient_rows, laid_as, wide, widened

IN_ROWS = Samples(0)


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

    def per_sample(self, argument: str) -> Tensor:
        """An argument one sample at a time: (n, *shape for a batch of one)."""
        samples, tensor = self.samples[argument], wide(self.bound[argument])
        return tensor.unsqueeze(0) if samples is None else samples.split(tensor, self.n)

    def aligned(self, argument: str) -> Tensor:
        """An argument one sample at a time, with the rank of the output: what broadcasts against its cotangents."""
        x = self.per_sample(argument)
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


def squares_of_columns(tensor: Tensor) -> Tensor:
    """The sum of squares of each column of each sample, (n, R, ...) -> (n, R), in the widest type the device has."""
    n, R = tensor.shape[:2]
    return squares_of_rows(tensor.reshape(n * R, prod(tensor.shape[2:]))).view(n, R)


def widest(tensor: Tensor) -> Tensor:
    """In float64; where the device has none, on the CPU."""
    return tensor.cpu().double() if tensor.device.type == "mps" else tensor.double()


class Contraction(ABC):
    """How the cotangents at an operation's output contract with one of its arguments."""

    every = False
    """Whether it takes the cotangents of every result of the operation, not those of the first alone."""

    def fits(self, operation: Operation, argument: str, graph: Graph) -> bool:
        """Whether the rule covers this call; where not, `PerSampleVJP` takes over."""
        return True

    @abstractmethod
    def gradient(self, use: Use, G: Tensor) -> Tensor:
        """The gradient of every column with respect to the argument: (n, R, *shape)."""

    def trace(self, use: Use, G: Tensor) -> Tensor:
        """The squared gradient summed over everything."""
        return square_sum(self.gradient(use, G))

    def squares(self, use: Use, G: Tensor) -> Tensor:
        """The squared gradient of each sample and column: (n, R)."""
        return squares_of_columns(self.gradient(use, G))

    def diagonal(self, use: Use, G: Tensor) -> Tensor:
        """The squared gradient summed over samples and columns."""
        return self.gradient(use, G).square_().sum((0, 1))

    def floats(self, operation: Operation, shape: tuple[int, ...], output: tuple[int, ...]) -> tuple[int, int]:
        """Working memory: numbers per sample, and numbers per sample and column."""
        return 0, prod(shape)

    def sizes(self, use: Use) -> Tensor | None:
        """The squared norm of what the argument multiplies, (n,), which the gradient goes with; None if it does not."""
        return None

    def matrices(self, operation: Operation, tensor: Tensor) -> Tensor | None:
        """Numbers shaped like the argument as matrices (groups, outputs, inputs), summed over kernel taps.

        None for an argument that is not a weight between inputs and outputs, as a vector is none. Where the rule knows
        no better, the first axis counts as outputs and the second as inputs.
        """
        if tensor.dim() < 2:
            return None
        return tensor.flatten(2).sum(2).unsqueeze(0) if tensor.dim() > 2 else tensor.unsqueeze(0)


_MASKED_BLOCK = 1 << 22  # numbers: how many cotangents, masked down to single samples, are held at once


class PerSampleVJP(Contraction):
    """The rule of last resort: each sample's cotangents pass back through the whole operation. Slow, and right."""

    every = True

    def gradient(self, use: Use, G: Tensor) -> Tensor:
        """Mask the cotangents down to one sample, then let autograd do it, for as many as fit at once."""
        leaf = wide(use.values[use.leaf]).detach().requires_grad_()
        bound = use.operation.bind({**use.values, use.leaf: leaf})
        with torch.enable_grad():
            outputs = use.operation.call(widened(bound))
        cotangents: Sequence[Tensor | None] = G if use.operation.many else (G,)  # type: ignore[assignment]
        made = tuple(outputs) if use.operation.many else (outputs,)
        parts = [
            (output, cotangent, layout)
            for output, cotangent, layout in zip(made, cotangents, use.layouts, strict=True)
            if cotangent is not None and layout is not None and output.requires_grad
        ]
        R = next(g for g in cotangents if g is not None).shape[0]
        result = leaf.new_zeros(use.n, R, *leaf.shape)
        together = max(1, _MASKED_BLOCK // max(1, sum(g.numel() for _, g, _ in parts)))
        for start in range(0, use.n if parts else 0, together):
            some = range(start, min(start + together, use.n))
            masked = [torch.cat([_only(g, layout, i, use.n) for i in some]) for _, g, layout in parts]
            (rows,) = gradient_rows([output for output, _, _ in parts], [leaf], masked, use.operation.where)
            if rows is not None:
                result[start : some.stop] = rows.unflatten(0, (len(some), R))
        return result


def _only(stack: Tensor, samples: Samples, i: int, n: int) -> Tensor:
    """The stacked cotangents with every sample but one set to zero: (R, *output) -> (R, *output)."""
    result = torch.zeros_like(stack)
    axis, shape = samples.axis + 1, (samples.outer, n, samples.inner)
    source = stack.unflatten(axis, shape).select(axis + 1, i)
    result.unflatten(axis, shape).select(axis + 1, i).copy_(source)
    return result


_PRODUCTS = 1 << 20  # numbers: how many products are made before they are summed


class Elementwise(Contraction):
    """A tensor broadcast over the output and added, or multiplied by ``coefficient``.

    ``channel=True``: it runs along axis 1 of the output (a convolution's bias, a norm's weight), otherwise it is
    broadcast by the usual rule.
    """

    def __init__(self, coefficient: Callable[[Use], Tensor | float] | None = None, *, channel: bool = False):
        self.coefficient = coefficient
        self.channel = channel

    def gradient(self, use: Use, G: Tensor) -> Tensor:
        """Multiply, as many columns at a time as stay in the cache, and sum over what the tensor was broadcast over."""
        g = use.columns(G)
        factor: Tensor | float = 1.0 if self.coefficient is None else self.coefficient(use)
        if not isinstance(factor, Tensor):
            return self._summed(g if factor == 1 else g * factor, use)
        factor = laid_as(factor.unsqueeze(1), g)  # (n, 1, ...)
        together = max(1, _PRODUCTS * g.shape[1] // max(1, g.numel()))
        parts = [self._summed(part * factor, use) for part in g.split(together, 1)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _summed(self, g: Tensor, use: Use) -> Tensor:
        """(n, R, *output) -> (n, R, *shape)."""
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
        """None: not a weight between inputs and outputs."""
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

    def sizes(self, use: Use) -> Tensor | None:
        """Of all that has samples beside the weight."""
        others = (name for name, samples in use.samples.items() if samples is not None and name != use.argument)
        found = [squares_of_rows(use.per_sample(name)) for name in others]
        return torch.stack(found).sum(0) if found else None

    def gram(self, use: Use) -> Tensor:
        """U^T U: (n, g, J, L) -> (n, g, L, L)."""
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
        if L * L * R * C + self.gram_cost(use, J, L) < L * J * R * C:
            product = _gram_of_columns(g).mul_(self.gram(use))
            return widest(product.flatten(1).sum(1)).sum()
        return self.directly(use, g)

    def directly(self, use: Use, g: Tensor) -> Tensor:
        """||G U^T||^2, with G (n, R, g, C, L)."""
        rows = g.transpose(1, 2).flatten(2, 3)  # (n, g, R * C, L), copied if there are groups or the channels come last
        return square_sum(self.inputs(use) @ rows.mT)  # faster than rows @ inputs.mT

    def squares(self, use: Use, G: Tensor) -> Tensor:
        """As the trace, column by column."""
        g = self.cotangents(use, G)
        _, R, groups, C, L = g.shape
        J = prod(use.shape) // (groups * C)
        if L == 1:
            norms = torch.linalg.vector_norm(g, dim=(3, 4))  # (n, R, g)
            norms = norms * torch.linalg.vector_norm(self.inputs(use), dim=(2, 3)).unsqueeze(1)
            return widest(norms).square().sum(2)
        if L * L * R * C + self.gram_cost(use, J, L) < L * J * R * C:
            return widest(_grams_with(g, self.gram(use)).sum(2))
        rows = g.transpose(1, 2).flatten(2, 3)  # (n, g, R * C, L)
        products = (rows @ self.inputs(use).mT).unflatten(2, (R, C))  # (n, g, R, C, J)
        return squares_of_columns(products.transpose(1, 2))

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


_LARGE = 1 << 13
"""Numbers in one column of one sample: from here on a product for each column hides what it costs to call it."""


def _gram_of_columns(g: Tensor) -> Tensor:
    """G^T G, summed over columns: (n, R, g, C, L) -> (n, g, L, L). Nothing is copied, where channels come last."""
    if _channels_last(g):
        first, *others = g.squeeze(2).mT.unbind(1)  # (n, L, C) each
        total = first @ first.mT
        for rows in others:
            total.baddbmm_(rows, rows.mT)
        return total.unsqueeze(1)
    rows = g.transpose(1, 2).flatten(2, 3)  # (n, g, R * C, L), copied if there are groups
    return rows.mT @ rows


def _grams_with(g: Tensor, gram: Tensor) -> Tensor:
    """<gram, G^T G> of each sample, column and group: (n, R, g, C, L) and (n, g, L, L) -> (n, R, g)."""
    if _channels_last(g):
        columns = g.squeeze(2).mT.unbind(1)  # (n, L, C) each
        return torch.stack([(rows @ rows.mT).mul_(gram[:, 0]).sum((1, 2)) for rows in columns], 1).unsqueeze(2)
    return (g.mT @ g).mul_(gram.unsqueeze(1)).sum((3, 4))


def _channels_last(g: Tensor) -> bool:
    """Whether the channels lie side by side in memory, and each column is large."""
    _, _, groups, C, L = g.shape
    return groups == 1 and g.stride(3) == 1 < g.stride(4) and C * L >= _LARGE


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
