"""A group of rescalings is tried before it is claimed.

The rules of `symmetry` are held to their laws row by row in the tests, but a call that nobody thought of may still
break one. So the network runs twice on random samples, as it is and rescaled by an element of the group, in double
precision and with factors that are powers of two: where the rules are right, not a bit changes. Where the outputs
move, the first operation whose result is not what its rule promised loses that rule, and the walk is made again.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import lcm, log
from typing import Any

import torch
from torch import Tensor

from ..graph.records import DEVICE, Graph, Operation, Value, store, with_double_types
from .rescalings import Symmetries
from .walk import Walk

State = Mapping[str, Any]
"""Parameters, buffers and constants by name."""

_SAMPLES = 2
_TOLERANCE = 1e-9


def _double(value: Any) -> Any:
    """Floating point numbers as float64, tensors on the CPU; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().cpu().double() if value.dtype.is_floating_point else value.detach().cpu()


class Trial:
    """One element of a group, on random samples, with the network's own weights or, for zeros hide much, others."""

    def __init__(self, graph: Graph, found: Symmetries, state: State, *, own: bool):
        self.graph = graph
        self.state = state
        self.own = own
        self.generator = torch.Generator().manual_seed(0)
        self.z = _powers_of_two(found, self.generator)
        self.logs = found.log_scales(self.z)
        self.inputs = {value.name: _draw(value, self.generator) for value in graph.inputs}

    def verdict(self) -> bool | None:
        """Whether the outputs stay; none where the network does not run, or not to the end, on random numbers."""
        try:
            *_, (_, before, after) = self._both()
        except (RuntimeError, IndexError, KeyError, ValueError, TypeError):
            return None
        holds = _equal(before[self.graph.output], after[self.graph.output])
        return None if holds and not bool(before[self.graph.output].isfinite().all()) else holds

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
        """Both networks side by side, operation by operation; values live from their first use to their last."""
        before: dict[str, Any] = {**self.inputs, DEVICE.name: torch.device("cpu")}
        after = dict(before)
        with torch.no_grad():
            for operation, dead in zip(self.graph.operations, self.graph.dead_after, strict=True):
                for _, name in operation.reads:
                    if name not in before:
                        before[name], after[name] = self._held(name)
                for values in (before, after):
                    store(values, operation, operation.call(with_double_types(operation.bind(values))))
                yield operation, before, after
                for name in dead:
                    del before[name], after[name]

    def _held(self, name: str) -> tuple[Any, Any]:
        """A parameter as it is and rescaled; a buffer or constant twice."""
        value = _double(self.state[name])
        if name not in self.logs:
            return value, value
        if not self.own:
            value = _disturbed(value, self.generator)
        return value, value * torch.exp2((self.logs[name] / log(2)).round())


def _powers_of_two(found: Symmetries, generator: torch.Generator) -> Tensor:
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
