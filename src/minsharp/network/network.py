"""A model that has been read: its records, and the tensors that it holds now."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..errors import InputError, ReadError
from ..graph.records import DEVICE, Graph, Value
from ..subject.batches import DIFFERENT_SIZES
from ..subject.fingerprint import fingerprint
from ..subject.inputs import Inputs, call_form, describe
from ..subject.model import ReadModel
from ..subject.modes import LOCK
from ..text import printable
from .linearity import Exactness, exactness


@dataclass(frozen=True)
class Network(ReadModel):
    """A model that has been read: pass it wherever a model goes.

    It holds the model itself, not a copy of its parameters: every measurement uses their values of that moment. It
    pickles if the model does.
    """

    module: nn.Module
    graph: Graph
    structure: pytree.TreeSpec
    ties: Mapping[str, str]
    """Other names of parameters and buffers that go into the graph, and the names they have there."""
    class_axis: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The structure as an example of it: a TreeSpec does not pickle without warnings."""
        leaves = list(range(self.structure.num_leaves))
        return {**self.__dict__, "structure": pytree.tree_unflatten(leaves, self.structure)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "structure": pytree.tree_structure(state["structure"])})

    @property
    def exactness(self) -> dict[str, Exactness]:
        """For each parameter, whether the outputs are piecewise linear in it, by what the table says now."""
        return exactness(self.graph)

    @cached_property
    def _held(self) -> list[Value]:
        """What of the graph the model holds."""
        return [v for v in self.graph.values.values() if v.kind in ("parameter", "buffer")]

    @cached_property
    def _takes_one_tensor(self) -> bool:
        return bool(self.structure == pytree.tree_structure(((0,), {})))

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters that the forward pass uses, by name, in the model's order."""
        with LOCK:
            found = {name: _tensor(self.module, name) for name in self.graph.parameters}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def state(self) -> dict[str, Any]:
        """The current values of parameters and buffers, with the constants, on the parameters' device."""
        with LOCK:
            values: dict[str, Any] = dict(self._tensors())
        device = next((values[name].device for name in self.graph.parameters), torch.device("cpu"))
        values |= {name: tensor.to(device) for name, tensor in self.graph.constants.items()}
        return {**values, DEVICE.name: device}

    def _tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers as they are; refuses a model that changed since it was read."""
        values: dict[str, Tensor] = {}
        names: dict[int, str] = {}
        for expected in self._held:
            tensor = _tensor(self.module, expected.name)
            if tensor is None or (tensor.dtype, tensor.shape) != (expected.dtype, expected.shape):
                now = "gone" if tensor is None else f"{tuple(tensor.shape)} {tensor.dtype}"
                raise _changed(f"'{expected.name}' was {expected.shape} {expected.dtype}, now it is {now}")
            if names.setdefault(id(tensor), expected.name) != expected.name:
                raise _changed(f"'{expected.name}' is now the same as '{names[id(tensor)]}'")
            values[expected.name] = tensor.detach().clone() if tensor.is_inference() else tensor.detach()
        for other, name in self.ties.items():
            if not _same(_tensor(self.module, other), _tensor(self.module, name)):
                raise _changed(f"'{other}' was the same as '{name}', now it is not")
        return values

    def digests(self) -> dict[str, str]:
        """Of each parameter and buffer that goes into the graph a digest of its type, shape and values."""
        with LOCK:
            return {name: fingerprint(tensor) for name, tensor in self._tensors().items()}

    def bind(self, inputs: Inputs) -> dict[str, Tensor]:
        """One batch of inputs as values of the graph; refuses what the network was not read for."""
        tensors = self._in_order(inputs)
        values: dict[str, Tensor] = {}
        sizes = {t.shape[0] if isinstance(t, Tensor) and t.dim() else None for t in tensors}
        for expected, tensor in zip(self.graph.inputs, tensors, strict=True):
            name = expected.name.removeprefix("%")
            if not isinstance(tensor, Tensor):
                raise InputError(f"input '{name}' is a {type(tensor).__name__}, expected a tensor")
            if tensor.dtype != expected.dtype:
                raise InputError(
                    f"input '{name}' has type {tensor.dtype}, the network was read for {expected.dtype}. "
                    f"Convert it: {name}.to({expected.dtype})"
                )
            if tensor.dim() == 0 or tuple(tensor.shape[1:]) != expected.shape[1:]:
                raise InputError(
                    f"input '{name}' has shape {tuple(tensor.shape)}, the network was read for "
                    f"{_shape_text(expected)} (n samples); for samples of several sizes, {DIFFERENT_SIZES}"
                )
            values[expected.name] = (
                tensor.clone() if tensor.is_inference() else tensor
            ).contiguous()  # as in the example
        if len(sizes) != 1:
            raise InputError(f"the inputs hold different numbers of samples: {describe(inputs)}")
        return values

    def _in_order(self, inputs: Inputs) -> list[Any]:
        if isinstance(inputs, Tensor) and self._takes_one_tensor:
            return [inputs]
        tensors, structure = pytree.tree_flatten(call_form(self.module, inputs))
        if structure != self.structure:
            raise InputError(f"the network was read for inputs {self._expected()}, got {describe(inputs)}")
        return tensors

    def _expected(self) -> str:
        inputs = self.graph.inputs
        return ", ".join(f"{v.name.removeprefix('%')} {_shape_text(v)}" for v in inputs)

    def __repr__(self) -> str:
        inexact = [name for name, e in self.exactness.items() if not e]
        text = f"{len(self.graph.parameters)} parameters, {len(self.graph.operations)} operations"
        tail = f"not piecewise linear in {len(inexact)} of them" if inexact else "piecewise linear in each"
        return f"Network({printable(type(self.module).__name__)}: {text}, {tail})"


def state_of(module: nn.Module, graph: Graph) -> dict[str, Tensor]:
    """What a module holds now of the parameters and buffers of a graph, and the constants."""
    with LOCK:
        held = {v.name: _tensor(module, v.name) for v in graph.values.values() if v.kind in ("parameter", "buffer")}
    return {**{name: tensor for name, tensor in held.items() if tensor is not None}, **graph.constants}


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two names still hold one tensor; of buffers, which a move to another device copies, one value."""
    if a is b or a is None or b is None or isinstance(a, nn.Parameter) or isinstance(b, nn.Parameter):
        return a is b
    return torch.equal(a, b)


def _changed(how: str) -> ReadError:
    return ReadError(f"the model changed since it was read: {how}. Read it again: minsharp.read(model, example)")


def _tensor(module: nn.Module, name: str) -> Tensor | None:
    """A parameter or buffer by its path; None where there is none now."""
    *owners, attribute = name.split(".")
    held = module
    for owner in owners:
        inner = held._modules.get(owner)
        if inner is None:
            return None
        held = inner
    found = held._parameters.get(attribute)  # not any attribute: what pruning leaves behind is no parameter
    return held._buffers.get(attribute) if found is None else found


def _shape_text(value: Value) -> str:
    return "(" + ", ".join(["n", *map(str, value.shape[1:])]) + ")"
