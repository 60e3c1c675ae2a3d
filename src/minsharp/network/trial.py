"""A group of rescalings is tried before it is claimed.

The rules of `symmetry` are held to their laws row by row in the tests, but a call that nobody thought of may still
break one. So the network runs twice on random samples, as it is and rescaled by an element of the group, in double
precision and with factors that are powers of two: where the rules are right, not a bit changes. Where the outputs
move, the first operation whose result is not what its rule promised loses that rule, and the walk is made again.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import lcm, log
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .records import DEVICE, Graph, Operation, Value, store
from .walk import Walk

if TYPE_CHECKING:
    from .symmetry import Symmetries

State = Mapping[str, Any]
"""Parameters, buffers and constants by name."""

_SAMPLES = 2
_TOLERANCE = 1e-9


def in_double(state: State) -> dict[str, Any]:
    """Floating point numbers as float64, everything on the CPU."""
    values = {name: _double(value).cpu() for name, value in state.items() if isinstance(value, Tensor)}
    return {**state, **values, DEVICE.name: torch.device("cpu")}


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().double() if tensor.dtype.is_floating_point else tensor.detach()


def run_in_double(operation: Operation, values: State) -> Any:
    """One operation with float64 wherever it asks for another floating point type."""
    bound = operation.bind(values)
    wide = {
        name: torch.float64
        for name, given in bound.items()
        if isinstance(given, torch.dtype) and given.is_floating_point
    }
    return operation.call({**bound, **wide})


class Trial:
    """One element of a group, on random samples; from seed 1 on also on other weights, for zeros hide everything."""

    def __init__(self, graph: Graph, found: "Symmetries", state: State, seed: int):
        generator = torch.Generator().manual_seed(seed)
        self.graph = graph
        self.z = _powers_of_two(found, generator)
        plain = {name: state[name] for name in self.graph.parameters}
        if seed:
            plain = {name: _disturbed(value, generator) for name, value in plain.items()}
        logs = found.log_scales(self.z)
        moved = {name: value * torch.exp2((logs[name] / log(2)).round()) for name, value in plain.items()}
        self.before, self.after = {**state, **plain}, {**state, **moved}
        self.inputs = {value.name: _draw(value, generator) for value in self.graph.inputs}

    def holds(self) -> bool:
        """Whether the outputs stay; a network that does not run on random numbers is not judged."""
        try:
            *_, (_, before, after) = self._both()
        except (RuntimeError, IndexError, ValueError, TypeError):
            return True
        return _equal(before[self.graph.output], after[self.graph.output])

    def culprit(self, walk: Walk) -> Operation | None:
        """The first operation whose result does not have the scales that the walk has promised."""
        free = dict(zip(walk.generators, self.z.tolist(), strict=True))
        for operation, before, after in self._both():
            for name in operation.outputs:
                if name in self.graph.values:
                    a, b = self._apart(name, before[name]), self._apart(name, after[name])
                    if not _equal(a * walk.log_scale(name, free).exp(), b):
                        return operation
        return None

    def _apart(self, name: str, tensor: Tensor) -> Tensor:
        """A value sample by sample, as its scales are shaped: (n, *one sample's shape)."""
        samples = self.graph.values[name].samples
        return tensor if samples is None else samples.split(tensor, _SAMPLES)

    def _both(self) -> Iterator[tuple[Operation, dict[str, Any], dict[str, Any]]]:
        """Both networks side by side, operation by operation; a value is dropped after its last use."""
        last = {name: op for op in self.graph.operations for name in (*op.outputs, *(n for _, n in op.reads))}
        last.pop(self.graph.output, None)
        dead: dict[Operation, list[str]] = {}
        for name, operation in last.items():
            dead.setdefault(operation, []).append(name)
        before, after = ({**values, **self.inputs} for values in (self.before, self.after))
        with torch.no_grad():
            for operation in self.graph.operations:
                for values in (before, after):
                    store(values, operation, run_in_double(operation, values))
                yield operation, before, after
                for name in dead.get(operation, ()):
                    del before[name], after[name]


def _powers_of_two(found: "Symmetries", generator: torch.Generator) -> Tensor:
    """Free numbers that make every factor a power of two, the free ones between 1/4 and 4."""
    parts = [Fraction(c).limit_denominator(64).denominator for c in found.nodes.coefficient.unique().tolist()]
    return torch.randint(-2, 3, (found.dimension,), generator=generator) * (lcm(*parts) * log(2))


def _disturbed(value: Tensor, generator: torch.Generator) -> Tensor:
    """Other weights of about the same size."""
    size = value.square().mean().sqrt() if bool(value.any()) else value.new_tensor(0.3)
    return value + size * torch.randn(value.shape, generator=generator, dtype=value.dtype)


def _draw(value: Value, generator: torch.Generator) -> Tensor:
    """Random samples; zeros and ones where numbers are whole, for they may be indices."""
    shape = (_SAMPLES, *value.shape[1:])
    if value.dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.randint(2, shape, generator=generator).to(value.dtype)


def _equal(expected: Tensor, found: Tensor) -> bool:
    """To rounding; NaN and infinity stay what they are."""
    if not expected.dtype.is_floating_point:
        return torch.equal(expected, found)
    finite = expected[expected.isfinite()]
    size = float(finite.abs().amax()) if finite.numel() else 0.0
    return torch.allclose(expected, found, rtol=0.0, atol=_TOLERANCE * size, equal_nan=True)
