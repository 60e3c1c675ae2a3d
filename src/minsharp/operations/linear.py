"""Products of matrices: weights meet inputs."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..graph.records import Graph, Operation
from ..rules.apart import by_entry, by_parts, multiplied
from ..rules.channels import Rule, UnfitError, Walk
from ..rules.contraction import IN_ROWS, Elementwise, Outer, Use
from ..rules.frames import FrameWalk, Labels, along
from ..rules.narrowing import before_last, of_rows
from ..rules.pullback import Cotangents, Pull, by_autograd, stacked, unbroadcast
from ..rules.row import Row
from .product_frames import product_frames
from .products import factors, matrix_equation


class Matrix(Outer):
    """A matrix that multiplies the last axis of ``argument``: ``input @ weight.T``, or ``input @ weight``."""

    def __init__(self, other: str, *, transposed: bool = False):
        self.other = other
        self.transposed = transposed

    def fits(self, operation: Operation, argument: str, graph: Graph) -> bool:
        """Both are matrices, or the other one a stack of them."""
        ranks = {name: len(graph.values[value].shape) for name, value in operation.by_argument.items()}
        return ranks[argument] == 2 and ranks[self.other] >= 2

    def trace(self, use: Use, G: Tensor) -> Tensor:
        """One row per sample: ||g x^T||^2 = ||g||^2 ||x||^2."""
        x = use.bound[self.other]
        rows = x.dim() == 2 and use.samples[self.other] == IN_ROWS and use.bound.get("alpha", 1) == 1
        squares = use.squares(G) if rows else None
        if squares is None:
            return super().trace(use, G)
        return torch.dot(squares, use.row_squares(self.other))

    def cotangents(self, use: Use, G: Tensor) -> Tensor:
        """All axes between the samples and the last are positions: (R, n, *positions, C) -> (n, R, 1, C, L)."""
        return use.columns(G).flatten(2, -2).mT.unsqueeze(2)

    def inputs(self, use: Use) -> Tensor:
        """(n, *positions, J) -> (n, 1, J, L)."""
        return _times_alpha(use, use.per_sample(self.other)).flatten(1, -2).mT.unsqueeze(1)

    def restore(self, product: Tensor, use: Use) -> Tensor:
        """(..., 1, C, J) to (C, J), or to (J, C)."""
        matrix = product.squeeze(-3)
        return matrix.mT if self.transposed else matrix

    def matrices(self, operation: Operation, tensor: Tensor) -> Tensor | None:
        """(C, J), or (J, C), -> (1, C, J)."""
        return (tensor.mT if self.transposed else tensor).unsqueeze(0)


def _times_alpha(use: Use, x: Tensor) -> Tensor:
    """What addmm multiplies the product by."""
    alpha = use.bound.get("alpha", 1)
    return x if alpha == 1 else x * alpha


class MatrixFromLeft(Outer):
    """A matrix on the left: ``weight @ input``."""

    def __init__(self, other: str):
        self.other = other

    def fits(self, operation: Operation, argument: str, graph: Graph) -> bool:
        """Both are matrices, or the other one a stack of them."""
        ranks = {name: len(graph.values[value].shape) for name, value in operation.by_argument.items()}
        return ranks[argument] == 2 and ranks[self.other] >= 2

    def cotangents(self, use: Use, G: Tensor) -> Tensor:
        """All axes but the last but one are positions: (R, n, *stack, C, last) -> (n, R, 1, C, L)."""
        return use.columns(G).movedim(-2, 2).flatten(3).unsqueeze(2)

    def inputs(self, use: Use) -> Tensor:
        """(n, *stack, J, last) -> (n, 1, J, L)."""
        return _times_alpha(use, use.per_sample(self.other)).movedim(-2, 1).flatten(2).unsqueeze(1)

    def restore(self, product: Tensor, use: Use) -> Tensor:
        """(..., 1, C, J) to (C, J)."""
        return product.squeeze(-3)


def pull_linear(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Times the weight: (R, ..., C) -> (R, ..., J)."""
    weight = bound["weight"]
    if wanted != {"input"} or weight.dim() != 2:
        return by_autograd(operation, bound, wanted)
    return operation.call(bound), lambda G: {"input": stacked(lambda b: b @ weight, G)}


def pull_matmul(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """Product of two matrices, or of two stacks of matrices; addmm and baddbmm add a third, with factors."""
    first, second = next(pair for pair in _FACTORS if pair[0] in bound and pair[1] in bound)
    a, b = bound[first], bound[second]
    if a.dim() < 2 or b.dim() < 2:
        return by_autograd(operation, bound, wanted)
    added = "self" if first != "self" else None
    alpha, beta = bound.get("alpha", 1), bound.get("beta", 1)

    def pull(G: Tensor) -> Cotangents:
        result: Cotangents = {}
        if added in wanted:
            result["self"] = unbroadcast(G if beta == 1 else G * beta, bound["self"].shape)
        g = G if alpha == 1 else G * alpha
        if first in wanted:
            plain = b.dim() == 2
            result[first] = stacked(lambda rows: rows @ b.mT, g) if plain else unbroadcast(g @ b.mT, a.shape)
        if second in wanted:
            result[second] = unbroadcast(a.mT @ g, b.shape)
        return result

    return operation.call(bound), pull


_FACTORS = (("mat1", "mat2"), ("batch1", "batch2"), ("self", "mat2"), ("self", "other"))
"""What the two factors of a product are called."""


def matrix_scales(weight: str, other: str, bias: str | None = None, *, transposed: bool = False) -> Rule:
    """A weight that mixes the last axis: W_ij scales by out_i / in_j."""

    def rule(walk: Walk, operation: Operation) -> Tensor | Sequence[Tensor]:
        given = operation.by_argument
        shape = walk.graph.values[operation.outputs[0]].shape
        if walk.varies(given[weight]) or walk.rank(given[weight]) != 2 or walk.rank(given[other]) < 2:
            raise UnfitError
        scale = walk.scale_of(given[other])
        into = walk.tie(scale, range(scale.dim() - 1), operation).flatten()
        out = walk.forms.fresh(shape[-1])
        plus, minus = (out, into.unsqueeze(1)) if transposed else (out.unsqueeze(1), into)
        walk.assign_scale(given[weight], plus, minus, operation)
        if bias is not None and bias in given:
            walk.assign_scale(given[bias], out, walk.one, operation)
        return out.expand(shape)

    return rule


def matmul_scales(walk: Walk, operation: Operation) -> Tensor | Sequence[Tensor]:
    """matmul: a weight on the right, on the left, or none."""
    given = operation.by_argument
    first, second = ("self", "other") if "other" in given else ("self", "mat2")
    if not walk.varies(given[second]):
        return matrix_scales(second, first, transposed=True)(walk, operation)
    if walk.varies(given[first]) or walk.rank(given[first]) != 2 or walk.rank(given[second]) < 2:
        raise UnfitError
    scale = walk.scale_of(given[second])
    others = [d for d in range(scale.dim()) if d != scale.dim() - 2]
    into = walk.tie(scale, others, operation).flatten()
    shape = walk.graph.values[operation.outputs[0]].shape
    out = walk.forms.fresh(shape[-2])
    walk.assign_scale(given[first], out.unsqueeze(1), into, operation)
    return out.unsqueeze(1).expand(shape)


def linear_frames(walk: FrameWalk, operation: Operation) -> Labels:
    """A matrix acts on the rows of the weight and on the bias, the inverse of another on the columns."""
    given, shape = operation.by_argument, walk.graph.values[operation.outputs[0]].shape
    weight = walk.entries_of(given["weight"])  # (o, i)
    bias = walk.entries_of(given["bias"]) if "bias" in given else None
    if weight is None or weight.dim() != 2:
        raise UnfitError
    walk.consumed(walk.labels_of(given["input"]), weight.mT, operation)
    if "bias" in given and bias is None:  # used elsewhere too, or a constant
        return walk.labels_of(operation.outputs[0])
    return walk.produced(shape, -1, [weight, *([bias.unsqueeze(1)] if bias is not None else [])])


def matmul_frames(walk: FrameWalk, operation: Operation) -> Labels:
    """A weight, or a stack of them, on the right or on the left; or two stacks, of which vectors meet in inner products
    or are added up."""
    given = operation.by_argument
    names = given["self"], given["other" if "other" in given else "mat2"]
    a, b = (len(walk.graph.values[name].shape) for name in names)
    return product_frames(walk, names, matrix_equation(a, b), operation)


def met(walk: FrameWalk, a: Labels, b: Labels, shape: Sequence[int], operation: Operation) -> Labels:
    """Stacks of matrices (..., L, K) and (..., K, S): what is framed along K meets, what is framed across passes on."""
    plain = walk.labels_of(operation.outputs[0])
    if a.framed and b.framed:
        walk.paired(a, b.movedim(-2, -1), operation)
        return plain
    if not a.framed and not b.framed:
        return plain
    passing, axis = (b, -2) if b.framed else (a, -1)  # added up along K, with the plain one's entries as weights
    atoms, fibers = along(walk, passing, [axis]).expand(shape)
    other = torch.arange(torch.Size(shape).numel()).view(shape)  # whatever differs in the plain one makes other vectors
    place = other.amin(axis + 1 if axis == -2 else -2, keepdim=True).expand(shape)
    return Labels(atoms, walk.joined(fibers, place))


def addmm_frames(walk: FrameWalk, operation: Operation) -> Labels:
    """A bias and a weight on the right: b + x @ W."""
    given, shape = operation.by_argument, walk.graph.values[operation.outputs[0]].shape
    weight, bias = walk.entries_of(given["mat2"]), walk.entries_of(given["self"])
    if weight is None or weight.dim() != 2 or bias is None or tuple(bias.shape) != (shape[1],):
        raise UnfitError
    walk.consumed(walk.labels_of(given["mat1"]), weight, operation)
    return walk.produced(shape, -1, [weight.mT, bias.unsqueeze(1)])


def baddbmm_frames(walk: FrameWalk, operation: Operation) -> Labels:
    """Scores with something added: vectors meet in inner products, and what is added is in no frame."""
    given = operation.by_argument
    a, b = (walk.labels_of(given[name]) for name in ("batch1", "batch2"))
    if walk.labels_of(given["self"]).framed or not (a.framed and b.framed):
        raise UnfitError
    walk.paired(a, b.movedim(-2, -1), operation)
    return walk.labels_of(operation.outputs[0])


_ADDED = Elementwise(lambda use: float(use.bound.get("beta", 1)))

ROWS: dict[str, Row] = {
    "linear": Row(
        "input*weight + bias",
        pull_linear,
        {"weight": Matrix("input"), "bias": Elementwise()},
        matrix_scales("weight", "input", "bias"),
        frames=linear_frames,
        narrows=before_last("input"),
        apart=by_parts(before_last("input")),
    ),
    "matmul": Row(
        "self*other",
        pull_matmul,
        factors("self", "other"),
        matmul_scales,
        frames=matmul_frames,
        narrows=of_rows("self"),
        apart=multiplied("self", "other"),
    ),
    "mm": Row(
        "self*mat2",
        pull_matmul,
        {"mat2": Matrix("self", transposed=True), "self": MatrixFromLeft("mat2")},
        matmul_scales,
        frames=matmul_frames,
    ),
    "baddbmm": Row(
        "self + batch1*batch2",
        pull_matmul,
        {"self": _ADDED, **factors("batch1", "batch2")},
        frames=baddbmm_frames,
    ),
    "bilinear": Row("input1*input2*weight + bias"),
    "tensordot": Row("self*other"),
    "mv": Row("self*vec"),
    "addcmul": Row("self + tensor1*tensor2", apart=by_entry),
    "bmm": Row(
        "self*mat2",
        pull_matmul,
        factors("self", "mat2"),
        frames=matmul_frames,
        narrows=of_rows("self"),
        apart=multiplied("self", "mat2"),
    ),
    "addmm": Row(
        "self + mat1*mat2",
        pull_matmul,
        {"self": _ADDED, "mat2": Matrix("mat1", transposed=True), "mat1": MatrixFromLeft("mat2")},
        frames=addmm_frames,
    ),
}
