"""The graph as the engine runs it: the same numbers and derivatives, in less work."""

from collections.abc import Iterable

from ..graph.records import Graph
from .narrowed import narrowed
from .pooled_convolution import pool_before_relu, pool_by_place
from .table import dependence
from .unbound import unbound


def rewritten(graph: Graph, parameters: Iterable[str]) -> Graph:
    """For measuring some of the parameters."""
    parts = unbound(narrowed(graph, dependence(graph, parameters := tuple(parameters))))
    return pool_by_place(pool_before_relu(parts), dependence(parts, parameters))
