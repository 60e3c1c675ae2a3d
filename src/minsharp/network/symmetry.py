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
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..curvature.plan import Plan
from ..errors import InputError
from ..frozen import Frozen
from .forms import ANY, ONE, Forms, unique_pairs
from .formula import Product
from .ops import row
from .reader import Inputs, Network, read
from .records import DEVICE, Graph, Operation, base, store

Scope = Literal["layer", "neuron"]
Scales = dict[str, float | Tensor]


@dataclass(frozen=True)
class Exponent:
    """The log-scale of a parameter, entry by entry: ``nodes[plus] - nodes[minus]``, broadcast to its shape."""

    plus: Tensor
    minus: Tensor


class Walk:
    """One pass through the network, collecting scales and equations."""

    def __init__(self, graph: Graph, fixed: frozenset[str], scope: Scope):
        plan = Plan(graph, graph.parameters)
        self.graph = plan.graph
        self.forms = Forms()
        self.one = torch.tensor(ONE)
        self.fixed = fixed
        self.scope = scope
        self.exponents: dict[str, Exponent] = {}
        self.reasons: dict[str, str] = {}
        self._plan = plan
        self._prelude = frozenset(plan.prelude)
        self._owners = {path.leaves[0]: name for name, path in plan.paths.items() if path.direct}
        self._scales: dict[str, Tensor] = {}
        self._numbers: dict[str, Any] = {DEVICE.name: torch.device("cpu")}
        for value in self.graph.values.values():
            if value.kind in ("input", "buffer", "constant"):
                self._scales[value.name] = self.one.expand(self._shape(value.name))
        for operation in (*plan.prelude, *(step.operation for step in plan.steps)):
            self._pass(operation)
        self.fix_because(self._scales[self.graph.output], "the outputs have to stay as they are")

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.graph.values[name].shape if self.scope == "neuron" else ()

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a value's scales."""
        return self._shape(name) if name in self.graph.values else ()

    def rank(self, name: str) -> int:
        """The number of axes of a value."""
        return len(self.graph.values[name].shape)

    def varies(self, name: str) -> bool:
        """Whether a value differs between samples."""
        return self.graph.values[name].samples is not None

    def _pass(self, operation: Operation) -> None:
        if not any(name in self.graph.values for name in operation.outputs):  # arithmetic on sizes
            if self.scope == "neuron":
                store(self._numbers, operation, operation.call(operation.bind(self.shadow(operation))))
            return
        rule = row(operation).channels
        by_entry = self.scope == "neuron" and rule is not None and operation not in self._prelude
        store(self._scales, operation, rule(self, operation) if rule and by_entry else self.tied(operation))

    def shadow(self, operation: Operation) -> dict[str, Any]:
        """Forms in place of tensors, numbers as they are: what an operation that only moves entries runs on."""
        return {name: self.scale_of(name) for _, name in operation.reads if name in self.graph.values} | self._numbers

    def scale_of(self, name: str) -> Tensor:
        """The scales of a value; a parameter that is used as it is, entry by entry, gets its generators here."""
        if name not in self._scales:
            shape = self._shape(name) if self._direct(name) is not None else ()
            plus = self.forms.fresh(*shape)
            self._scales[name] = plus.expand(self._shape(name))
            self._keep(name, plus, self.one)
        return self._scales[name]

    def _direct(self, leaf: str) -> str | None:
        """The parameter whose entries a leaf holds, if it is used nowhere else."""
        return self._owners.get(leaf)

    def give(self, leaf: str, plus: Tensor, minus: Tensor, operation: Operation) -> None:
        """Let a leaf take the scale plus - minus; where it cannot choose, make the scale agree with what it has."""
        parameter = self._direct(leaf)
        if parameter is None or self.scope == "layer":
            difference = self.forms.combine(plus, minus, -1)
            self.forms.equate(difference, self._scalar(leaf, operation), operation.where)
            return
        self.reasons[parameter] = operation.where
        if leaf != parameter:
            plus, minus = (self._unmoved(t, leaf, parameter) for t in (plus, minus))
        self._keep(parameter, plus, minus)

    def _keep(self, parameter: str, plus: Tensor, minus: Tensor) -> None:
        if parameter in self.fixed:
            self.forms.equate(plus, minus, f"'{parameter}' is not measured, and stays as it is")
        self.exponents[parameter] = Exponent(plus, minus)

    def _unmoved(self, numbers: Tensor, leaf: str, parameter: str) -> Tensor:
        """Numbers shaped like a leaf, put back in the arrangement of the parameter that it was made of."""
        source, target = self.graph.values[parameter].shape, self.graph.values[leaf].shape
        values: dict[str, Any] = {parameter: torch.arange(self.graph.values[parameter].numel).view(source)}
        for operation in self._plan.prelude:
            if any(name in values for _, name in operation.reads):
                store(values, operation, operation.call(operation.bind(self._numbers | values)))
        result = torch.empty(self.graph.values[parameter].numel, dtype=torch.int64)
        result[values[leaf].flatten()] = numbers.expand(target).flatten()
        return result.view(source)

    def tie(self, scale: Tensor, dims: Iterable[int], operation: Operation) -> Tensor:
        """Make the scales along some axes equal; the axes stay, with size one."""
        axes = [d % scale.dim() for d in dims]
        if not axes:
            return scale
        first = scale.amax(axes, keepdim=True)
        self.forms.equate(scale, first, operation.where)
        return first

    def fix(self, scale: Tensor, operation: Operation) -> None:
        """Make scales zero."""
        self.fix_because(scale, operation.where)

    def fix_because(self, scale: Tensor, reason: str) -> None:
        """Make scales zero, for a reason."""
        self.forms.equate(scale, self.one, reason)

    def _scalar(self, name: str, operation: Operation) -> Tensor:
        """One scale for a whole value."""
        scale = self.scale_of(name)
        return self.tie(scale, range(scale.dim()), operation).reshape(()) if scale.dim() else scale

    def tied(self, operation: Operation) -> Tensor | list[Tensor]:
        """The operation's formula with all entries of each tensor tied together."""
        scales = {slot: self._scalar(name, operation) for slot, name in operation.reads if self._floats(name)}
        result = self.by_formula(operation, scales)
        outputs = [result.expand(self.shape_of(name)) for name in operation.outputs]
        return outputs if operation.many else outputs[0]

    def _floats(self, name: str) -> bool:
        return name in self.graph.values and self.graph.values[name].dtype.is_floating_point

    def by_formula(self, operation: Operation, scales: Mapping[str, Tensor]) -> Tensor:
        """Every product has the scale of the result; what stands inside a function has scale zero."""
        formula = row(operation).formula_of(operation)
        scales = {slot: scale for slot, scale in scales.items() if self._floats(dict(operation.reads)[slot])}
        for slot, scale in scales.items():
            if slot not in formula.names and formula.products:
                self.fix(scale, operation)
        result: Tensor | None = None
        for product in formula.products:
            term = self._product(product, scales, operation)
            if term is not None:
                result = term if result is None else self.forms.equate(result, term, operation.where)
        return torch.tensor(ANY) if result is None else result

    def _product(self, product: Product, scales: Mapping[str, Tensor], operation: Operation) -> Tensor | None:
        """The scale of one product; none if it is absent or zero."""
        for group in (*product.smooth, *product.steps):
            present = [scales[name] for name in group if name in scales]
            if present:
                total = present[0]
                for scale in present[1:]:
                    total = self.forms.combine(total, scale)
                self.fix(total, operation)
        factors = [scales[name] for name in product.linear if name in scales]
        numbers = [operation.arguments.get(base(name)) for name in product.linear if name not in scales]
        inside = (*product.nonlinear, *product.step)
        opaque = any(operation.arguments.get(base(name)) is not None for name in inside)
        if not factors and not opaque and not product.constant:
            if all(number is None or number in (0, float("inf"), -float("inf")) for number in numbers):
                return None
        elif any(isinstance(number, int | float) and number == 0 for number in numbers):
            return None
        total = self.one
        for factor in factors:
            total = self.forms.combine(total, factor) if total is not self.one else factor
        return total


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
        lines += [f"  pinned {name}: {reason}" for name, reason in self.pinned.items()]
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
    return group(network.graph, scope, fixed)


def group(graph: Graph, scope: Scope, fixed: Iterable[str] = ()) -> Symmetries:
    """The group of a network that has been read; remembered, for a training loop asks for it every epoch."""
    return _group(graph, scope, frozenset(fixed))


@lru_cache(maxsize=16)
def _group(graph: Graph, scope: Scope, fixed: frozenset[str]) -> Symmetries:
    if scope not in ("layer", "neuron"):
        raise InputError(f"scope={scope!r}: expected 'layer' or 'neuron'")
    walk = Walk(graph, fixed, scope)
    numbers, positions = _compact([t for e in walk.exponents.values() for t in (e.plus, e.minus)])
    forms = [walk.forms.reduced(n) for n in numbers]
    columns = {g: i for i, g in enumerate(sorted({g for form in forms for g in form}))}
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
    shapes = {name: graph.values[name].shape for name in exponents}
    return Symmetries(scope, len(columns), pinned, shapes, exponents, nodes)


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
