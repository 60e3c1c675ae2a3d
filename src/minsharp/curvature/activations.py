"""Curvature with respect to what goes into each layer, instead of its weights.

Let v_i be what goes into a layer for sample i. With a zero d added to it, v_i + d, the same d for all samples, each
output depends on d through its own v_i alone, so that do_i/dd = do_i/dv_i, and the Hessian of the sum of the terms in
d is the sum over samples of d²term_i/dv_i². A d is a parameter like any bias. So the graph is written anew with one
such zero for each layer, and everything that measures parameters measures these: traces, diagonals, what is exact.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..graph.records import DEVICE, Graph, Operation, Ref, Samples, Value
from ..graph.slots import Slot
from ..network.network import Network
from ..network.structure import Structure
from ..operations import passing


@dataclass(frozen=True, repr=False)
class Activations(Network):
    """A network whose parameters are zeros, each added to what goes into one layer.

    It runs as the network that it was made of. The weights count as constants; `skipped` tells for each layer that is
    left out why.
    """

    original: Network | None = None
    skipped: Mapping[str, str] | None = None

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The zeros by the names of the layers, in the order in which they run."""
        return {name: zero.requires_grad_() for name, zero in self._zeros(self._original.state()).items()}

    def state(self) -> dict[str, Any]:
        """What the network that it was made of holds now, and the zeros."""
        held = self._original.state()
        return {**held, **self._zeros(held)}

    def digests(self) -> dict[str, str]:
        """Digests of the weights that the layers have."""
        return self._original.digests()

    @property
    def _original(self) -> Network:
        assert self.original is not None
        return self.original

    def _zeros(self, held: Mapping[str, Any]) -> dict[str, Tensor]:
        found = self.graph.of_kind("parameter")
        return {v.name: torch.zeros(v.shape, dtype=v.dtype, device=held[DEVICE.name]) for v in found}


def activations(network: Network) -> Activations:
    """The same network with the inputs of its layers in place of its parameters.

    A layer is an operation that meets a parameter. It goes by the path of the module that calls it, with the parameter
    behind it where a module has several, with the argument where several tensors go in, and with a number from the
    second call on: ``conv1``, ``block (scale)``, ``bilinear (input2)``, ``fc (2)``. What the model's own forward does
    goes by the operation, ``add (positions)``. Where one tensor goes into several layers, or past one
    in a residual connection, each layer's input is a tensor of its own.

    For a single layer with zero weights nothing depends on the inputs; with weights W and p = 1/K it is
    Tr[W^T (diag p - pp^T) W]:

    >>> import minsharp as ms
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2, bias=False))
    >>> with torch.no_grad():
    ...     _ = model[2].weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    ...     _ = model[0].weight.zero_(), model[0].bias.fill_(-1.0)
    >>> layers = activations(ms.read(model, torch.zeros(1, 3)))
    >>> dict(ms.hessian_trace(layers, torch.zeros(5, 3)).by_parameter)
    {'0': 0.0, '2': 1.0}
    """
    found = list(_inputs(network.graph))
    names = _names(found, network.graph.values)
    without = {n: _reason(i) for i, n in zip(found, names, strict=True) if not i.value.dtype.is_floating_point}
    layers = {n: i for i, n in zip(found, names, strict=True) if n not in without}
    if not layers:
        raise InputError(
            "no layer has inputs that the loss could be differentiated in"
            + "".join(f"\n  {name}: {reason}" for name, reason in without.items())
        )
    graph = _shifted(network.graph, layers)
    return Activations(network.module, graph, network.structure, network.ties, network.class_axis, network, without)


class _Input(NamedTuple):
    """A tensor with samples that goes into a layer, and the parameter that makes the operation one."""

    operation: Operation
    slot: Slot
    value: Value
    parameter: str
    several: bool
    """Whether other tensors with samples go into the same operation."""


def _inputs(graph: Graph) -> Iterator[_Input]:
    structure = Structure(graph, graph.parameters)
    for operation, meetings in structure.meetings.items():
        if not meetings:
            continue
        of = structure.depends[meetings[0].leaf]
        parameter = next(name for name in graph.parameters if name in of)
        read = [(slot, graph.values[name]) for slot, name in _with_samples(operation, structure)]
        for slot, value in read:
            yield _Input(operation, slot, value, parameter, len(read) > 1)


def _with_samples(operation: Operation, structure: Structure) -> list[tuple[Slot, str]]:
    """What goes into an operation for each sample: through which derivatives pass, or indices."""
    through = set(passing(operation))
    return [
        (slot, name)
        for slot, name in operation.reads
        if name in structure.varies
        and ((slot, name) in through or not structure.graph.values[name].dtype.is_floating_point)
    ]


def _reason(given: _Input) -> str:
    return f"its input is {given.value.dtype}, and the loss has no derivative in it"


def _names(found: list[_Input], taken: Container[str]) -> list[str]:
    """One for each, all different, and none that the graph has already."""
    held: dict[str, set[str]] = {}
    for given in found:
        held.setdefault(_home(given), set()).add(given.parameter)
    names: list[str] = []
    for given in found:
        home = _home(given)
        tell = not home or len(held[home]) > 1
        parts = [given.parameter.removeprefix(f"{home}.")] if tell else []
        parts += [_argument(given.slot)] if given.several else []
        name = f"{home or given.operation.name} ({', '.join(parts)})" if parts else home
        calls = (f"{name} ({k})" if k > 1 else name for k in count(1))
        names.append(next(call for call in calls if call not in names and call not in taken))
    return names


def _argument(slot: Slot) -> str:
    return slot.argument if slot.place is None else f"{slot.argument} {slot.place}"


def _home(given: _Input) -> str:
    """The path of the module that a layer belongs to, empty for the model itself.

    A module that uses the weights of a part of it without calling that part, as attention does with ``out_proj``, has
    them as a layer by itself. What is kept for a parametrization is no part that computes anything.
    """
    module, owner = given.operation.module, given.parameter.rpartition(".")[0]
    inner = owner.startswith(f"{module}." if module else "") and ".parametrizations." not in f".{owner}."
    return owner if inner else module


def _shifted(graph: Graph, layers: Mapping[str, _Input]) -> Graph:
    """The graph with a zero added to each input of a layer; what were parameters are constants of the model."""
    held = {name: replace(v, kind="buffer") if v.kind == "parameter" else v for name, v in graph.values.items()}
    zeros: dict[str, Value] = {}
    made: dict[str, Value] = {}
    before: dict[Operation, list[Operation]] = {}
    into: dict[Operation, dict[Slot, str]] = {}
    for name, given in layers.items():
        zero, steps = _sum(name, given)
        zeros[name] = zero
        made |= {value.name: value for value, _ in steps}
        before.setdefault(given.operation, []).extend(step for _, step in steps)
        into.setdefault(given.operation, {})[given.slot] = steps[-1][0].name
    operations: list[Operation] = []
    for operation in graph.operations:
        operations += [*before.get(operation, []), _reading(operation, into.get(operation, {}))]
    return replace(graph, values={**zeros, **held, **made}, operations=tuple(operations))


def _reading(operation: Operation, instead: Mapping[Slot, str]) -> Operation:
    """The operation with other values in some of its slots."""
    if not instead:
        return operation
    arguments = dict(operation.arguments)
    for slot, name in instead.items():
        given = arguments[slot.argument]
        if slot.place is None:
            arguments[slot.argument] = Ref(name)
        else:
            arguments[slot.argument] = (*given[: slot.place], Ref(name), *given[slot.place + 1 :])
    return replace(operation, arguments=arguments)


def _sum(layer: str, given: _Input) -> tuple[Value, list[tuple[Value, Operation]]]:
    """A zero for one sample, and the operations that add it to each, with what they make.

    Where the axis of the samples runs over something else too, (..., outer*n*inner, ...), it is split for the sum.
    """
    value, samples = given.value, given.value.samples
    assert samples is not None
    name = f"{value.name}#into {layer}"

    def step(kind: str, target: Any, arguments: dict[str, Any], result: Value) -> tuple[Value, Operation]:
        module, source = given.operation.module, given.operation.source
        return result, Operation(kind, target, arguments, frozenset(), (result.name,), False, module, source)

    a, outer, inner = samples.axis, samples.outer, samples.inner
    together = outer * inner == 1
    shape = value.shape if together else (*value.shape[:a], outer, 1, inner, *value.shape[a + 1 :])
    axis = a if together else a + 1
    entries = shape[axis + 1 :] if prod(shape[:axis]) == 1 else shape  # the others broadcast
    zero = Value(layer, "parameter", entries, value.dtype)
    apart = Value(f"{name}#apart", "activation", shape, value.dtype, Samples(axis))
    shifted = replace(apart, name=f"{name}#sum")
    add, reshape = torch.ops.aten.add.Tensor, torch.ops.aten.reshape.default
    if together:
        return zero, [step("add", add, {"self": Ref(value.name), "other": Ref(layer)}, shifted)]
    split = (*shape[:axis], -1, *shape[axis + 1 :])
    whole = (*value.shape[:a], -1, *value.shape[a + 1 :])
    return zero, [
        step("reshape", reshape, {"self": Ref(value.name), "shape": split}, apart),
        step("add", add, {"self": Ref(apart.name), "other": Ref(layer)}, shifted),
        step("reshape", reshape, {"self": Ref(shifted.name), "shape": whole}, replace(value, name=name)),
    ]
