"""A probe that has been read, and dense derivatives of its outputs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.func import functional_call

from ..curvature.schedule import fast_schedule
from ..graph.records import Graph, Operation
from ..network.network import Network
from ..network.reader import read
from ..operations.examples.notation import Example
from .probe import Entry, Probe, UnfitError, weights

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Trial:
    """A probe that has been read, and what its laws share."""

    name: str
    probe: Probe
    network: Network
    seed: int
    wide: bool

    @cached_property
    def precision(self) -> float:
        """The rounding of the coarsest numbers on the way."""
        kinds = {v.dtype for v in self.network.graph.values.values() if v.dtype.is_floating_point}
        return max((torch.finfo(kind).eps for kind in kinds), default=0.0)

    @property
    def tolerance(self) -> float:
        """Relative, for numbers that are worked out in different ways."""
        return max(TOLERANCE, 4e3 * self.precision)

    @cached_property
    def graph(self) -> Graph:
        """The graph that the row's operations stand in: as read, or as the engine rewrites it."""
        if self.calls(self.network.graph):
            return self.network.graph
        return fast_schedule(self.network.graph, self.network.graph.parameters).graph

    def calls(self, graph: Graph) -> list[Operation]:
        """The operations of the row's name that the example's call makes."""
        return [op for op in graph.operations if op.name == self.name and op.module.split(".")[0] == "call"]

    def values(self) -> dict[str, Tensor]:
        """The parameters as they are."""
        return {name: p.detach().clone() for name, p in self.probe.named_parameters()}

    def others(self, count: int, n: int) -> Iterator[tuple[dict[str, Tensor], tuple[Tensor, ...]]]:
        """Weights and inputs, first those of the probe, then drawn anew."""
        for k in range(count):
            generator = torch.Generator().manual_seed(1000 * self.seed + k)
            values = weights(self.probe, generator) if k else self.values()
            yield values, self.probe.draw(n, 77 + 1000 * self.seed + k)

    def finite(self) -> bool:
        """Whether the probe by itself makes finite outputs of the weights and samples that the laws are tried on."""
        draws = [(self.values(), self.probe.draw(n, seed + self.seed)) for n, seed in ((5, 9), (3, 5))]
        with torch.no_grad():
            return all(
                bool(self.outputs(*drawn).isfinite().all())
                for drawn in (*draws, *self.others(4, 3), *self.others(4, 4))
            )

    @cached_property
    def differentiable(self) -> bool:
        """Whether torch has a derivative for all that the probe does."""
        try:
            derivatives(self, self.values(), self.probe.draw(2, 0), 1)
        except RuntimeError as error:
            if "is not implemented" in str(error):
                return False
            raise
        return True

    def outputs(self, values: Mapping[str, Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
        """What the probe gives with these weights: (n, K)."""
        return functional_call(self.probe, dict(values), inputs)


def begin(name: str, example: Example, sizes: Mapping[str, int], entry: Entry, seed: int, wide: bool) -> Trial:
    """Build the probe and read it; the example has to call the operation that it is an example of."""
    probe = Probe(example, sizes, entry, seed).train(bool(seed % 2))
    network = read(probe, probe.draw(3, 1))
    trial = Trial(name, probe, network, seed, wide)
    _temper(trial)
    if name and not trial.calls(trial.graph):
        made = sorted({op.name for op in network.graph.operations if op.module == "call"})
        raise UnfitError(f"no operation {name!r} comes up, only {made}")
    return trial


@torch.no_grad()
def _temper(trial: Trial) -> None:
    """Outputs of moderate size: a softmax that is all but one class has no curvature to compare."""
    calls = trial.probe.call(*trial.probe.arguments(trial.probe.draw(5, 9 + trial.seed)))
    for i, made in enumerate(calls):
        leave = getattr(trial.probe, f"leave_{i}")
        if made.numel() and bool(made.any()):
            leave *= min(1.0, 2.0 / float(made.double().abs().amax() * leave.abs().amax()))


def jacobians(
    trial: Trial, values: Mapping[str, Tensor], inputs: tuple[Tensor, ...], first: int | None = None
) -> dict[str, Tensor]:
    """The derivative of all outputs of all samples, or of the first few, by autograd: {name: (n * K, *shape)}."""
    if not trial.differentiable:
        return {name: _by_differences(trial, values, name, inputs, first) for name in values}
    return derivatives(trial, values, inputs, first)


def _by_differences(
    trial: Trial, values: Mapping[str, Tensor], name: str, inputs: tuple[Tensor, ...], first: int | None
) -> Tensor:
    """The same where torch has no derivative."""
    step = 1e-5
    with torch.no_grad():
        ways = step * torch.eye(values[name].numel(), dtype=values[name].dtype).view(-1, *values[name].shape)
        ahead, back = (
            [trial.outputs({**values, name: values[name] + sign * way}, inputs).flatten()[:first] for way in ways]
            for sign in (1, -1)
        )
    columns = [(a - b) / (2 * step) for a, b in zip(ahead, back, strict=True)]
    outputs = trial.outputs(values, inputs).flatten()[:first]
    return torch.stack(columns, 1).view(-1, *values[name].shape) if columns else outputs.new_zeros(len(outputs), 0)


def derivatives(
    trial: Trial, values: Mapping[str, Tensor], inputs: tuple[Tensor, ...], first: int | None
) -> dict[str, Tensor]:
    """By autograd, one output at a time."""
    leaves = {name: v.detach().clone().requires_grad_() for name, v in values.items()}
    outputs = trial.outputs(leaves, inputs).flatten()[:first]
    result = {name: v.new_zeros(len(outputs), *v.shape) for name, v in values.items()}
    for k in range(len(outputs) if outputs.requires_grad else 0):
        rows = torch.autograd.grad(outputs[k], list(leaves.values()), retain_graph=True, allow_unused=True)
        for name, found in zip(leaves, rows, strict=True):
            if found is not None:
                result[name][k] = found
    return result
