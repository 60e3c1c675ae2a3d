"""How stacked cotangents pass backwards through one operation.

A pullback runs the operation forward and returns the output together with a function that maps cotangents of the
output, (R, *output shape), to cotangents of the wanted arguments, (R, *argument shape): all R columns at once.
Operations without a rule of their own go through `by_autograd`.

In memory a stack of cotangents lies sample by sample, (n, R, ...), and only looks like (R, n, ...): so columns and
samples merge into one large batch, and the contraction of one sample reads one block, both without a copy.

Cotangents are never kept in half precision, in which they would vanish or overflow: a network in half precision runs
forward as it is, and its derivatives are those of the same operations on the same numbers in float32 (`widened`).
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import ReadError
from ..graph.records import Operation

Cotangents = dict[str, Any]
"""By argument name: a tensor, or a list of them where the argument is a list."""

Pull = Callable[[Any], Cotangents]

Pullback = Callable[[Operation, Mapping[str, Any], frozenset[str]], tuple[Any, Pull]]


HALVES = (torch.float16, torch.bfloat16)


def wide(tensor: Tensor) -> Tensor:
    """Half precision holds neither squares nor cotangents: in float32."""
    return tensor.float() if tensor.dtype in HALVES else tensor


def widened(bound: Mapping[str, Any]) -> Mapping[str, Any]:
    """An operation's arguments with float32 for every half precision; the same object where there is none."""
    made = {name: _wider(given) for name, given in bound.items()}
    return made if any(made[name] is not given for name, given in bound.items()) else bound


def _wider(given: Any) -> Any:
    if isinstance(given, Tensor):
        return wide(given)
    if isinstance(given, torch.dtype):
        return torch.float32 if given in HALVES else given
    if isinstance(given, list):
        items = [_wider(item) for item in given]
        return items if any(a is not b for a, b in zip(items, given, strict=True)) else given
    return given


def stacked(function: Callable[[Tensor], Tensor], G: Tensor) -> Tensor:
    """Apply a function of a batch to (R, N, ...), with columns and rows merged into one batch."""
    if G.stride(0) > G.stride(1):
        return _merged(function, G)
    return _merged(function, G.transpose(0, 1)).transpose(0, 1)


def _merged(function: Callable[[Tensor], Tensor], G: Tensor) -> Tensor:
    made = function(G.flatten(0, 1))
    return made.view(*G.shape[:2], *made.shape[1:])


def laid_as(x: Tensor, G: Tensor) -> Tensor:
    """Images with their channels last in memory where stacked cotangents have them there: both are read in order."""
    last = min(x.dim(), G.dim()) >= 4 and G.stride(-3) == 1 < G.stride(-1)
    return x.movedim(-3, -1).contiguous().movedim(-1, -3) if last else x


def unbroadcast(G: Tensor, shape: torch.Size) -> Tensor:
    """Sum stacked cotangents over the axes along which an argument of this shape was broadcast."""
    extra = G.dim() - 1 - len(shape)
    axes = [d + 1 for d in range(extra)]
    axes += [1 + extra + d for d, size in enumerate(shape) if size == 1 and G.shape[1 + extra + d] != 1]
    return (G.sum(axes, keepdim=True) if axes else G).reshape(G.shape[0], *shape)


@contextmanager
def differentiating(what: str) -> Iterator[None]:
    """Name what torch cannot differentiate."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        cause = next(iter(str(error).splitlines()), "no message")
        raise ReadError(f"torch cannot differentiate {what}: {cause}") from error


def by_autograd(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Any, Pull]:
    """Any operation at all: autograd through this one operation, all columns at once where its derivative allows."""
    bound = dict(bound)
    for name in wanted:
        given = bound[name]
        bound[name] = [_leaf(item) for item in given] if isinstance(given, list) else _leaf(given)
    with torch.enable_grad():
        made = operation.call(bound)
    outputs = tuple(made) if operation.many else (made,)
    leaves = [
        item
        for name in wanted
        for item in (bound[name] if isinstance(bound[name], list) else [bound[name]])
        if isinstance(item, Tensor) and item.requires_grad
    ]

    def pull(G: Any) -> Cotangents:
        pairs = [
            (output, g)
            for output, g in zip(outputs, G if operation.many else (G,), strict=True)
            if g is not None and isinstance(output, Tensor) and output.requires_grad
        ]
        if not pairs:
            return {}
        outs, cotangents = zip(*pairs, strict=True)
        rows = gradient_rows(outs, leaves, cotangents, operation.where)
        found = {id(leaf): row for leaf, row in zip(leaves, rows, strict=True)}
        return {
            name: [found.get(id(item)) for item in bound[name]]
            if isinstance(bound[name], list)
            else found[id(bound[name])]
            for name in wanted
        }

    detached = tuple(o.detach() if isinstance(o, Tensor) else o for o in outputs)
    return (detached if operation.many else detached[0]), pull


def gradient_rows(
    outputs: Sequence[Tensor], leaves: Sequence[Tensor], cotangents: Sequence[Tensor], what: str
) -> list[Tensor | None]:
    """By autograd, from cotangents (R, *output) to (R, *leaf) for each leaf, or None where none comes back.

    All rows at once. A derivative that torch cannot batch, such as one that looks at numbers to decide what to do, or
    that throws dice, says so by an error, and gets one row after the other.
    """
    cotangents = [g.to(output.dtype) for output, g in zip(outputs, cotangents, strict=True)]
    try:
        return _rows_at_once(outputs, leaves, cotangents)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a derivative in somebody's Python raises; if it is at fault, it will raise it again
        with differentiating(what):
            return _row_by_row(outputs, leaves, cotangents)


def _rows_at_once(
    outputs: Sequence[Tensor], leaves: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a loop inside torch stands in for a missing rule
        options = {"retain_graph": True, "allow_unused": True, "is_grads_batched": True}
        return list(torch.autograd.grad(outputs, leaves, cotangents, **options))


def _row_by_row(
    outputs: Sequence[Tensor], leaves: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> list[Tensor | None]:
    rows = [
        torch.autograd.grad(outputs, leaves, [g[k] for g in cotangents], retain_graph=True, allow_unused=True)
        for k in range(len(cotangents[0]))
    ]
    return [None if parts[0] is None else torch.stack(parts) for parts in zip(*rows, strict=True)]


def _leaf(item: Any) -> Any:
    floating = isinstance(item, Tensor) and item.dtype.is_floating_point
    return item.detach().requires_grad_() if floating else item


def by_derivative(derivative: Callable[[Mapping[str, Any], Tensor], Tensor | float]) -> Pullback:
    """A function of each entry, with its derivative given arguments and output."""

    def rule(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
        (name,) = wanted
        out = operation.call(bound)
        slope = derivative(bound, out)
        return out, lambda G: {name: G * slope}

    return rule


def by_slope(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """A function of each entry by itself: its slope, by one backward pass, times the cotangents."""
    if wanted != {"self"}:
        return by_autograd(operation, bound, wanted)
    x = bound["self"].detach().requires_grad_()
    with torch.enable_grad():
        y = operation.call({**bound, "self": x})
    if y.shape != x.shape:  # broadcast: an entry goes to several places
        return by_autograd(operation, bound, wanted)
    (slope,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return y.detach(), lambda G: {"self": G * slope}
