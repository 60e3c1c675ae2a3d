"""A group of rescalings as data: free numbers, and the log-scale of every parameter in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..frozen import Frozen, Handed, held
from ..graph.forms import ANY, ONE, Form
from ..subject.modes import plain_mode, seeded
from ..text import printable
from .walk import Exponent, Scope, Walk

Scales = dict[str, float | Tensor]


@dataclass(frozen=True)
class Nodes:
    """Forms in the free numbers z, as a sparse matrix: ``coefficient[i] * z[number[i]]`` goes into ``form[i]``."""

    count: int
    form: Tensor = Handed()  # type: ignore[assignment]  # noqa: RUF009
    number: Tensor = Handed()  # type: ignore[assignment]  # noqa: RUF009
    coefficient: Tensor = Handed()  # type: ignore[assignment]  # noqa: RUF009

    def at(self, z: Tensor) -> Tensor:
        """The value of every form."""
        form, number, coefficient = (held(self, name) for name in ("form", "number", "coefficient"))
        return torch.zeros(self.count, dtype=torch.float64).index_add_(0, form, coefficient * z.double()[number])


@dataclass(frozen=True, eq=False)
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
        return {name: t[held(e, "plus")] - t[held(e, "minus")] for name, e in self.exponents.items()}

    def scales(self, z: Tensor) -> Scales:
        """Factors for every parameter that moves: a number in scope "layer", a tensor in scope "neuron"."""
        factors = {name: t.exp() for name, t in self.log_scales(z).items() if name not in self.pinned}
        return {name: float(f) if f.numel() == 1 else f for name, f in factors.items()}

    @plain_mode()
    def random(self, seed: int = 0, spread: float = 1e3) -> Scales:
        """A random element of the group, with factors between 1/spread and spread."""
        if not spread > 1:
            raise InputError(f"spread={spread}: expected a factor above 1, as in spread=1000")
        z = 2 * torch.rand(self.dimension, generator=seeded(seed), dtype=torch.float64) - 1
        sizes = [float(t.abs().max()) for t in self.log_scales(z).values() if t.numel()]
        largest = max(sizes, default=0.0)
        return self.scales(z * log(spread) / largest if largest else z)

    def __repr__(self) -> str:
        lines = [f"Symmetries: {self.dimension} free numbers (scope {self.scope!r})"]
        lines += [f"  pinned {printable(name)}: {printable(reason)}" for name, reason in self.pinned.items()]
        return "\n".join(lines + folding_frees(self.pinned))


def folding_frees(pinned: Mapping[str, str], how: str = "fold_batchnorm(model)") -> list[str]:
    """What to do about parameters that BatchNorm pins, as one line; no line where it pins none."""
    if not any("batch_norm" in reason.partition(" in ")[0] for reason in pinned.values()):
        return []
    return [f"BatchNorm pins weights before it: {how} folds it into the layer that it follows, as it is deployed"]


def solved(walk: Walk) -> Symmetries:
    """The group that a walk has found."""
    forms, where = _different(walk)
    columns = {g: i for i, g in enumerate(walk.generators)}
    entries = [(r, columns[g], float(c)) for r, form in enumerate(forms) for g, c in form.items()]
    nodes = Nodes(
        len(forms),
        torch.tensor([r for r, _, _ in entries], dtype=torch.int64),
        torch.tensor([c for _, c, _ in entries], dtype=torch.int64),
        torch.tensor([v for _, _, v in entries], dtype=torch.float64),
    )
    exponents = {
        name: Exponent(_thin(where[held(e, "plus")]), _thin(where[held(e, "minus")]))
        for name, e in walk.exponents.items()
    }
    pinned = {name: _reason(walk, name) for name, e in exponents.items() if _still(e)}
    shapes = {name: walk.graph.values[name].shape for name in exponents}
    return Symmetries(walk.scope, len(columns), pinned, shapes, exponents, nodes)


def _different(walk: Walk) -> tuple[list[Form], Tensor]:
    """The different forms of the parameters' scales, and for every number of a form its position among them.

    What an equation has made equal has one position; where any scale will do, it is that of zero.
    """
    found: dict[tuple[Any, ...], int] = {}
    forms: list[Form] = []
    numbers = walk.numbers
    where = torch.zeros(max([ONE, *numbers]) + 2, dtype=torch.int64)  # the last is that of ANY, -1
    for number in numbers:
        form = walk.forms.reduced(ONE if number == ANY else number)
        where[number] = found.setdefault(tuple(sorted(form.items())), len(forms))
        if len(found) > len(forms):
            forms.append(form)
    return forms, where


def _thin(tensor: Tensor) -> Tensor:
    """The same numbers, held once along every axis on which they do not change."""
    return narrow(tensor).clone().expand(tensor.shape)


def narrow(tensor: Tensor) -> Tensor:
    """Size one along every axis on which nothing changes, without a copy."""
    for axis, size in enumerate(tensor.shape):
        first = tensor.narrow(axis, 0, min(size, 1))
        if size > 1 and (tensor.stride(axis) == 0 or bool((tensor == first).all())):
            tensor = first
    return tensor


def _still(exponent: Exponent) -> bool:
    """Whether a parameter's scale is zero throughout."""
    return bool((held(exponent, "plus") == held(exponent, "minus")).all())


def _reason(walk: Walk, parameter: str) -> str:
    exponent = walk.exponents[parameter]
    if parameter in walk.fixed:
        return "not measured, stays as it is"
    for tensor in (held(exponent, "plus"), held(exponent, "minus")):
        for number in torch.unique(tensor).tolist():
            if number != ANY:
                for reason in walk.forms.reasons(number):
                    return reason
    return walk.reasons.get(parameter, "the outputs have to stay as they are")
