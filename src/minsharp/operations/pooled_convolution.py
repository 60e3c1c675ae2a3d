"""A convolution before a max pool as the engine runs it: its positions sorted by their place in the pool's windows."""

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..graph.records import Graph, Operation, Ref, Samples, Value
from ..rules.contraction import Elementwise, Use
from ..rules.pullback import Pull
from ..rules.row import Row
from .convolution import Convolution
from .elementwise import pull_sum
from .windows import Geometry

MOST_PLACES = 16
"""In a window: each costs a convolution of its own, and from about 30 on that is slower than a scatter."""


def pool_before_relu(graph: Graph) -> Graph:
    """Let max pools run before the ReLU that they follow: the same numbers and gradients, on a smaller tensor."""
    values, operations = dict(graph.values), list(graph.operations)
    for relu, pool in _pairs(graph, "relu", "max_pool2d"):
        between, pooled = relu.outputs[0], pool.outputs[0]
        values[between] = replace(values[pooled], name=between)
        first = replace(pool, arguments={**pool.arguments, "self": relu.arguments["self"]}, outputs=(between,))
        then = replace(relu, arguments={"self": Ref(between)}, outputs=(pooled,))
        operations[operations.index(relu)] = first
        operations[operations.index(pool)] = then
    return replace(graph, values=values, operations=tuple(operations))


def pool_by_place(graph: Graph, depends: Container[str]) -> Graph:
    """Sort the positions of a convolution by their place in the windows of the max pool that reads it.

    For windows side by side over a convolution through which nothing has to be pulled back, such as the first of a
    network. The maximum over places is then one of whole images, its cotangents are products with masks instead of a
    scatter, and the weight, a sum over positions, does not mind their order. The bias is added after the maximum.
    """
    values, operations = dict(graph.values), list(graph.operations)
    for dimensions in (1, 2, 3):
        for conv, pool in _pairs(graph, f"conv{dimensions}d", f"max_pool{dimensions}d"):
            if not _side_by_side(pool, dimensions) or not _first(conv, graph, depends):
                continue
            made = _by_place(conv, pool, graph)
            values |= {value.name: value for value, _ in made}
            operations.remove(conv)
            at = operations.index(pool)
            operations[at : at + 1] = [operation for _, operation in made]
    return replace(graph, values=values, operations=tuple(operations))


def _pairs(graph: Graph, first: str, then: str) -> list[tuple[Operation, Operation]]:
    """Operations of the first name whose result goes into one of the second name and nowhere else."""
    users = Counter([graph.output, *(name for op in graph.operations for _, name in op.reads)])
    makers = {op.outputs[0]: op for op in graph.operations if op.name == first and users[op.outputs[0]] == 1}
    pools = [op for op in graph.operations if op.name == then and op.arguments["self"].name in makers]
    return [(makers[pool.arguments["self"].name], pool) for pool in pools]


def _side_by_side(pool: Operation, dimensions: int) -> bool:
    """Whether the windows of a pool are small, touch without overlap, and none sticks out."""
    kernel, given = pool.arguments["kernel_size"], pool.arguments
    plain = set(given["padding"]) == {0} and set(given["dilation"]) == {1} and not given["ceil_mode"]
    small = len(kernel) == dimensions and prod(kernel) <= MOST_PLACES
    return plain and small and given["stride"] in ((), kernel)


def _first(conv: Operation, graph: Graph, depends: Container[str]) -> bool:
    """Whether a convolution reads plain batches in which no measured parameter has had a part."""
    if any(name not in graph.values for _, name in conv.reads):  # a size
        return False
    given = {argument: graph.values[name] for argument, name in conv.by_argument.items()}
    x = given.pop("input")
    batches = x.samples == Samples(0) and len(x.shape) == len(given["weight"].shape)
    fixed = all(value.samples is None for value in given.values())
    return batches and fixed and x.name not in depends and x.dtype.itemsize >= 4  # half precision would round twice


def _by_place(conv: Operation, pool: Operation, graph: Graph) -> list[tuple[Value, Operation]]:
    """The convolution, the maximum over places and, if there is one, the bias; each with what it makes."""
    pooled = graph.values[pool.outputs[0]]
    window, bias = pool.arguments["kernel_size"], conv.arguments["bias"]
    placed = replace(pooled, name=conv.outputs[0], shape=(*pooled.shape[:2], prod(window), *pooled.shape[2:]))
    top = pooled if bias is None else replace(pooled, name=f"{pooled.name}#top")

    def step(target: Callable[..., Tensor], arguments: Mapping[str, Any], made: Value) -> tuple[Value, Operation]:
        outputs, keywords = (made.name,), frozenset[str]()
        name = target.__name__
        return made, replace(conv, name=name, target=target, arguments=arguments, outputs=outputs, keywords=keywords)

    arguments = {name: given for name, given in conv.arguments.items() if name != "bias"}
    steps = [
        step(conv_by_place, {**arguments, "window": window}, placed),
        step(max_over_places, {"self": Ref(placed.name)}, top),
    ]
    return steps if bias is None else [*steps, step(add_to_channels, {"self": Ref(top.name), "other": bias}, pooled)]


def conv_by_place(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    groups: int,
    window: Sequence[int],
) -> Tensor:
    """A convolution without bias, (n, C, places in a window, *windows)."""
    given = {"weight": weight, "stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    geometry, parts = Geometry.of(given).by_place(window, x)
    rank = len(geometry.kernel)
    options = (geometry.stride, (0,) * rank, geometry.dilation, False, (0,) * rank, groups)
    return torch.stack([torch.convolution(part, weight, None, *options) for part in parts], dim=2)


def max_over_places(x: Tensor) -> Tensor:
    """The largest in each window."""
    return x.amax(2)


def add_to_channels(x: Tensor, bias: Tensor) -> Tensor:
    """(n, C, *space) + (C) -> (n, C, *space)."""
    return x + bias.view(-1, *[1] * (x.dim() - 2))


class ConvolutionByPlace(Convolution):
    """A convolution whose positions are sorted by their place in the windows of a pool: see `rewrite`."""

    def inputs(self, use: Use) -> Tensor:
        """The windows, in that order."""
        return Geometry.of(use.bound).windows_by_place(use.bound["window"], use.bound["input"])

    def _as_convolution(self, use: Use) -> bool:
        """Their order is not that of any convolution."""
        return False

    def _through_pixels(self, use: Use) -> bool:
        """Their order is not that of the pixels."""
        return False


def _pull_max(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    """The largest along axis 2; back to the first that is as large, as a max pool does."""
    x = bound["self"]
    out = operation.call(bound)
    first = x.clone().eq_(out.unsqueeze(2))  # in numbers: faster than in booleans
    free = 1 - first[:, :, 0]
    for place in first.unbind(2)[1:]:
        free -= place.mul_(free)
    return out, lambda G: {"self": G.unsqueeze(3) * first}


ROWS: dict[str, Row] = {
    "conv_by_place": Row("input*weight", contract={"weight": ConvolutionByPlace()}),
    "max_over_places": Row("self", _pull_max),
    "add_to_channels": Row("self + other", pull_sum, {"other": Elementwise(channel=True)}),
}
