"""Which rescalings of the parameters keep the function: log-scale equations, and the group that solves them.

Give every tensor of the network a log-scale. Each operation is a linear equation in them, read off its formula
(scope "layer": one scale per tensor) or off its rule for channels (scope "neuron": one per entry, tied where the
network ties them). Inputs, buffers, constants and outputs have scale zero. The solutions, restricted to the parameters,
are the rescalings that change nothing. An operation that is not known can only make the group smaller.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import log
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..frozen import Frozen
from ..graph.forms import ANY, ONE, unique_pairs
from ..graph.records import Graph, Operation
from ..text import printable
from .network import state_of
from .reader import Inputs, Network, read
from .trial import State, Trial
from .walk import Exponent, Walk
from .walk import Scope as Scope

Scales = dict[str, float | Tensor]


@dataclass(frozen=True)
class Nodes:
    """Forms in the free numbers z, as a sparse matrix: ``coefficient[i] * z[number[i]]`` goes into ``form[i]``."""

    count: int
    form: Tensor
    number: Tensor
    coefficient: Tensor

    def at(self, z: Tensor) -> Tensor:
        """The value of every form."""
        return torch.zeros(self.count, dtype=torch.float64).index_add_(
            0, self.form, self.coefficient * z.double()[self.number]
        )


@dataclass(frozen=True)
class Symmetries(Frozen):
    """The group of function-preserving rescalings of a network.

    ``dimension`` numbers that may be chosen freely; ``pinned`` names the parameters that cannot be rescaled, and why.
    """

    scope: Scope
    dimension: int
    pinned: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    exponents: Mapping[str, Exponent] = field(repr=False)
    nodes: Nodes = field(repr=False)

    def log_scales(self, z: Tensor) -> dict[str, Tensor]:
        """The log-scale of every parameter for free numbers z, broadcastable to its shape."""
        t = self.nodes.at(z)
        return {name: t[e.plus] - t[e.minus] for name, e in self.exponents.items()}

    def scales(self, z: Tensor) -> Scales:
        """Factors for every parameter that moves: a number in scope "layer", a tensor in scope "neuron"."""
        factors = {name: t.exp() for name, t in self.log_scales(z).items() if name not in self.pinned}
        return {name: float(f) if f.numel() == 1 else f for name, f in factors.items()}

    def random(self, seed: int = 0, spread: float = 1e3) -> Scales:
        """A random element of the group, with factors between 1/spread and spread."""
        if not spread > 1:
            raise InputError(f"spread={spread}: expected a factor above 1, as in spread=1000")
        z = 2 * torch.rand(self.dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
        sizes = [float(t.abs().max()) for t in self.log_scales(z).values() if t.numel()]
        largest = max(sizes, default=0.0)
        return self.scales(z * log(spread) / largest if largest else z)

    def __repr__(self) -> str:
        lines = [f"Symmetries: {self.dimension} free numbers (scope {self.scope!r})"]
        lines += [f"  pinned {printable(name)}: {printable(reason)}" for name, reason in self.pinned.items()]
        return "\n".join(lines)


def symmetries(
    model: nn.Module | Network,
    example: Inputs,
    scope: Scope = "layer",
    *,
    fixed: Iterable[str] | None = None,
) -> Symmetries:
    """The rescalings of a network's parameters that keep its function.

    ``scope="layer"``: one factor per parameter tensor. ``scope="neuron"``: one per channel. Parameters named in
    ``fixed`` stay as they are; without it, those that do not require a gradient.

    A chain of D layers has D - 1 free factors; per neuron, one for each hidden neuron:

    >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> symmetries(model, torch.zeros(1, 3)).dimension
    2
    >>> symmetries(model, torch.zeros(1, 3), scope="neuron").dimension
    13
    """
    network = read(model, example)
    if fixed is None:
        fixed = [name for name, parameter in network.parameters.items() if not parameter.requires_grad]
    return tried_group(network.graph, network.module, scope, fixed)


def group(graph: Graph, scope: Scope, fixed: Iterable[str] = ()) -> Symmetries:
    """The group of a network that has been read, by the rules alone."""
    return _group(graph, scope, frozenset(fixed))


@lru_cache(maxsize=16)
def _group(graph: Graph, scope: Scope, fixed: frozenset[str]) -> Symmetries:
    if scope not in ("layer", "neuron"):
        raise InputError(f"scope={scope!r}: expected 'layer' or 'neuron'")
    return solved(Walk(graph, fixed, scope))


_known: WeakKeyDictionary[Graph, dict[tuple[Scope, frozenset[str]], Symmetries]] = WeakKeyDictionary()


def tried_group(graph: Graph, module: nn.Module, scope: Scope, fixed: Iterable[str] = ()) -> Symmetries:
    """The group, tried on the module's own numbers; remembered, for a training loop asks for it every epoch."""
    known, key = _known.setdefault(graph, {}), (scope, frozenset(fixed))
    if key not in known:
        known[key] = _tried(graph, state_of(module, graph), *key)
    return known[key]


def _tried(graph: Graph, state: State, scope: Scope, fixed: frozenset[str]) -> Symmetries:
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


def solved(walk: Walk) -> Symmetries:
    """The group that a walk has found."""
    numbers, positions = _compact([t for e in walk.exponents.values() for t in (e.plus, e.minus)])
    forms = [walk.forms.reduced(n) for n in numbers]
    columns = {g: i for i, g in enumerate(walk.generators)}
    entries = [(r, columns[g], float(c)) for r, form in enumerate(forms) for g, c in form.items()]
    nodes = Nodes(
        len(forms),
        torch.tensor([r for r, _, _ in entries], dtype=torch.int64),
        torch.tensor([c for _, c, _ in entries], dtype=torch.int64),
        torch.tensor([v for _, _, v in entries], dtype=torch.float64),
    )
    pairs = iter(positions)
    exponents = {name: Exponent(next(pairs), next(pairs)) for name in walk.exponents}
    pinned = {name: _reason(walk, name) for name, e in exponents.items() if _still(e, forms)}
    shapes = {name: walk.graph.values[name].shape for name in exponents}
    return Symmetries(walk.scope, len(columns), pinned, shapes, exponents, nodes)


def _compact(tensors: list[Tensor]) -> tuple[list[int], list[Tensor]]:
    """The numbers that occur, and the tensors with each number replaced by its position among them."""
    if not tensors:
        return [], []
    tensors = [torch.where(t == ANY, ONE, t) for t in tensors]
    numbers = torch.unique(torch.cat([t.flatten() for t in tensors]))
    return numbers.tolist(), [torch.searchsorted(numbers, t.contiguous()) for t in tensors]


def _still(exponent: Exponent, forms: list[Any]) -> bool:
    """Whether a parameter's scale is zero throughout."""
    plus, minus = torch.broadcast_tensors(exponent.plus, exponent.minus)
    return all(forms[i] == forms[j] for i, j in unique_pairs(plus.flatten(), minus.flatten())[0])


def _reason(walk: Walk, parameter: str) -> str:
    exponent = walk.exponents[parameter]
    if parameter in walk.fixed:
        return "not measured, stays as it is"
    for tensor in (exponent.plus, exponent.minus):
        for number in torch.unique(tensor).tolist():
            if number != ANY:
                for reason in walk.forms.reasons(number):
                    return reason
    return walk.reasons.get(parameter, "the outputs have to stay as they are")
