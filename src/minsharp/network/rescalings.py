"""A group of rescalings as data: free numbers, and the log-scale of every parameter in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..frozen import Frozen
from ..graph.forms import ANY, ONE
from ..subject.modes import plain_mode
from ..text import printable
from .walk import Exponent, Scope, Walk

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


@dataclass(frozen=True, eq=False)
class Symmetries(Frozen):
    """The group of function-preserving rescalings of a network.

    ``dimension`` numbers that may be chosen freely; ``pinned`` names the parameters that cannot be rescaled, and why.
    Its tensors are shared by all results for the network: leave them as they are.
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

    @plain_mode()
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
    apart = (plus != minus).flatten()
    return not bool(apart.any()) or all(
        forms[i] == forms[j]
        for i, j in zip(plus.flatten()[apart].tolist(), minus.flatten()[apart].tolist(), strict=True)
    )


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
