"""Which rescalings of the parameters keep the function: log-scale equations, and the group that solves them.

Give every tensor of the network a log-scale. Each operation is a linear equation in them, read off its formula
(scope "layer": one scale per tensor) or off its rule for channels (scope "neuron": one per entry, tied where the
network ties them). Inputs, buffers, constants and outputs have scale zero. The solutions, restricted to the parameters,
are the rescalings that change nothing. An operation that is not known can only make the group smaller.
"""

from collections.abc import Iterable
from functools import lru_cache
from weakref import WeakKeyDictionary

from torch import nn

from ..errors import InputError
from ..graph.records import Graph, Operation
from ..operations import TABLE
from ..subject.inputs import Inputs
from ..subject.modes import plain_mode
from .frames_group import FullSymmetries as FullSymmetries
from .frames_group import Transformation as Transformation
from .frames_group import full_group, tried_full_group
from .network import Network, state_of
from .reader import read
from .rescalings import Scales as Scales
from .rescalings import Symmetries as Symmetries
from .rescalings import solved
from .trial import State, Trial
from .walk import Scope as Scope
from .walk import Walk


@plain_mode()
def symmetries(
    model: nn.Module | Network,
    example: Inputs,
    scope: Scope = "layer",
    *,
    fixed: Iterable[str] | None = None,
) -> Symmetries:
    """The rescalings of a network's parameters that keep its function.

    ``scope="layer"``: one factor per parameter tensor. ``scope="neuron"``: one per channel. ``scope="full"``: one per
    parameter tensor, and in every frame an invertible matrix: between the queries and keys of a head, its values and
    outputs, two linear maps in a row; the result is a `FullSymmetries`. Parameters named in ``fixed`` stay as they are;
    without it, those that do not require a gradient.

    A chain of D layers has D - 1 free factors; per neuron, one for each hidden neuron:

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> symmetries(model, torch.zeros(1, 3)).dimension
    2
    >>> symmetries(model, torch.zeros(1, 3), scope="neuron").dimension
    13

    Between two linear maps in a row stands any invertible matrix:

    >>> model = nn.Sequential(nn.Linear(3, 8, bias=False), nn.Linear(8, 2))
    >>> symmetries(model, torch.zeros(1, 3), scope="full").dimension
    64
    """
    network = read(model, example)
    if fixed is None:
        fixed = [name for name, parameter in network.parameters.items() if not parameter.requires_grad]
    return tried_group(network.graph, network.module, scope, fixed)


def group(graph: Graph, scope: Scope, fixed: Iterable[str] = ()) -> Symmetries:
    """The group of a network that has been read, by the rules alone."""
    return _group(graph, scope, frozenset(fixed), TABLE.edition)


@lru_cache(maxsize=16)
def _group(graph: Graph, scope: Scope, fixed: frozenset[str], edition: int) -> Symmetries:
    if scope not in ("layer", "neuron", "full"):
        raise InputError(f"scope={scope!r}: expected 'layer', 'neuron' or 'full'")
    if scope == "full":
        return full_group(graph, _group(graph, "layer", fixed, edition), fixed)
    return solved(Walk(graph, fixed, scope))


_known: WeakKeyDictionary[Graph, dict[tuple[Scope, frozenset[str], int], Symmetries]] = WeakKeyDictionary()
"""By graph; then by scope, fixed parameters and edition of the table."""


def tried_group(graph: Graph, module: nn.Module, scope: Scope, fixed: Iterable[str] = ()) -> Symmetries:
    """The group, tried on the module's own numbers; remembered, for a training loop asks for it every epoch."""
    known, key = _known.setdefault(graph, {}), (scope, frozenset(fixed), TABLE.edition)
    if key not in known:
        known[key] = _tried(graph, state_of(module, graph), *key[:2])
    return known[key]


def _tried(graph: Graph, state: State, scope: Scope, fixed: frozenset[str]) -> Symmetries:
    if scope == "full":
        return tried_full_group(graph, _tried(graph, state, "layer", fixed), state, fixed)
    found, distrust = group(graph, scope, fixed), dict[Operation, int]()
    while (failed := _failed(graph, found, state)) is not None:
        culprit = failed.culprit(Walk(graph, fixed, scope, distrust))
        if culprit is None or distrust.get(culprit, 0) == 2:  # no rule to blame: then nothing may move
            return group(graph, scope, graph.parameters)
        distrust[culprit] = distrust.get(culprit, 0) + 1
        found = solved(Walk(graph, fixed, scope, distrust))
    return found


def _failed(graph: Graph, found: Symmetries, state: State) -> Trial | None:
    """The trial in which the outputs move, if there is one."""
    for own in (False, True):
        trial = Trial(graph, found, state, own=own)
        verdict = trial.verdict()
        if verdict is not None:
            return None if verdict else trial
    return None
