"""One walk through a network that collects the scale of every value, and the equations between them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from ..frozen import Handed, held
from ..graph.forms import ANY, ONE, Forms
from ..graph.formula import Product
from ..graph.records import DEVICE, Graph, Operation, store
from ..graph.slots import Slot
from ..operations import row
from ..rules.channels import UnfitError
from .structure import Structure

Scope = Literal["layer", "neuron", "full"]


@dataclass(frozen=True)
class Exponent:
    """The log-scale of a parameter, entry by entry: ``nodes[plus] - nodes[minus]``, broadcast to its shape."""

    plus: Tensor = Handed()  # type: ignore[assignment]  # noqa: RUF009
    minus: Tensor = Handed()  # type: ignore[assignment]  # noqa: RUF009


class Walk:
    """One pass through the network, collecting scales and equations."""

    def __init__(
        self, graph: Graph, fixed: frozenset[str], scope: Scope, distrust: Mapping[Operation, int] | None = None
    ):
        structure = Structure(graph, graph.parameters)
        self.graph = graph
        self.forms = Forms()
        self.one = torch.tensor(ONE)
        self.fixed = fixed
        self.scope = scope
        self.distrust = distrust or {}
        """Operations whose rule by entries (1), or every rule (2), is not to be used."""
        self.exponents: dict[str, Exponent] = {}
        self.reasons: dict[str, str] = {}
        self._prelude = dict.fromkeys(structure.prelude)  # in order
        self._owners = {path.leaves[0]: name for name, path in structure.paths.items() if path.direct}
        self._scales: dict[str, Tensor] = {}
        self._numbers: dict[str, Any] = {DEVICE.name: torch.device("cpu")}
        for value in self.graph.values.values():
            if value.kind in ("input", "buffer", "constant"):
                self._scales[value.name] = self.one.expand(self._shape(value.name))
        for operation in (*structure.prelude, *structure.operations):
            self._pass(operation)
        self.fix_because(self._scales[self.graph.output], "the outputs have to stay as they are")
        for name in graph.parameters:
            if name not in self.exponents:  # of no consequence
                self._keep(name, self.one, self.one)

    @cached_property
    def numbers(self) -> list[int]:
        """The forms that parameters' scales are made of, by number, in order; ANY first, if it is among them."""
        tensors = [t.flatten() for e in self.exponents.values() for t in (held(e, "plus"), held(e, "minus"))]
        largest = max([ONE, *(int(t.max()) for t in tensors if t.numel())])
        seen = torch.zeros(largest + 2, dtype=torch.bool)  # the last is ANY, -1
        for tensor in tensors:
            seen[tensor] = True
        found: list[int] = seen[:-1].nonzero().flatten().tolist()
        return [ANY, *found] if bool(seen[ANY]) else found

    @cached_property
    def generators(self) -> list[int]:
        """The free numbers that some parameter's scale depends on, in order."""
        return sorted({g for n in self.numbers if n != ANY for g in self.forms.reduced(n)})

    def log_scale(self, name: str, free: Mapping[int, float]) -> Tensor:
        """The log-scales of a value where the free numbers are these, and all others zero."""
        numbers, where = torch.unique(self._scales[name], return_inverse=True)
        forms = [{} if n == ANY else self.forms.reduced(n) for n in numbers.tolist()]
        logs = [sum(float(c) * free.get(g, 0.0) for g, c in form.items()) for form in forms]
        return torch.tensor(logs, dtype=torch.float64)[where]

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
        """Give every result of an operation its scales."""
        if not any(name in self.graph.values for name in operation.outputs):  # arithmetic on sizes
            if self.scope == "neuron":
                store(self._numbers, operation, operation.call(operation.bind(self.scales_as_values(operation))))
            return
        for name, scale in zip(operation.outputs, self._results(operation), strict=False):
            self._scales[name] = scale if self._floats(name) else self.one.expand(self.shape_of(name))

    def _results(self, operation: Operation) -> Sequence[Tensor]:
        """The scales of an operation's results, by the finest rule that fits it."""
        doubt, known = self.distrust.get(operation, 0), row(operation)
        if known.compares and not doubt:
            return self._compared(operation)
        if doubt > 1 or not any(
            map(self._floats, operation.outputs)
        ):  # whole numbers have no scale, nor what turns into them
            return self._pinned(operation)
        rule = known.channels
        if self.scope == "neuron" and rule is not None and not doubt and operation not in self._prelude:
            try:
                made = rule(self, operation)
                parts = made if operation.many else (made,)
                return [_expanded(part, self.shape_of(n)) for n, part in zip(operation.outputs, parts, strict=False)]
            except UnfitError:
                pass
        return self.tied(operation)

    def _compared(self, operation: Operation) -> list[Tensor]:
        """What is compared has one scale, entry by entry; zero has any."""
        scales = {slot: self.scale_of(name) for slot, name in operation.reads if self._floats(name)}
        terms = [self._product(Product((slot,)), scales, operation) for slot in (Slot("self"), Slot("other"))]
        present = [term for term in terms if term is not None]
        for term in present[1:]:
            self.forms.equate(present[0], term, operation.where)
        return [self.one.expand(self.shape_of(name)) for name in operation.outputs]

    def _pinned(self, operation: Operation) -> list[Tensor]:
        """Nothing that goes in may be rescaled."""
        for _, name in operation.reads:
            if self._floats(name):
                self.fix(self.scale_of(name), operation)
        return [self.one.expand(self.shape_of(name)) for name in operation.outputs]

    def scales_as_values(self, operation: Operation) -> dict[str, Any]:
        """Forms in place of tensors, numbers as they are: what an operation that only moves entries runs on."""
        return {name: self.scale_of(name) for _, name in operation.reads if name in self.graph.values} | self._numbers

    def scale_of(self, name: str) -> Tensor:
        """The scales of a value; a parameter that is used as it is, entry by entry, gets its generators here."""
        if name not in self._scales and not self.graph.values[name].numel:  # nothing to scale
            self._scales[name] = self.one.expand(self._shape(name))
            self._keep(name, self.one, self.one)
        if name not in self._scales:
            shape = self._shape(name) if self._direct(name) is not None else ()
            plus = self.forms.fresh(*shape)
            self._scales[name] = plus.expand(self._shape(name))
            self._keep(name, plus, self.one)
        return self._scales[name]

    def _direct(self, leaf: str) -> str | None:
        """The parameter whose entries a leaf holds, if it is used nowhere else."""
        return self._owners.get(leaf)

    def assign_scale(self, leaf: str, plus: Tensor, minus: Tensor, operation: Operation) -> None:
        """Let a leaf take the scale plus - minus; where it cannot choose, make the scale agree with what it has."""
        parameter = self._direct(leaf)
        if parameter is None or self.scope == "layer":
            difference = self.forms.combine(plus, minus, -1)
            self.forms.equate(difference, self._scalar(leaf, operation), operation.where)
            return
        for numbers in (plus, minus):
            _expanded(numbers, self.graph.values[leaf].shape)
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
        for operation in self._prelude:
            if any(name in values for _, name in operation.reads):
                rest = {name: self._blank(name) for _, name in operation.reads if name in self.graph.values}
                store(values, operation, operation.call(operation.bind(self._numbers | rest | values)))
        result = torch.empty(self.graph.values[parameter].numel, dtype=torch.int64)
        result[values[leaf].flatten()] = numbers.expand(target).flatten()
        return result.view(source)

    def _blank(self, name: str) -> Tensor:
        """A tensor of a value's shape, for operations that look at nothing else of it."""
        return torch.zeros((), dtype=torch.int64).expand(self.graph.values[name].shape)

    def tie(self, scale: Tensor, dims: Iterable[int], operation: Operation) -> Tensor:
        """Make the scales along some axes equal; the axes stay, with size one."""
        axes = [d % scale.dim() for d in dims] if scale.dim() else []
        if not axes:
            return scale
        if not scale.numel():
            return scale.new_full([1 if d in axes else size for d, size in enumerate(scale.shape)], ANY)
        first = scale.amax(axes, keepdim=True)
        self.forms.equate(scale, first, operation.where)
        return first

    def fix(self, scale: Tensor, operation: Operation) -> None:
        """Pin scales: their logarithms are zero."""
        self.fix_because(scale, operation.where)

    def fix_because(self, scale: Tensor, reason: str) -> None:
        """Make scales zero, for a reason."""
        self.forms.equate(scale, self.one, reason)

    def _scalar(self, name: str, operation: Operation) -> Tensor:
        """One scale for a whole value."""
        scale = self.scale_of(name)
        return self.tie(scale, range(scale.dim()), operation).reshape(()) if scale.dim() else scale

    def tied(self, operation: Operation) -> list[Tensor]:
        """The operation's formula with all entries of each tensor tied together."""
        scales = {slot: self._scalar(name, operation) for slot, name in operation.reads if self._floats(name)}
        result = self.by_formula(operation, scales)
        others = self.one if row(operation).statistics else result
        first, *rest = operation.outputs
        return [result.expand(self.shape_of(first)), *(others.expand(self.shape_of(name)) for name in rest)]

    def _floats(self, name: str) -> bool:
        return name in self.graph.values and self.graph.values[name].dtype.is_floating_point

    def by_formula(self, operation: Operation, scales: Mapping[Slot, Tensor]) -> Tensor:
        """Every product has the scale of the result; what stands inside a function has scale zero."""
        known = row(operation)
        formula, reads = known.formula_of(operation), dict(operation.reads)
        scales = {s: t for s, t in scales.items() if self._floats(reads[s]) and s.argument not in known.ignores}
        for slot, scale in scales.items():
            if slot not in formula.slots and formula.products:
                self.fix(scale, operation)
        result: Tensor | None = None
        for product in formula.products:
            term = self._product(product, scales, operation)
            if term is not None:
                result = term if result is None else self.forms.equate(result, term, operation.where)
        return torch.tensor(ANY) if result is None else result

    def _product(self, product: Product, scales: Mapping[Slot, Tensor], operation: Operation) -> Tensor | None:
        """The scale of one product; none if it is absent or zero."""
        for group in (*product.smooth, *product.steps):
            present = [scales[slot] for slot in group if slot in scales]
            if present:
                total = present[0]
                for scale in present[1:]:
                    total = self.forms.combine(total, scale)
                self.fix(total, operation)
        factors = [scales[slot] for slot in product.linear if slot in scales]
        numbers = [operation.arguments.get(slot.argument) for slot in product.linear if slot not in scales]
        inside = (*product.nonlinear, *product.step)
        opaque = any(operation.arguments.get(slot.argument) is not None for slot in inside)
        if not factors and not opaque and not product.constant:
            if all(number is None or number in (0, float("inf"), -float("inf")) for number in numbers):
                return None
        elif any(isinstance(number, int | float) and number == 0 for number in numbers):
            return None
        total = self.one
        for factor in factors:
            total = self.forms.combine(total, factor) if total is not self.one else factor
        return total


def _expanded(scale: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Scales broadcast to a shape; where they cannot be, the rule that made them was not made for this call."""
    try:
        return scale.expand(shape)
    except RuntimeError:
        raise UnfitError from None
