"""From any `nn.Module` that torch.export can trace to a `Network` of frozen records.

The only file that touches torch.export.
"""

import copy
import inspect
import logging
import operator
import random
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..errors import InputError, MinsharpError, NonFiniteError, ReadError
from ..graph.records import DEVICE, Graph, Operation, Ref, Samples, Value, store
from ..text import printable
from .linearity import Exactness, exactness
from .model import unwrapped

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]

_RESHAPES = {"view", "_unsafe_view", "reshape", "flatten", "unflatten"}
_BLANKS = {"new_zeros", "new_ones", "new_full", "new_empty"}  # use only the type and device of their argument
_CHECKS = {"_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size"}


@dataclass(frozen=True)
class Network:
    """A model that has been read: pass it wherever a model goes.

    It holds the model itself, not a copy of its parameters: every measurement uses their values of that moment.
    """

    module: nn.Module
    graph: Graph
    structure: pytree.TreeSpec
    constants: Mapping[str, Tensor]
    ties: Mapping[str, str]
    """Other names of parameters and buffers that go into the graph, and the names they have there."""

    def __getstate__(self) -> dict[str, Any]:
        """The structure as an example of it: a TreeSpec does not pickle without warnings."""
        leaves = list(range(self.structure.num_leaves))
        return {**self.__dict__, "structure": pytree.tree_unflatten(leaves, self.structure)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "structure": pytree.tree_structure(state["structure"])})

    @cached_property
    def exactness(self) -> dict[str, Exactness]:
        """For each parameter, whether the outputs are piecewise linear in it."""
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
        found = {name: _tensor(self.module, name) for name in self.graph.parameters}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def state(self) -> dict[str, Any]:
        """The current values of parameters and buffers, with the constants, on the parameters' device."""
        values: dict[str, Tensor] = {}
        names: dict[int, str] = {}
        for expected in self._held:
            tensor = _tensor(self.module, expected.name)
            if tensor is None or (tensor.dtype, tensor.shape) != (expected.dtype, expected.shape):
                now = "gone" if tensor is None else f"{tuple(tensor.shape)} {tensor.dtype}"
                raise _changed(f"'{expected.name}' was {expected.shape} {expected.dtype}, now it is {now}")
            if names.setdefault(id(tensor), expected.name) != expected.name:
                raise _changed(f"'{expected.name}' is now the same as '{names[id(tensor)]}'")
            values[expected.name] = tensor.detach()
        for other, name in self.ties.items():
            if not _same(_tensor(self.module, other), _tensor(self.module, name)):
                raise _changed(f"'{other}' was the same as '{name}', now it is not")
        device = next((values[name].device for name in self.graph.parameters), torch.device("cpu"))
        values |= {name: tensor.to(device) for name, tensor in self.constants.items()}
        return {**values, DEVICE.name: device}

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
                    f"{_shape_text(expected)} (n samples)"
                )
            values[expected.name] = tensor.contiguous()  # as the example was
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


def describe(inputs: Any) -> str:
    """Inputs as a user would describe them: shapes and types, no values."""
    if isinstance(inputs, Tensor):
        return f"a tensor of shape {tuple(inputs.shape)}, {inputs.dtype}"
    if isinstance(inputs, Mapping):
        return "{" + ", ".join(f"'{k}': {describe(v)}" for k, v in inputs.items()) + "}"
    if isinstance(inputs, tuple | list):
        return f"{type(inputs).__name__} of (" + ", ".join(describe(v) for v in inputs) + ")"
    return f"{type(inputs).__name__}"


def tensors_of(inputs: Any) -> list[Any]:
    """The tensors among some inputs, in order."""
    return [inputs] if isinstance(inputs, Tensor) else pytree.tree_leaves(inputs)


def _shape_text(value: Value) -> str:
    return "(" + ", ".join(["n", *map(str, value.shape[1:])]) + ")"


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Every submodule in eval mode, and afterwards each in the mode it was in."""
    modes = [(m, m.training) for m in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for m, training in modes:
            m.training = training


@contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Whatever draws random numbers inside, the generators come back as they were."""
    devices = [device] if device.type == "cuda" else []
    python = random.getstate()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)


def read(model: nn.Module | Network, example: Inputs) -> Network:
    """Read a network once, so that measuring it many times need not.

    ``example`` is a batch of inputs: a tensor, a tuple of tensors, or a dict of tensors by the names of forward's
    arguments. Any number of samples will do; sizes other than the batch's stay as they are in the example.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> read(model, torch.zeros(1, 3))
    Network(Sequential: 4 parameters, 3 operations, piecewise linear in each)
    """
    if isinstance(model, Network):
        return model
    model = unwrapped(model)
    args, kwargs = call_form(model, example)
    args, kwargs = pytree.tree_map_only(Tensor, _two_samples, (args, kwargs))
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    args, kwargs = pytree.tree_map_only(Tensor, lambda t: t.to(device), (args, kwargs))
    outside = sys.exception()
    with eval_mode(model), random_state_kept(device):
        try:
            writer = _Writer(model, _export(model, args, kwargs))
            network = writer.network()
            _check_samples_apart(network, args, kwargs)
        except MinsharpError:
            raise
        except Exception as error:
            if _is_interrupt(error, outside):
                raise KeyboardInterrupt from error
            _refuse_inputs(model, args, kwargs, example)
            raise ReadError(_export_message(model, error)) from error
    return network


def _is_interrupt(error: BaseException, outside: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: raised in the middle of torch.export, it may come out as something else.

    ``outside`` is what the caller was handling already: it and what is behind it has no part in this.
    """
    behind: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at is not outside and at not in behind:
        behind.append(at)
        at = at.__cause__ or at.__context__
    return any(isinstance(e, KeyboardInterrupt) for e in behind)


def call_form(model: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as forward takes them: a dict by keyword where its keys are forward's arguments."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping) and inputs:
        try:
            inspect.signature(model.forward).bind(**inputs)
        except TypeError:
            return (dict(inputs),), {}
        return (), dict(inputs)
    if isinstance(inputs, tuple | list) and inputs:
        return tuple(inputs), {}
    raise InputError(f"expected inputs as a tensor, a tuple of tensors or a dict of tensors, got {describe(inputs)}")


def _two_samples(tensor: Tensor) -> Tensor:
    """Two different samples: torch.export keeps a batch size free if it is not one."""
    if tensor.dim() == 0:
        raise InputError("an input is a single number; every input needs the samples along its first axis")
    if tensor.shape[0] == 0:
        raise InputError(f"the example is empty: an input has shape {tuple(tensor.shape)}")
    first = tensor.detach()[:1]
    second = tensor.detach()[1:2] if tensor.shape[0] > 1 else first.flatten().roll(1).view_as(first)
    return torch.cat([first, second])


# Export


def _export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """Export with the batch size left free, and without operations that write into their arguments."""
    signature = inspect.signature(model.forward)
    bound = dict(signature.bind(*args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and bound.get(name):
            raise ReadError(
                f"cannot read {type(model).__name__}: forward takes {list(bound[name])} through **{name}, and "
                "torch.export does not leave the batch size of those free. Name them in forward's signature, or pass "
                "them by position"
            )
    shapes = pytree.tree_map_only(Tensor, lambda _: {0: Dim.AUTO}, bound)
    with quiet_export():
        program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
        if any(mutates(node) for node in program.graph.nodes):
            program = program.run_decompositions({})
    return program


@contextmanager
def quiet_export() -> Iterator[None]:
    """Without torch.export's warnings and logs about its own insides, or fused kernels that have no derivative."""
    log, fast = logging.getLogger("torch"), torch.backends.mha.get_fastpath_enabled()
    level = log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.setLevel(logging.CRITICAL)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            log.setLevel(level)


def mutates(node: Node) -> bool:
    """Whether an operation writes into one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _refuse_inputs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], example: Inputs) -> None:
    """If the model does not run on the example at all, torch.export is not to blame. Tried on a copy."""
    try:
        with torch.no_grad():
            copy.deepcopy(model)(*args, **kwargs)
    except Exception as error:
        given = {t.dtype for t in pytree.tree_leaves((args, kwargs))}
        kinds = {p.dtype for p in model.parameters() if p.dtype.is_floating_point}
        hint = ""
        if kinds and not given & kinds:
            kind = next(iter(kinds))
            hint = f". Its parameters are {kind}: try inputs.to({kind})"
        raise InputError(
            f"{type(model).__name__} does not run on {describe(example)}: {_first_line(error)}{hint}"
        ) from error


def _export_message(model: nn.Module, error: Exception) -> str:
    name, cause = type(error).__name__, _first_line(error)
    message = f"cannot read {type(model).__name__}: torch.export stopped with {name}: {cause}"
    places = re.findall(r'File "([^"]+)", line (\d+), in forward\n\s*(.+)', _with_causes(error))
    if places:
        file, line, code = places[-1]
        message += f"\n  at {file}:{line}: {code}"
    if "DataDependent" in name or "data-dependent" in cause.lower():
        hint = (
            "forward branches on the values of a tensor, or makes a shape of them. Write the branch with "
            "torch.where, or measure the submodule that holds the layers"
        )
    else:
        hint = (
            "what torch.export.export(model, inputs, strict=False) cannot trace has to leave forward: values turned "
            "into Python numbers, NumPy, printing"
        )
    return f"{message}\n  {hint}"


def _with_causes(error: BaseException) -> str:
    """The text and traceback of an error and of those behind it."""
    return "".join(traceback.format_exception(error)) + str(error)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else "no message"


# Records


class _Writer:
    """Writes the records of one exported program."""

    def __init__(self, model: nn.Module, program: ExportedProgram):
        self.model = model
        self.program = program
        self.values: dict[str, Value] = {}
        self.names: dict[str, str] = {}  # node -> value
        self.operations: list[Operation] = []
        self.constants: dict[str, Tensor] = {}
        held = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        first: dict[int, str] = {}
        self.canonical = {name: first.setdefault(id(tensor), name) for name, tensor in held}

    def network(self) -> Network:
        graph = self.graph()
        ties = {other: name for other, name in self.canonical.items() if other != name and name in graph.values}
        return Network(self.model, graph, self.program.call_spec.in_spec, self.constants, ties)

    def graph(self) -> Graph:
        nodes = list(self.program.graph.nodes)
        for node in nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op != "output":
                raise ReadError(_not_plain(str(node.target), node))
        self._check_batch_sizes()
        order = dict.fromkeys([*self.canonical.values(), *self.values])  # what the model holds, in the model's order
        values = {name: self.values[name] for name in order if name in self.values}
        return Graph(values, tuple(self.operations), self._output())

    def _check_batch_sizes(self) -> None:
        """The graph has to hold for batches of every size."""
        for symbol, bounds in self.program.range_constraints.items():
            if int(bounds.lower) > 2 or bounds.upper < 1 << 40:
                raise ReadError(
                    f"forward does different things for different batch sizes: what was read holds for {symbol} in "
                    f"{bounds} only. Measure a module that treats all batches alike"
                )

    def _placeholder(self, node: Node) -> None:
        signature = self.program.graph_signature
        if node.name in signature.inputs_to_parameters:
            self._held(node, "parameter", self.canonical[signature.inputs_to_parameters[node.name]])
        elif node.name in signature.inputs_to_buffers:
            self._held(node, "buffer", self.canonical[signature.inputs_to_buffers[node.name]])
        elif node.name in signature.inputs_to_lifted_tensor_constants:
            target = signature.inputs_to_lifted_tensor_constants[node.name]
            self.constants["%" + node.name] = self.program.constants[target].detach()
            self._held(node, "constant", "%" + node.name)
        else:
            tensor = node.meta.get("val")
            if not isinstance(tensor, Tensor):
                raise InputError(f"input '{node.name}' is {describe(tensor)}; every input has to be a tensor")
            shape, axes = _one_sample(tensor.shape)
            if axes != [0]:
                raise ReadError(
                    f"forward fixes the batch size: input '{node.name}' was read as {tuple(tensor.shape)}. "
                    f"Replace numbers that stand for the batch size by x.shape[0] or -1"
                )
            self.names[node.name] = "%" + node.name
            value = Value("%" + node.name, "input", shape, tensor.dtype, Samples(0))
            self.values[value.name] = value

    def _held(self, node: Node, kind: Any, name: str) -> None:
        tensor = node.meta["val"]
        self.names[node.name] = name
        if node.users and name not in self.values:
            self.values[name] = Value(name, kind, tuple(tensor.shape), tensor.dtype)

    def _call(self, node: Node) -> None:
        target: Any = node.target
        made: Any = node.meta.get("val")
        if target is operator.getitem and _is_many(node.args[0]):
            source: Any = node.args[0]
            self.names[node.name] = f"{self.names[source.name]}[{node.args[1]}]"
            return
        if not isinstance(target, torch._ops.OpOverload) and not _is_number(node):
            raise ReadError(_not_plain(str(target), node))
        name, arguments, keywords = _arguments(node, self.names)
        if name in _CHECKS:
            return
        _refuse_random(target, arguments, node)
        many = isinstance(made, tuple | list)
        own = "%" + node.name
        self.names[node.name] = own
        outputs = tuple(f"{own}[{i}]" for i in range(len(made))) if many else (own,)
        operation = Operation(name, target, arguments, keywords, outputs, many, _module(node), _source(node))
        for output, tensor in zip(outputs, made if many else (made,), strict=True):
            if isinstance(tensor, Tensor):
                self.values[output] = self._activation(output, tensor, operation)
        self.operations.append(operation)

    def _activation(self, name: str, tensor: Tensor, operation: Operation) -> Value:
        if tensor.dtype.is_complex:
            raise ReadError(f"{operation.where} makes complex numbers: only real networks can be measured")
        shape, axes = _one_sample(tensor.shape)
        sources = [self.values[v] for _, v in operation.reads if v in self.values]
        varying = [value for value in sources if value.samples is not None]
        lost = not axes and bool(varying) and operation.name not in _BLANKS
        mixed = len(axes) > 1 or (lost and tensor.dtype.is_floating_point and tensor.numel() > 0)
        if mixed:
            raise ReadError(
                f"{operation.where} mixes the samples of a batch: its result has shape {tuple(tensor.shape)}. "
                "Curvature is a sum over samples only if each output depends on its own input"
            )
        samples = _locate(shape, axes[0], operation, varying) if axes else None
        return Value(name, "activation", shape, tensor.dtype, samples)

    def _output(self) -> str:
        made = [name for name in self.program.graph_signature.user_outputs if isinstance(name, str)]
        structure = self.program.call_spec.out_spec
        if structure is None or not structure.is_leaf() or len(made) != 1:
            raise ReadError(
                f"the model returns {_structure_text(structure)}, expected one tensor of outputs. Wrap it in a "
                "module whose forward returns the logits alone"
            )
        name = self.names[made[0]]
        value = self.values.get(name)
        if value is None or value.samples != Samples(0):
            raise ReadError("the outputs have to be a tensor with the samples along its first axis")
        if not value.dtype.is_floating_point:
            raise ReadError(f"the outputs have type {value.dtype}, expected floating point logits")
        return name


def _not_plain(what: str, node: Node) -> str:
    place = f"module '{_module(node)}'" if _module(node) else "forward"
    return (
        f"{place} holds {what}, which is not a plain operation. Control flow, torch.no_grad and autocast inside "
        "forward cannot be measured: move them out of it"
    )


def _refuse_random(target: Any, arguments: Mapping[str, Any], node: Node) -> None:
    """Operations that draw random numbers even in eval mode."""
    seeded = isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags
    idle = arguments.get("train") is False or arguments.get("training") is False or arguments.get("dropout_p") == 0.0
    if seeded and not idle:
        name = target.overloadpacket.__name__
        hint = ": pass training=self.training to it" if "dropout" in name else ""
        raise ReadError(
            f"{name} in module '{_module(node)}' draws random numbers, even in eval mode{hint}. A network that is "
            "different every time has no curvature"
        )


def _structure_text(structure: pytree.TreeSpec) -> str:
    kind = getattr(structure, "type", None)
    return f"a {kind.__name__}" if isinstance(kind, type) else "no tensor"


def _is_many(node: Any) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), tuple | list)


def _is_number(node: Node) -> bool:
    """Arithmetic on sizes."""
    return isinstance(node.meta.get("val"), int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)


def _arguments(node: Node, names: Mapping[str, str]) -> tuple[str, dict[str, Any], frozenset[str]]:
    """The call's arguments by name, defaults filled in, with a Ref for each value."""

    def record(given: Any) -> Any:
        if isinstance(given, Node):
            return Ref(names[given.name])
        if isinstance(given, tuple | list):
            return tuple(record(item) for item in given)
        return DEVICE if isinstance(given, torch.device) else given

    if not isinstance(node.target, torch._ops.OpOverload):
        plain = {str(i): record(given) for i, given in enumerate(node.args)}
        return getattr(node.target, "__name__", str(node.target)), plain, frozenset()
    arguments, keywords = {}, set()
    for i, argument in enumerate(node.target._schema.arguments):
        given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        arguments[argument.name] = record(given)
        if argument.kwarg_only:
            keywords.add(argument.name)
    return node.target.overloadpacket.__name__, arguments, frozenset(keywords)


def _module(node: Node) -> str:
    stack = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    return stack[-1] if stack and not stack[-1].startswith("_empty_nn_module_stack") else ""


def _source(node: Node) -> str:
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    return lines[-1] if lines and "torch/nn/modules" not in "".join(lines[-2:]) else ""


def _one_sample(shape: torch.Size) -> tuple[tuple[int, ...], list[int]]:
    """The shape for a batch of one, and the axes that grow with the batch."""
    sizes: list[int] = []
    axes: list[int] = []
    size: Any
    for d, size in enumerate(shape):
        if isinstance(size, int) or not size.node.expr.free_symbols:
            sizes.append(int(size))
            continue
        at = [int(size.node.expr.subs(dict.fromkeys(size.node.expr.free_symbols, n))) for n in (2, 3, 5)]
        coefficient = at[1] - at[0]
        if at != [2 * coefficient, 3 * coefficient, 5 * coefficient]:
            raise ReadError(f"a tensor has the size {size} for a batch of size s: not a multiple of the batch")
        sizes.append(coefficient)
        axes.append(d)
    return tuple(sizes), axes


def _locate(shape: tuple[int, ...], axis: int, operation: Operation, varying: list[Value]) -> Samples:
    """Where along its axis the samples sit, if that axis also runs over something else."""
    parts = shape[axis]
    if parts == 1:
        return Samples(axis)
    if operation.name in _RESHAPES:
        (source,) = varying
        assert source.samples is not None
        step = source.samples.inner * _product(source.shape[source.samples.axis + 1 :])
        inner, rest = divmod(step, _product(shape[axis + 1 :]))
        if rest == 0 and inner and parts % inner == 0:
            return Samples(axis, parts // inner, inner)
    if operation.name == "cat":
        inners = {v.samples.inner for v in varying if v.samples is not None}
        if inners == {1} and sum(v.shape[axis] for v in varying) == parts:
            return Samples(axis, parts, 1)
    layouts = {
        (v.samples.outer, v.samples.inner)
        for v in varying
        if v.samples is not None and v.samples.outer * v.samples.inner == parts
    }
    if len(layouts) == 1:
        return Samples(axis, *layouts.pop())
    raise ReadError(f"cannot follow the samples through {operation.where}: it joins them with another axis")


def _product(sizes: tuple[int, ...]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result


def _check_samples_apart(network: Network, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Neither sample's output may change with the other sample, or with its own place in the batch."""
    generator = torch.Generator().manual_seed(0)
    pair = pytree.tree_map_only(Tensor, lambda t: _unlike(t, generator), (args, kwargs))
    names = [v.name for v in network.graph.inputs]

    def outputs(*order: int) -> Tensor:
        inputs = [t[list(order)] for t in pytree.tree_leaves(pair)]
        values = network.graph.run(network.state() | dict(zip(names, inputs, strict=True)))
        result: Tensor = values[network.graph.output]
        return result

    with torch.no_grad():
        ab, aa, bb = outputs(0, 1), outputs(0, 0), outputs(1, 1)
    if not all(map(is_finite, (ab, aa, bb))):
        return  # measuring says which layer first
    same = ((ab[0], aa[0]), (aa[1], aa[0]), (ab[1], bb[1]), (bb[1], bb[0]))
    scale = float(torch.stack([ab, aa, bb]).abs().amax())
    if any(float((x - y).abs().amax()) > 1e-3 * scale for x, y in same):
        raise ReadError(
            "the outputs for one sample change with the other samples of the batch, even in eval mode "
            "(normalisation by batch statistics?): curvature is not a sum over samples there"
        )


def _unlike(pair: Tensor, generator: torch.Generator) -> Tensor:
    """Two samples that differ, whatever the example was."""
    if pair.dtype.is_floating_point:
        noise = torch.randn(pair[0].shape, generator=generator).to(pair)
        size = pair.std() if bool(pair.std() > 0) else pair.new_ones(())
        return torch.stack([pair[0], pair[0] + size * noise])
    return (
        pair
        if not torch.equal(pair[0], pair[1])
        else torch.stack([pair[0], pair[0].flatten().roll(1).view_as(pair[0])])
    )


def is_finite(tensor: Tensor) -> bool:
    """Whether no entry is NaN or infinite: a sum says so in one pass, unless it overflows itself."""
    if not tensor.dtype.is_floating_point:
        return True
    total = tensor.sum() if tensor.dim() else tensor
    return isfinite(total.item()) or bool(torch.isfinite(tensor).all())


def first_non_finite(network: Network, inputs: Mapping[str, Tensor]) -> NonFiniteError:
    """An error that names where NaN or infinity comes up first on the way through the network."""
    values = network.state()
    for name, given in [*values.items(), *inputs.items()]:
        masks = name in network.graph.values and network.graph.values[name].kind in ("buffer", "constant")
        if isinstance(given, Tensor) and not masks and not is_finite(given):
            return NonFiniteError(f"{network.graph.values[name].kind} '{name.removeprefix('%')}' {_bad(given)}")
    values |= inputs
    with torch.no_grad():
        for operation in network.graph.operations:
            result = operation.call(operation.bind(values))
            for output in result if operation.many else (result,):
                if isinstance(output, Tensor) and not is_finite(output):
                    return NonFiniteError(f"the output of {operation.where} {_bad(output)}, its inputs are finite")
            store(values, operation, result)
    return NonFiniteError("the outputs are not finite, but no single operation shows it")


def _bad(tensor: Tensor) -> str:
    nans, infinities = int(tensor.isnan().sum()), int(tensor.isinf().sum())
    return f"holds {nans} NaN and {infinities} infinite of {tensor.numel()} numbers"
