"""How scales pass through an operation, entry by entry: the rules behind ``scope="neuron"``.

A rule sees the scales of an operation's arguments as tensors of forms, shaped like one sample, and returns those of
the result. What it ties together it ties on the walk; a parameter takes the scale that makes up the difference.
Operations without a rule, and calls that a rule was not made for (it raises `UnfitError`), have all entries of each
tensor tied, as in ``scope="layer"``: a smaller group, no wrong one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ..graph.forms import ANY, Forms
from ..graph.records import Graph, Operation
from ..graph.slots import Slot


class Walk(Protocol):
    """What a rule may ask of the walk that collects scales and equations."""

    graph: Graph
    forms: Forms
    one: Tensor

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a value's scales."""

    def rank(self, name: str) -> int:
        """The number of axes of a value."""

    def varies(self, name: str) -> bool:
        """Whether a value differs between samples."""

    def scales_as_values(self, operation: Operation) -> dict[str, Any]:
        """Forms in place of tensors, numbers as they are."""

    def scale_of(self, name: str) -> Tensor:
        """The scales of a value, shaped like one sample of it."""

    def assign_scale(self, leaf: str, plus: Tensor, minus: Tensor, operation: Operation) -> None:
        """Let a leaf take the scale plus - minus."""

    def tie(self, scale: Tensor, dims: Iterable[int], operation: Operation) -> Tensor:
        """Make the scales along some axes equal; the axes stay, with size one."""

    def fix(self, scale: Tensor, operation: Operation) -> None:
        """Let what has these scales keep its size: log-scales of zero."""

    def by_formula(self, operation: Operation, scales: Mapping[Slot, Tensor]) -> Tensor:
        """The scale of the result by the operation's formula."""


Rule = Callable[[Walk, Operation], Tensor | Sequence[Tensor]]


class UnfitError(Exception):
    """A call of a kind that a rule was not made for."""


def entrywise(walk: Walk, operation: Operation) -> Tensor:
    """The operation's formula, at each entry by itself, with broadcasting."""
    reads = [(slot, name) for slot, name in operation.reads if name in walk.graph.values]
    return walk.by_formula(operation, {slot: walk.scale_of(name) for slot, name in reads})


def moved(walk: Walk, operation: Operation) -> Tensor | Sequence[Tensor]:
    """The result holds entries of the arguments: let the operation itself move the forms."""
    bound = operation.bind(
        {k: v.contiguous() if isinstance(v, Tensor) else v for k, v in walk.scales_as_values(operation).items()}
    )
    return called(operation, bound)


def called(operation: Operation, bound: dict[str, Any]) -> Tensor | Sequence[Tensor]:
    """Run an operation that moves entries on forms; unfit where it does not run on them."""
    try:
        result: Tensor | Sequence[Tensor] = operation.call(bound)
    except Exception as error:  # whatever torch has against whole numbers, or one sample
        raise UnfitError from error
    return result


def along_last(walk: Walk, operation: Operation, axes: int) -> Tensor | Sequence[Tensor]:
    """Whatever leads, samples and channels or channels alone, stays apart."""
    given = operation.by_argument
    scale = walk.scale_of(given["self"] if "self" in given else given["input"])
    shape = walk.graph.values[operation.outputs[0]].shape
    if scale.dim() < axes or scale.shape[: scale.dim() - axes] != shape[: scale.dim() - axes]:
        raise UnfitError
    result = walk.tie(scale, range(-axes, 0), operation).expand(shape)
    return [result] * len(operation.outputs) if operation.many else result


def reduced(walk: Walk, operation: Operation) -> Tensor | Sequence[Tensor]:
    """Entries along some axes come together: they have to agree."""
    scale = walk.scale_of(operation.by_argument["self"])
    dim = operation.arguments.get("dim")
    shape = walk.graph.values[operation.outputs[0]].shape
    dims = list(range(scale.dim())) if dim is None or dim == () else [dim] if isinstance(dim, int) else list(dim)
    scale = walk.tie(scale, dims, operation)
    if len(shape) < scale.dim():
        for d in sorted((d % scale.dim() for d in dims), reverse=True):
            scale = scale.squeeze(d)
    scale = scale.expand(shape)
    return [scale] * len(operation.outputs) if operation.many else scale


def zeros(walk: Walk, operation: Operation) -> Tensor:
    """Zeros keep any scale: ANY, shaped like the result."""
    return torch.full((), ANY).expand(walk.graph.values[operation.outputs[0]].shape)
