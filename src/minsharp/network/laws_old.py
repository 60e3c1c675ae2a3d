"""The laws that every row of the table obeys, checked on examples.

An example is put into a small network of its own, the probe: every sample argument is multiplied by a parameter of
one sample's shape, every output too, so that each entry that goes in and comes out has a free scale. On it hold

    scale         elements of the rescaling group keep the outputs, in both scopes, for all weights and inputs
    linearity     the Jacobian of a parameter that is called exact does not change along that parameter
    pull          the row's pullback is autograd's
    contraction   trace and diagonal are those of dense Jacobians, one sample at a time
    untouched     no parameter, buffer, input, argument, cotangent or mode is changed by any of it

`check` returns what is broken as text; nothing here looks at the rules themselves, only at what they claim.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from ..curvature.hessian import hessian_diagonal, hessian_trace
from ..curvature.schedule import fast_schedule
from ..errors import InputError, MinsharpError
from ..graph.records import Graph, Operation
from ..operations import dependence, passing, row
from .examples.notation import Example, Given
from .reader import Network, read
from .symmetry import Scope, Symmetries, group

Law = Literal["scale", "linearity", "pull", "contraction", "untouched"]
LAWS: tuple[Law, ...] = ("scale", "linearity", "pull", "contraction", "untouched")
Entry = Literal["scaled", "relu", "linear", "plain"]
ENTRIES: tuple[Entry, ...] = ("scaled", "relu", "linear", "plain")
"""How the samples reach the call: times a parameter; made positive as well; through a linear layer; as they are."""

TOLERANCE = 1e-9


class UnfitError(InputError):
    """The call itself does not run at these sizes."""


# The probe


class Call(nn.Module):
    """The example's call, as a module of its own: operations are known to be its by their module's name."""

    def __init__(self, example: Example, sizes: Mapping[str, int]):
        super().__init__()
        self.example, self.sizes = example, sizes

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        """Every tensor that the call returns."""
        made = self.example.run(tensors, self.sizes)
        return [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor)]


class Probe(nn.Module):
    """The example with a free scale at every entry that goes in or comes out."""

    def __init__(self, example: Example, sizes: Mapping[str, int], entry: Entry = "scaled", seed: int = 0):
        super().__init__()
        self.entry, self.sizes = entry, sizes
        self.given = example.tensors
        self.samples = tuple(g for g in self.given if g.varies)
        self.call = Call(example, sizes)
        generator = torch.Generator().manual_seed(seed)
        for given in self.given:
            if not given.varies:
                self._hold(given, generator)
            elif given.enters and entry == "linear":
                width = torch.Size(given.one_sample(sizes)).numel()
                self.add_module(f"enter_{given.name}", nn.Linear(width, width, dtype=torch.float64))
            elif given.enters and entry != "plain":
                self.register_parameter(f"enter_{given.name}", _parameter(given.one_sample(sizes), generator))
        self.axes = self._sample_axes()
        for i, (shape, _) in enumerate(self.axes):
            self.register_parameter(f"leave_{i}", _parameter(shape, generator))
        if not any(torch.Size(shape).numel() for shape, _ in self.axes):
            self.register_parameter("anchor", _parameter((1,), generator))
        redraw(self, generator)

    def _hold(self, given: Given, generator: torch.Generator) -> None:
        value = given.draw(self.sizes, generator)
        if given.constant or not value.dtype.is_floating_point:
            self.register_buffer(given.name, value)
        else:
            self.register_parameter(given.name, nn.Parameter(value))

    def draw(self, n: int, seed: int) -> tuple[Tensor, ...]:
        """A batch of inputs: one per sample argument, and last one number per sample."""
        generator = torch.Generator().manual_seed(seed)
        drawn = [given.draw(self.sizes, generator, n) for given in self.samples]
        return (*drawn, torch.randn(n, 1, generator=generator, dtype=torch.float64))

    def _sample_axes(self) -> list[tuple[tuple[int, ...], int | None]]:
        """For each output, one sample's shape and the axis that runs over the samples: run with two, and three."""
        try:
            with torch.no_grad():
                two, three = (self.call(*self._arguments(self.draw(n, 0))) for n in (2, 3))
        except Exception as error:
            raise UnfitError(f"{type(error).__name__}: {error}") from error
        return [_sample_axis(a.shape, b.shape) for a, b in zip(two, three, strict=True)]

    def _arguments(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        drawn = dict(zip((given.name for given in self.samples), inputs, strict=False))
        return [
            self._enter(given, drawn[given.name]) if given.varies else getattr(self, given.name) for given in self.given
        ]

    def _enter(self, given: Given, x: Tensor) -> Tensor:
        """From an input, samples first, to the argument."""
        if given.enters and self.entry == "linear":
            x = getattr(self, f"enter_{given.name}")(_in_rows(x)).view(-1, *given.one_sample(self.sizes))
        elif given.enters and self.entry != "plain":
            x = x * getattr(self, f"enter_{given.name}")
        if given.enters and self.entry == "relu":
            x = torch.relu(x)
        return x.movedim(0, given.axis) if given.axis else x

    def forward(self, *inputs: Tensor) -> Tensor:
        """All outputs of the call side by side, (n, K), each entry times a parameter of its own."""
        parts = []
        for i, made in enumerate(self.call(*self._arguments(inputs))):
            _, axis = self.axes[i]
            out = made if made.dtype == torch.float64 else made.to(torch.float64)
            out = (out.movedim(axis, 0) if axis else out) * getattr(self, f"leave_{i}")
            parts.append(inputs[-1] * out.flatten() if axis is None else _in_rows(out))
        if hasattr(self, "anchor"):
            parts.append(inputs[-1] * self.get_parameter("anchor"))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _in_rows(x: Tensor) -> Tensor:
    return x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)


def _parameter(shape: Sequence[int], generator: torch.Generator) -> nn.Parameter:
    return nn.Parameter(torch.randn(tuple(shape), generator=generator, dtype=torch.float64))


def _sample_axis(two: torch.Size, three: torch.Size) -> tuple[tuple[int, ...], int | None]:
    axes = [d for d, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    if not axes:
        return tuple(two), None
    if len(axes) > 1 or (two[axes[0]], three[axes[0]]) != (2, 3):
        raise InputError(
            f"an output has shape {tuple(two)} for two samples, {tuple(three)} for three: expected one axis n"
        )
    return (*two[: axes[0]], *two[axes[0] + 1 :]), axes[0]


@torch.no_grad()
def redraw(probe: Probe, generator: torch.Generator) -> None:
    """Other weights: none near zero, signs at random, those that have to be positive positive."""
    held = {given.name: given for given in probe.given}
    for name, parameter in probe.named_parameters():
        if name in held:
            parameter.copy_(held[name].draw(probe.sizes, generator))
        else:
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
            parameter.add_(0.2 * parameter.sign())


# The trial of one example


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
        """Weights and inputs, first those of the probe, then drawn anew; the probe keeps its own."""
        own = self.values()
        for k in range(count):
            if k:
                redraw(self.probe, torch.Generator().manual_seed(1000 * self.seed + k))
            values = self.values()
            with torch.no_grad():
                for name, parameter in self.probe.named_parameters():
                    parameter.data = own[name].clone() if k else parameter.data
            yield values, self.probe.draw(n, 77 + 1000 * self.seed + k)

    @cached_property
    def differentiable(self) -> bool:
        """Whether torch has a derivative for all that the probe does."""
        try:
            _jacobians(self, self.values(), self.probe.draw(2, 0), 1)
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
        raise InputError(f"no operation {name!r} comes up, only {made}")
    return trial


@torch.no_grad()
def _temper(trial: Trial) -> None:
    """Outputs of moderate size: a softmax that is all but one class has no curvature to compare."""
    calls = trial.probe.call(*trial.probe._arguments(trial.probe.draw(5, 9 + trial.seed)))
    for i, made in enumerate(calls):
        leave = getattr(trial.probe, f"leave_{i}")
        if made.numel() and bool(made.any()):
            leave *= min(1.0, 2.0 / float(made.double().abs().amax() * leave.abs().amax()))


# Scale


def scale_law(trial: Trial) -> Iterator[str]:
    """Elements of the group keep the outputs: on several weights and inputs, for the group belongs to the graph."""
    places = list(trial.others(3 if trial.wide else 2, 4))
    with torch.no_grad():
        before = [trial.outputs(*place) for place in places]
    for scope in ("layer", "neuron"):
        symmetries = group(trial.network.graph, scope)
        for z in _elements(trial, symmetries):
            moved = _most_moved(trial, symmetries, z, places, before)
            if moved > TOLERANCE:
                yield f"scale, {scope}: outputs move by {moved:.2g} under {_moving(symmetries, z)}"
                break
        acting = _rank(directions(symmetries, trial.values(), "neuron"))
        if acting != symmetries.dimension:
            yield f"scale, {scope}: {symmetries.dimension} free numbers are claimed, {acting} of them act"


def _elements(trial: Trial, symmetries: Symmetries) -> Iterator[Tensor]:
    """Free numbers: all at random, at two spreads; one at a time. In powers of two where numbers are coarse."""
    d = symmetries.dimension
    generator = torch.Generator().manual_seed(trial.seed)
    if not d:
        return
    spreads = (4, 100, 4, 100) if trial.wide else (4, 100)
    for spread in spreads:
        yield _sized((2 * torch.rand(d, generator=generator, dtype=torch.float64) - 1) * log(spread), trial)
    for i in torch.randperm(d, generator=generator)[: d if trial.wide else 2].tolist():
        z = torch.zeros(d, dtype=torch.float64)
        z[i] = log(10)
        yield _sized(z, trial)


def _sized(z: Tensor, trial: Trial) -> Tensor:
    """As it is; or rounded, so that factors are powers of two, exact in all types."""
    return z if trial.precision < 1e-10 else (z / log(4)).round() * log(4)


def _most_moved(
    trial: Trial,
    symmetries: Symmetries,
    z: Tensor,
    places: Sequence[tuple[dict[str, Tensor], tuple[Tensor, ...]]],
    before: Sequence[Tensor],
) -> float:
    logs = symmetries.log_scales(z)
    if trial.precision >= 1e-10:
        logs = {name: (t / log(2)).round() * log(2) for name, t in logs.items()}
    factors = {
        name: t.exp() if trial.precision < 1e-10 else torch.exp2((t / log(2)).round()) for name, t in logs.items()
    }
    most = 0.0
    for (values, inputs), old in zip(places, before, strict=True):
        with torch.no_grad():
            new = trial.outputs({name: v * factors.get(name, 1.0) for name, v in values.items()}, inputs)
        most = max(most, difference(new, old))
    return most


def difference(new: Tensor, old: Tensor) -> float:
    """The largest difference in a column, (n, K), relative to what stands in that column, or a millionth of all."""
    if not old.numel():
        return 0.0
    size = old.abs().amax(0) + 1e-6 * old.abs().amax()
    apart = (new - old).abs().amax(0) / size.clamp_min(1e-300)
    return float(apart.nan_to_num(nan=float("inf")).amax())


def _moving(symmetries: Symmetries, z: Tensor) -> str:
    """The parameters that an element scales, and by how much."""
    logs = symmetries.log_scales(z)
    spans = {name: (float(t.exp().min()), float(t.exp().max())) for name, t in logs.items() if t.numel()}
    return ", ".join(f"{name} x {a:.3g}..{b:.3g}" for name, (a, b) in spans.items() if (a, b) != (1, 1))


# How free the group could be


class Freedom(NamedTuple):
    """The dimension that the rules find, and that of all rescalings that keep the function to first order."""

    claimed: int
    true: int


def freedom(trial: Trial, scope: Scope) -> Freedom:
    """Rescalings by exp(t) keep the function if every derivative along t vanishes, for all weights and inputs.

    Where the function is constant in pieces, derivatives cannot tell, and the true dimension may be smaller.
    """
    claimed = _rank(directions(group(trial.network.graph, scope), trial.values(), scope))
    rows = [_log_jacobian(trial, scope, *place) for place in trial.others(4, 4)]
    stacked = torch.cat(rows)
    return Freedom(claimed, stacked.shape[1] - _rank(stacked))


def directions(symmetries: Symmetries, values: Mapping[str, Tensor], scope: Scope) -> Tensor:
    """The log-scale of every entry of every parameter (of every parameter) per free number: (dimension, entries)."""
    rows = []
    for z in torch.eye(symmetries.dimension, dtype=torch.float64):
        logs = symmetries.log_scales(z)
        parts = [
            logs[name].expand(v.shape).flatten() if name in logs else 0 * v.flatten() for name, v in values.items()
        ]
        rows.append(torch.cat([p[:1] for p in parts] if scope == "layer" else parts))
    return torch.stack(rows) if rows else torch.zeros(0, sum(v.numel() for v in values.values()), dtype=torch.float64)


def _log_jacobian(trial: Trial, scope: Scope, values: Mapping[str, Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
    """d outputs / d log-scales: (n * K, entries), or (n * K, parameters)."""
    parts = [(J * values[name]).reshape(len(J), -1) for name, J in jacobians(trial, values, inputs).items()]
    return torch.cat([p.sum(1, keepdim=True) for p in parts] if scope == "layer" else parts, 1)


def _rank(matrix: Tensor) -> int:
    """With each row of size one, to a millionth."""
    if not matrix.numel():
        return 0
    matrix = matrix / torch.linalg.vector_norm(matrix, dim=1, keepdim=True).clamp_min(1e-300)
    values = torch.linalg.svdvals(matrix)
    return int((values > 1e-6 * values.amax().clamp_min(1e-300)).sum())


def jacobians(
    trial: Trial, values: Mapping[str, Tensor], inputs: tuple[Tensor, ...], first: int | None = None
) -> dict[str, Tensor]:
    """The derivative of all outputs of all samples, or of the first few, by autograd: {name: (n * K, *shape)}."""
    if not trial.differentiable:
        return {name: _by_differences(trial, values, name, inputs, first) for name in values}
    return _jacobians(trial, values, inputs, first)


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


def _jacobians(
    trial: Trial, values: Mapping[str, Tensor], inputs: tuple[Tensor, ...], first: int | None
) -> dict[str, Tensor]:
    leaves = {name: v.detach().clone().requires_grad_() for name, v in values.items()}
    outputs = trial.outputs(leaves, inputs).flatten()[:first]
    result = {name: v.new_zeros(len(outputs), *v.shape) for name, v in values.items()}
    for k in range(len(outputs) if outputs.requires_grad else 0):
        rows = torch.autograd.grad(outputs[k], list(leaves.values()), retain_graph=True, allow_unused=True)
        for name, found in zip(leaves, rows, strict=True):
            if found is not None:
                result[name][k] = found
    return result


# Linearity


def linearity_law(trial: Trial) -> Iterator[str]:
    """Along a parameter that is called exact the Jacobian stays, but for the rare step across a kink."""
    if trial.precision > 1e-4 or not trial.differentiable:
        return  # in half precision a step that it resolves is too long
    for name, exact in trial.network.exactness.items():
        if exact and trial.network.parameters[name].numel():
            changes = list(_changes(trial, name))
            if sum(changes) >= 2:
                points = f"{sum(changes)} of {len(changes)} points"
                yield f"linearity: called exact in {name}, its Jacobian changes at {points}"


def _changes(trial: Trial, name: str) -> Iterator[bool]:
    """Whether the derivative of a random sum of the outputs changes over a short way, at points near and far."""
    generator = torch.Generator().manual_seed(trial.seed + 1)
    steps = (1e-5, 1e-6, 1e-4, 1e-5) if trial.precision < 1e-10 else (1e-2,) * 4
    sizes = (1.0, 4.0, 0.25, 1.0)
    for (values, inputs), step, size in zip(trial.others(4, 3), steps, sizes, strict=True):
        values[name] = values[name] * size
        way = torch.randn(values[name].shape, generator=generator, dtype=torch.float64)
        way = (way * step * values[name].abs().mean()).to(values[name].dtype)
        weights = torch.randn(trial.outputs(values, inputs).shape, generator=generator, dtype=torch.float64)
        if any(operation.name == "detach" for operation in trial.network.graph.operations):
            yield _bends(trial, values, inputs, name, weights, way)
            continue
        ahead, back = (
            _derivative(trial, {**values, name: values[name] + s * way}, inputs, name, weights) for s in (1, -1)
        )
        scale = float(torch.maximum(ahead.abs(), back.abs()).amax())
        scale += 1e-5 * float((weights * trial.outputs(values, inputs)).abs().amax() / values[name].abs().mean())
        limit = 1e-10 if trial.precision < 1e-10 else 1e-3
        yield float((ahead - back).abs().amax()) > limit * scale


def _bends(
    trial: Trial, values: dict[str, Tensor], inputs: tuple[Tensor, ...], name: str, weights: Tensor, way: Tensor
) -> bool:
    """Whether the second derivative along a way is not zero; what is detached stays where it is."""
    leaf = values[name].detach().requires_grad_()
    outputs = trial.outputs({**values, name: leaf}, inputs)
    if not outputs.requires_grad:
        return False
    (first,) = torch.autograd.grad((outputs * weights).sum(), leaf, create_graph=True, allow_unused=True)
    if first is None or not first.requires_grad:
        return False
    (second,) = torch.autograd.grad((first * way).sum(), leaf, allow_unused=True)
    return second is not None and float(second.abs().amax()) > 1e-10 * float(first.abs().amax())


def _derivative(
    trial: Trial, values: dict[str, Tensor], inputs: tuple[Tensor, ...], name: str, weights: Tensor
) -> Tensor:
    leaf = values[name].detach().requires_grad_()
    outputs = trial.outputs({**values, name: leaf}, inputs)
    if not outputs.requires_grad:
        return torch.zeros_like(leaf)
    (found,) = torch.autograd.grad((outputs * weights).sum(), leaf, allow_unused=True)
    return torch.zeros_like(leaf) if found is None else found


# Pullbacks


def pull_law(trial: Trial) -> Iterator[str]:
    """Each pullback returns what the call returns, and pulls back as autograd does, whatever the columns and layout."""
    if not trial.differentiable:
        return
    inputs = trial.probe.draw(3, 5 + trial.seed)
    values = trial.network.state() | trial.network.bind(inputs)
    with torch.no_grad():
        trial.graph.run(values)
    for operation in trial.calls(trial.graph):
        varying = _float_arguments(trial.graph, operation)
        for wanted in dict.fromkeys([*(frozenset({a}) for a in varying), frozenset(varying)]):
            if wanted:
                yield from _pull_as_autograd(trial, operation, operation.bind(values), wanted)


def _float_arguments(graph: Graph, operation: Operation) -> list[str]:
    """The arguments that vary with the samples and depend on parameters: those that the engine pulls back to."""
    reads = [(slot.partition("[")[0], graph.values.get(name)) for slot, name in passing(operation)]
    behind = dependence(graph, graph.parameters)
    return list(dict.fromkeys(a for a, v in reads if v is not None and v.samples is not None and v.name in behind))


def _pull_as_autograd(
    trial: Trial, operation: Operation, bound: dict[str, Any], wanted: frozenset[str]
) -> Iterator[str]:
    what = f"pull, {operation.name} to {', '.join(sorted(wanted))}"
    kept = pytree.tree_map_only(Tensor, torch.clone, bound)
    with torch.no_grad():
        plain = operation.call(bound)
        made, pull = row(operation).pull(operation, bound, wanted)
    if not _close(made, plain, trial.tolerance):
        yield f"{what}: the output is not that of the call"
    for R, swapped, only in _columns(operation, plain, trial.wide):
        G = _cotangents(operation, plain, R, swapped, only, trial.seed)
        before = pytree.tree_map_only(Tensor, torch.clone, G)
        with torch.no_grad():
            found = pull(G)
        for name in sorted(wanted):
            expected = _by_autograd(operation, kept, name, G)
            if not _pulled_close(found.get(name), expected, trial.tolerance):
                yield f"{what}: not autograd's for R={R}{', samples first' * swapped}, output {only}"
                return
        if not _same(G, before):
            yield f"{what}: cotangents are written over"
    if not _same(bound, kept):
        yield f"{what}: arguments are written over"


def _columns(operation: Operation, plain: Any, wide: bool) -> list[tuple[int, bool, int | None]]:
    """Numbers of columns, layouts, and which of several outputs has a cotangent (None: each)."""
    cases: list[tuple[int, bool, int | None]] = [(1, False, None), (2, True, None), (3, False, None), (3, True, None)]
    floats = [i for i, out in enumerate(plain if operation.many else (plain,)) if _is_float(out)]
    if len(floats) > 1:
        cases.extend((2, True, i) for i in (floats if wide else floats[:2]))
    return cases if floats else []


def _is_float(out: Any) -> bool:
    return isinstance(out, Tensor) and out.dtype.is_floating_point


def _cotangents(operation: Operation, plain: Any, R: int, swapped: bool, only: int | None, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)

    def one(i: int, out: Any) -> Tensor | None:
        if not _is_float(out) or only not in (None, i):
            return None
        if swapped and out.dim():
            shape = (out.shape[0], R, *out.shape[1:])
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(out.dtype).transpose(0, 1)
        return torch.randn((R, *out.shape), generator=generator, dtype=torch.float64).to(out.dtype)

    made = [one(i, out) for i, out in enumerate(plain if operation.many else (plain,))]
    return made if operation.many else made[0]


def _by_autograd(operation: Operation, bound: Mapping[str, Any], name: str, G: Any) -> Any:
    """Column by column: a tensor (R, *shape), or a list of them, None where nothing comes back."""
    given = bound[name]
    if isinstance(given, Tensor) and operation.name == "copy":  # torch has its derivative in place only
        given = given.detach().clone().requires_grad_()
        source = {**bound, name: given}
        plain = torch.zeros_like(source["self"]) + source["src"]
        options = {"retain_graph": True, "is_grads_batched": True, "allow_unused": True}
        row_ = torch.autograd.grad(plain, given, G, **options)[0] if plain.requires_grad else None
        return given.new_zeros(len(G), *given.shape) if row_ is None else row_
    items = [_leaf(item) for item in (given if isinstance(given, list) else [given])]
    with torch.enable_grad():
        made = operation.call({**bound, name: items if isinstance(given, list) else items[0]})
    pairs = [
        (out, g)
        for out, g in zip(made if operation.many else (made,), G if operation.many else (G,), strict=True)
        if g is not None and out.requires_grad
    ]
    leaves = [item for item in items if _is_float(item)]
    columns = next(g for g in (G if operation.many else (G,)) if g is not None).shape[0]
    found: dict[int, Tensor] = {id(leaf): leaf.new_zeros(columns, *leaf.shape) for leaf in leaves}
    for k in range(columns if pairs else 0):
        outs, cotangents = [out for out, _ in pairs], [g[k] for _, g in pairs]
        rows = torch.autograd.grad(outs, leaves, cotangents, retain_graph=True, allow_unused=True)
        for leaf, one in zip(leaves, rows, strict=True):
            if one is not None:
                found[id(leaf)][k] = one
    result = [found.get(id(item)) for item in items]
    return result if isinstance(given, list) else result[0]


def _leaf(item: Any) -> Any:
    return item.detach().clone().requires_grad_() if _is_float(item) else item


def _pulled_close(found: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(expected, list):
        found = found if found is not None else [None] * len(expected)
        return len(found) == len(expected) and all(
            _pulled_close(f, e, tolerance) for f, e in zip(found, expected, strict=True)
        )
    if expected is None:
        return True
    return _close(torch.zeros_like(expected) if found is None else found, expected, tolerance)


def _close(found: Any, expected: Any, tolerance: float, noise: float = 0.0) -> bool:
    if isinstance(expected, tuple | list):
        return len(found) == len(expected) and all(
            _close(f, e, tolerance) for f, e in zip(found, expected, strict=True)
        )
    if not isinstance(expected, Tensor):
        return bool(found == expected)
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        return False
    if not expected.dtype.is_floating_point:
        return torch.equal(found, expected)
    finite = expected.isfinite()
    if not torch.equal(found[~finite].nan_to_num(), expected[~finite].nan_to_num()):
        return False
    found, expected = found.double()[finite], expected.double()[finite]
    if not expected.numel():
        return True
    return float((found - expected).abs().amax()) <= tolerance * float(expected.abs().amax()) + noise


def _same(a: Any, b: Any) -> bool:
    pairs = zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True)
    return all(_equal(x, y) for x, y in pairs if isinstance(x, Tensor))


def _equal(a: Tensor, b: Tensor) -> bool:
    """Bit by bit, NaN and all."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


# Contraction


class Case(NamedTuple):
    """One measurement."""

    quantity: Literal["trace", "diagonal"]
    loss: Literal["squares", "entropy"]
    n: int
    memory: int | None


_FEW = (
    Case("trace", "squares", 5, None),
    Case("trace", "entropy", 2, 1),
    Case("diagonal", "entropy", 5, 1),
    Case("diagonal", "squares", 1, None),
    Case("diagonal", "entropy", 2, None),
)
_ALL = tuple(
    Case(q, l, n, m)
    for q in ("trace", "diagonal")
    for l in ("squares", "entropy")  # noqa: E741
    for n in (1, 2, 5)
    for m in (None, 1)
)


def contraction_law(trial: Trial) -> Iterator[str]:
    """Trace and diagonal of the Gauss-Newton matrix are those of Jacobians taken one sample at a time."""
    inputs = trial.probe.draw(5, 9 + trial.seed)
    values = trial.values()
    tolerance = trial.tolerance if trial.differentiable else 1e-5
    one = [tuple(t[[i, i]] for t in inputs) for i in range(5)]  # with a twin: for one alone forward may be another
    with torch.no_grad():
        outputs = torch.cat([trial.outputs(values, x)[:1] for x in one])
    each = [jacobians(trial, values, x, outputs.shape[1]) for x in one]
    J = {
        name: torch.stack([j[name] for j in each]).reshape(5, outputs.shape[1], -1) for name in values
    }  # (5, K, entries)
    for case in _ALL if trial.wide else _FEW:
        try:
            found = _measured(trial, case, tuple(t[: case.n] for t in inputs))
        except MinsharpError:
            if trial.differentiable:
                raise
            return  # what torch has no derivative for may be refused, in words
        diagonals = {name: _gauss_newton(j[: case.n], outputs[: case.n], case) for name, j in J.items()}
        noise = 1e-20 * max((float(d.abs().sum()) for d in diagonals.values()), default=0.0)
        for name, got in found.items():
            expected = diagonals[name].view_as(values[name])
            expected = expected if case.quantity == "diagonal" else expected.sum()
            if not _close(got, expected, tolerance, noise if trial.differentiable else 1e-9):
                yield f"contraction, {case.quantity}: {name} is not that of the oracle for {case}"
                return
        missing = set(values) - set(found)
        if any(float(J[name].abs().sum()) for name in missing):
            yield f"contraction, {case.quantity}: {sorted(missing)} is not measured"


def _measured(trial: Trial, case: Case, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    n = case.n
    loss: nn.Module = nn.MSELoss(reduction="sum") if case.loss == "squares" else nn.CrossEntropyLoss()
    K = trial.network.graph.values[trial.network.graph.output].shape[1]
    targets = torch.zeros(n, K, dtype=torch.float64) if case.loss == "squares" else torch.zeros(n, dtype=torch.int64)
    data = (inputs[0] if len(inputs) == 1 else inputs, targets)
    if case.quantity == "trace":
        trace = hessian_trace(trial.network, data, loss, curvature="ggn", memory=case.memory)
        return {name: torch.tensor(float(v), dtype=torch.float64) for name, v in trace.by_parameter.items()}
    return dict(hessian_diagonal(trial.network, data, loss, curvature="ggn", memory=case.memory).by_parameter)


def _gauss_newton(J: Tensor, outputs: Tensor, case: Case) -> Tensor:
    """The diagonal of sum_i J_i^T H_i J_i: H = 2 for a sum of squares, (diag p - p p^T)/n for the mean entropy."""
    if case.loss == "squares":
        return 2 * J.square().sum((0, 1))
    p = outputs.softmax(1).unsqueeze(2)  # (n, K, 1)
    return ((p * J.square()).sum(1) - (p * J).sum(1).square()).sum(0) / len(J)


# Untouched


class Snapshot:
    """Everything that a law might change by mistake."""

    def __init__(self, trial: Trial):
        self.trial = trial
        self.inputs = trial.probe.draw(5, 9 + trial.seed)
        self.before = self._state()

    def _held(self) -> dict[str, Tensor]:
        probe = self.trial.probe
        return dict(probe.named_parameters()) | dict(probe.named_buffers()) | dict(self.trial.network.graph.constants)

    def _state(self) -> dict[str, Any]:
        held = self._held()
        state: dict[str, Any] = {name: t.detach().clone() for name, t in held.items()}
        state |= {f"{name} requires_grad": t.requires_grad for name, t in held.items()}
        state |= {f"mode of '{name}'": m.training for name, m in self.trial.probe.named_modules()}
        state |= {f"{name} grad": t.grad for name, t in held.items()}
        state["grad mode"] = torch.is_grad_enabled()
        state["random numbers"] = torch.get_rng_state()
        return state

    def changed(self) -> list[str]:
        """What is not as it was."""
        now = self._state()
        return [
            name
            for name, old in self.before.items()
            if not (
                _equal(now[name], old)
                if isinstance(old, Tensor) and isinstance(now[name], Tensor)
                else now[name] == old
            )
        ]


_CHECKS: dict[Law, Callable[[Trial], Iterator[str]]] = {
    "scale": scale_law,
    "linearity": linearity_law,
    "pull": pull_law,
    "contraction": contraction_law,
}


def check(
    example: Example,
    name: str = "",
    *,
    sizes: Mapping[str, int] | None = None,
    entry: Entry = "scaled",
    seed: int = 0,
    wide: bool = False,
    laws: Sequence[Law] = LAWS,
) -> list[str]:
    """Hold one example of the operation ``name`` to the laws; returns every violation in a line of text.

    ``sizes`` gives the letters of the example other sizes than it has by itself, ``entry`` is the way in which the
    samples reach the call, ``wide`` tries more of everything. Raises `UnfitError` where the call does not run at these
    sizes.

    >>> from minsharp.network.examples.notation import Example
    >>> check(Example(torch.relu, "x(n,i)"), "relu")
    []
    """
    sizes = example.default_sizes() | dict(sizes or {})
    try:
        trial = begin(name, example, sizes, entry, seed, wide)
    except UnfitError:
        raise
    except MinsharpError as error:
        return [f"read: {type(error).__name__}: {str(error).splitlines()[0]}"]
    snapshot = Snapshot(trial)
    violations: list[str] = []
    for law, holds in _CHECKS.items():
        if law in laws:
            try:
                violations += holds(trial)
            except Exception as error:
                violations.append(f"{law}: raised {type(error).__name__}: {_first_line(error)}")
    if example.free and "scale" in laws and not violations:
        violations += _given_away(trial)
    if "untouched" in laws:
        violations += [f"untouched: {what} has changed" for what in snapshot.changed()]
    return violations


def _given_away(trial: Trial) -> Iterator[str]:
    for scope in ("layer", "neuron"):
        found = freedom(trial, scope)
        if found.claimed != found.true:
            yield f"free, {scope}: the group has {found.claimed} free numbers, {found.true} would keep the function"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
