"""Products of two tensors that an equation describes, ``nhai,hio->nhao``: einsum, and matrices in stacks.

Between a weight, what it multiplies and the result, a letter can be four things: it is in all three (a group), only in
weight and result (an output), only in weight and other factor (an input), or only in other factor and result (a
position, as the samples are). So every such weight is one of `Outer`.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from string import ascii_letters
from typing import Any, overload

import torch
from torch import Tensor

from ..graph.records import Graph, Operation, Samples
from ..rules.contraction import Contraction, Outer, Use
from ..rules.pullback import Cotangents, Pull, by_autograd, wide

Shapes = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Equation:
    """The letters of each factor and of the result."""

    factors: tuple[str, ...]
    result: str

    @staticmethod
    def of(text: str, ranks: Sequence[int]) -> "Equation":
        """Read from einsum's notation, with letters in place of dots, for factors with so many axes."""
        left, arrow, right = text.replace(" ", "").partition("->")
        parts = left.split(",")
        free = [letter for letter in ascii_letters if letter not in text]
        hidden = [rank - len(part.replace("...", "")) for part, rank in zip(parts, ranks, strict=True)]
        dots = "".join(free[: max(hidden, default=0)])
        named = "".join(parts).replace(".", "")
        if not arrow:
            right = "..." + "".join(sorted(letter for letter in set(named) if named.count(letter) == 1))
        factors = (part.replace("...", dots[len(dots) - h :]) for part, h in zip(parts, hidden, strict=True))
        return Equation(tuple(factors), right.replace("...", dots))

    def plain(self, shapes: Shapes) -> bool:
        """Whether no factor has a letter twice or to itself, and each letter has one size: nothing is broadcast."""
        sizes: dict[str, int] = {}
        for i, (letters, shape) in enumerate(zip(self.factors, shapes, strict=True)):
            elsewhere = self.result + "".join(self.factors[:i] + self.factors[i + 1 :])
            if len(set(letters)) < len(letters) or len(letters) != len(shape) or not set(letters) <= set(elsewhere):
                return False
            if any(sizes.setdefault(letter, size) != size for letter, size in zip(letters, shape, strict=True)):
                return False
        return True

    def back(self, i: int) -> str:
        """The equation for the cotangents of a factor, with the columns in front: first those of the result."""
        column = next(letter for letter in ascii_letters if letter not in "".join(self.factors) + self.result)
        others = [*self.factors[:i], *self.factors[i + 1 :]]
        return ",".join([column + self.result, *others]) + f"->{column}{self.factors[i]}"


class OnDemand(Sequence[Tensor | None]):
    """Cotangents of the tensors in a list, each worked out when it is asked for: weights among them never are."""

    def __init__(self, length: int, work: Callable[[int], Tensor | None]):
        self._length, self._work = length, work

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Tensor | None: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor | None]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._work(index % self._length)


def pull_einsum(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """The cotangents in the place of a factor, and the factor in that of the result."""
    tensors = bound["tensors"]
    equation = Equation.of(bound["equation"], [t.dim() for t in tensors])
    if not equation.plain([t.shape for t in tensors]):
        return by_autograd(operation, bound, wanted)

    def pull(G: Tensor) -> Cotangents:
        def one(i: int) -> Tensor:
            return torch.einsum(equation.back(i), G, *tensors[:i], *tensors[i + 1 :])

        return {"tensors": OnDemand(len(tensors), one)}

    return operation.call(bound), pull


class Factor(Outer):
    """A weight that is one of the two factors of an equation."""

    @abstractmethod
    def read(self, operation: Operation, names: Sequence[str], ranks: Mapping[str, int]) -> Equation:
        """The equation of a call whose two factors have these names and numbers of axes."""

    @abstractmethod
    def factors(self, operation: Operation) -> Sequence[str]:
        """The names of the factors, in order."""

    def fits(self, operation: Operation, argument: str, graph: Graph) -> bool:
        """Two plain factors, only one of them with samples."""
        names = self.factors(operation)
        if len(names) != 2 or any(name not in graph.values for name in names):
            return False
        shapes = {name: graph.values[name].shape for name in names}
        equation = self.read(operation, names, {name: len(shape) for name, shape in shapes.items()})
        samples = graph.values[operation.outputs[0]].samples
        varying = [graph.values[name].samples is not None for name in names]
        if samples is None or sum(varying) != 1 or not equation.plain([shapes[name] for name in names]):
            return False
        return equation.result[samples.axis] not in equation.factors[varying.index(False)]

    def _letters(self, use: Use) -> tuple[str, str, str]:
        """Of the weight, the other factor and the result."""
        names = self.factors(use.operation)
        equation = self.read(use.operation, names, {name: use.values[name].dim() for name in names})
        weight = names.index(use.leaf)
        return equation.factors[weight], equation.factors[1 - weight], equation.result

    def _sorted(self, use: Use) -> tuple[str, str, str, str]:
        """Letters of groups, outputs, inputs and positions."""
        weight, other, result = self._letters(use)
        groups = "".join(c for c in weight if c in other and c in result)
        outputs = "".join(c for c in weight if c not in other)
        inputs = "".join(c for c in weight if c not in result)
        return groups, outputs, inputs, "".join(c for c in result if c not in weight)

    def cotangents(self, use: Use, G: Tensor) -> Tensor:
        """The axes of the result in the order groups, outputs, positions: (n, R, g, C, L)."""
        result = self._letters(use)[2]
        groups, outputs, _, positions = self._sorted(use)
        return _gathered(use.columns(G), result, (groups, outputs, positions), 2)

    def inputs(self, use: Use) -> Tensor:
        """The axes of the other factor in the order groups, inputs, positions: (n, g, J, L)."""
        _, other, result = self._letters(use)
        groups, _, inputs, positions = self._sorted(use)
        layout = use.layouts[0]
        assert layout is not None
        samples = Samples(other.index(result[layout.axis]), layout.outer, layout.inner)
        names = self.factors(use.operation)
        x = samples.split(wide(use.values[names[1 - names.index(use.leaf)]]), use.n)
        return _gathered(x, other, (groups, inputs, positions), 1)

    def restore(self, product: Tensor, use: Use) -> Tensor:
        """(..., g, C, J) to the axes of the weight in their order."""
        weight = self._letters(use)[0]
        groups, outputs, inputs, _ = self._sorted(use)
        sizes = dict(zip(weight, use.shape, strict=True))
        order = groups + outputs + inputs
        front = product.dim() - 3
        apart = product.reshape(*product.shape[:front], *(sizes[letter] for letter in order))
        return apart.permute(*range(front), *(front + order.index(letter) for letter in weight))


def _gathered(tensor: Tensor, letters: str, groups: Sequence[str], front: int) -> Tensor:
    """Axes put together group by group, after some in front: (*front, axes of each letter) -> (*front, *groups)."""
    order = [front + letters.index(letter) for group in groups for letter in group]
    sizes = [[tensor.shape[front + letters.index(letter)] for letter in group] for group in groups]
    moved = tensor.permute(*range(front), *order)
    return moved.reshape(*tensor.shape[:front], *(prod(group) for group in sizes))


class EinsumFactor(Factor):
    """A weight in ``einsum``."""

    def factors(self, operation: Operation) -> Sequence[str]:
        """The list of tensors."""
        return [tensor.name for tensor in operation.arguments["tensors"]]

    def read(self, operation: Operation, names: Sequence[str], ranks: Mapping[str, int]) -> Equation:
        """As it is written."""
        return Equation.of(operation.arguments["equation"], [ranks[name] for name in names])


class StackFactor(Factor):
    """A weight in ``matmul`` and its like, alone or in a stack; ``alpha`` of ``baddbmm`` multiplies it."""

    def __init__(self, first: str, second: str, *, right: bool):
        self.first, self.second, self.right = first, second, right

    def factors(self, operation: Operation) -> Sequence[str]:
        """The two that are multiplied."""
        return [operation.arguments[self.first].name, operation.arguments[self.second].name]

    def read(self, operation: Operation, names: Sequence[str], ranks: Mapping[str, int]) -> Equation:
        """That of a product of matrices."""
        a, b = (ranks[name] for name in names)
        return matrix_equation(a, b)

    def inputs(self, use: Use) -> Tensor:
        """Times alpha, where there is one."""
        alpha = use.bound.get("alpha", 1)
        return super().inputs(use) * alpha if alpha != 1 else super().inputs(use)

    def matrices(self, operation: Operation, tensor: Tensor) -> Tensor | None:
        """(*stack, C, J), or (*stack, J, C) on the right, -> (groups, C, J); None for a vector."""
        if tensor.dim() < 2:
            return None
        stack = tensor.mT if self.right else tensor
        return stack.reshape(-1, *stack.shape[-2:])


def matrix_equation(a: int, b: int) -> Equation:
    """``...ij,...jk->...ik``, for so many axes; vectors lack the one that a matrix of one row or column would have."""
    first, second = "ij" if a > 1 else "j", "jk" if b > 1 else "j"
    kept = first.replace("j", "") + second.replace("j", "")
    return Equation.of(f"...{first},...{second}->...{kept}", [a, b])


def factors(first: str, second: str) -> dict[str, Contraction]:
    """The contractions of both factors of a product of matrices."""
    return {first: StackFactor(first, second, right=False), second: StackFactor(first, second, right=True)}
