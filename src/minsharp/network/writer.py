"""From the graph that torch.export wrote to frozen records."""

import operator
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from ..errors import InputError, ReadError
from ..graph.records import DEVICE, Graph, Operation, Ref, Samples, Value, table_name
from ..operations import TABLE, passing, row
from ..subject.inputs import describe
from .layout import locate, one_sample, settled
from .places import own_name, place, source, where

_DROPOUTS = frozenset({"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout"})
_CASTS = frozenset({"to", "_to_copy", "type_as", "copy"})


class Writer:
    """Writes the records of one exported program: of the operations that the outputs depend on, and of no other."""

    def __init__(self, model: nn.Module, program: ExportedProgram):
        self.program = program
        self.values: dict[str, Value] = {}
        self.names: dict[str, str] = {}  # node -> value
        self.operations: list[Operation] = []
        self.constants: dict[str, Tensor] = {}
        self.dependent: set[str] = set()  # values that depend on parameters
        signature = program.graph_signature
        self.held: dict[str, tuple[Literal["parameter", "buffer"], str]] = {
            **{node: ("parameter", name) for node, name in signature.inputs_to_parameters.items()},
            **{node: ("buffer", name) for node, name in signature.inputs_to_buffers.items()},
        }
        self.lifted = signature.inputs_to_lifted_tensor_constants
        bounds = program.range_constraints.items()
        self.sizes = {symbol: int(b.lower) for symbol, b in bounds if b.lower == b.upper}  # no other is possible
        held = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        first: dict[int, str] = {}
        self.canonical = {name: first.setdefault(id(tensor), name) for name, tensor in held}

    @property
    def ties(self) -> dict[str, str]:
        """Other names of what the graph holds, and the names there."""
        held = {name for name, value in self.values.items() if value.kind in ("parameter", "buffer")}
        return {other: name for other, name in self.canonical.items() if other != name and name in held}

    def graph(self) -> Graph:
        """The whole graph as records."""
        end = self._end()
        live = _needed(end)
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, node in live)
            elif node in live and node.op == "call_function":
                self._call(node)
            elif node in live:
                raise ReadError(_not_plain(str(node.target), node))
        return self._pruned(self._output(end))

    def _pruned(self, output: str) -> Graph:
        """The records that the output needs: some calls were written with fewer arguments than they came with."""
        operations: list[Operation] = []
        needed = {output}
        for operation in reversed(self.operations):
            if needed.intersection(operation.outputs):
                operations.append(operation)
                needed.update(operation.outputs, (name for _, name in operation.reads))
        order = dict.fromkeys([*self.canonical.values(), *self.values])  # what the model holds, in the model's order
        kept = [name for name in order if name in self.values and self._stays(name, needed)]
        constants = {name: tensor for name, tensor in self.constants.items() if name in needed}
        return Graph({name: self.values[name] for name in kept}, tuple(reversed(operations)), output, constants)

    def _stays(self, name: str, needed: set[str]) -> bool:
        return name in needed or self.values[name].kind == "input"

    def _end(self) -> Node:
        """The node whose value the model returns."""
        made: Any = next(node for node in self.program.graph.nodes if node.op == "output").args[0]
        kinds = [spec.kind for spec in self.program.graph_signature.output_specs]
        (end,) = (node for node, kind in zip(made, kinds, strict=True) if kind is OutputKind.USER_OUTPUT)
        if not isinstance(end, Node):
            raise ReadError("the outputs do not depend on the inputs: forward returns a constant")
        return end

    def _placeholder(self, node: Node, live: bool) -> None:
        if node.name in self.held:
            kind, name = self.held[node.name]
            self._held(node, kind, self.canonical[own_name(name)], live)
        elif node.name in self.lifted:
            self._held(node, "constant", "%" + node.name, live)
            if live:
                self.constants["%" + node.name] = self.program.constants[self.lifted[node.name]].detach()
        else:
            self._input(node)

    def _input(self, node: Node) -> None:
        tensor = node.meta.get("val")
        if not isinstance(tensor, Tensor):
            raise InputError(f"input '{node.name}' is {describe(tensor)}; every input has to be a tensor")
        shape, axes = one_sample(tensor.shape, self.sizes)
        if axes != [0]:
            raise ReadError(
                f"forward fixes the batch size: input '{node.name}' was read as {tuple(tensor.shape)}. "
                f"Replace numbers that stand for the batch size, as len(x) makes them, by x.shape[0] or -1"
            )
        self.names[node.name] = "%" + node.name
        value = Value("%" + node.name, "input", shape, tensor.dtype, Samples(0))
        self.values[value.name] = value

    def _held(self, node: Node, kind: Any, name: str, live: bool) -> None:
        tensor = node.meta["val"]
        self.names[node.name] = name
        if live and name not in self.values:
            self.values[name] = Value(name, kind, tuple(tensor.shape), tensor.dtype)
        if kind == "parameter":
            self.dependent.add(name)

    def _call(self, node: Node) -> None:
        target: Any = node.target
        made: Any = node.meta.get("val")
        if target is operator.getitem and _is_many(node.args[0]):
            origin: Any = node.args[0]
            self.names[node.name] = f"{self.names[origin.name]}[{node.args[1]}]"
            return
        if not isinstance(target, torch._ops.OpOverload) and not _is_number(node):
            raise ReadError(_not_plain(str(target), node))
        name, target, arguments, keywords = self._recorded(node)
        _refuse_random(target, arguments, node)
        if self._does_nothing(name, arguments):
            self.names[node.name] = arguments["self"].name
            return
        many = isinstance(made, tuple | list)
        own = "%" + node.name
        self.names[node.name] = own
        outputs = tuple(f"{own}[{i}]" for i in range(len(made))) if many else (own,)
        operation = Operation(name, target, arguments, keywords, outputs, many, place(node), source(node))
        for output, tensor in zip(outputs, made if many else (made,), strict=True):
            if isinstance(tensor, Tensor):
                self.values[output] = self._activation(output, tensor, operation)
        if any(value in self.dependent for _, value in passing(operation)):
            self.dependent.update(outputs)
        self.operations.append(operation)

    def _does_nothing(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Views of a tensor as itself, which backward hooks leave behind, and detaching where there is no gradient."""
        if name == "view_as":
            return bool(arguments["self"] == arguments["other"])
        return name == "alias" or (name == "detach" and arguments["self"].name not in self.dependent)

    def _recorded(self, node: Node) -> tuple[str, Any, dict[str, Any], frozenset[str]]:
        """Name, target and arguments of a call, in a form that does not depend on where and how it runs."""
        target: Any = node.target
        name, arguments, keywords = _arguments(node, self.names)
        made: Any = node.meta.get("val")
        if name in ("view", "_unsafe_view") and "size" in arguments:  # the strides may be others when it runs
            return (
                "reshape",
                torch.ops.aten.reshape.default,
                {"self": arguments["self"], "shape": arguments["size"]},
                keywords,
            )
        if name == "view":
            return "view_dtype", target, arguments, keywords
        if name == "type_as" and not _is_coarse(made):  # nothing of the other tensor but its type
            return "to", torch.ops.aten.to.dtype, {"self": arguments["self"], "dtype": made.dtype}, keywords
        known = TABLE.get(name)
        if name in _CASTS and _is_coarse(made):  # no row: neither linear nor the same for every scale
            return f"{name}_float8", (known and known.target) or target, arguments, keywords
        if known is not None and known.joins:
            return name, target, {**arguments, "tensors": self._joined(arguments["tensors"], made)}, keywords
        if isinstance(made, Tensor) and arguments.get("dtype", made) is None and not node.all_input_nodes:
            arguments["dtype"] = made.dtype  # not whatever the default type is by then
        return name, (known and known.target) or target, arguments, keywords

    def _joined(self, tensors: tuple[Any, ...], made: Any) -> tuple[Any, ...]:
        """What is joined, without the empty list of numbers that a cache starts as."""
        kept = tuple(t for t in tensors if self.values[t.name].shape != (0,))
        return kept if kept and {self.values[t.name].dtype for t in kept} == {made.dtype} else tensors

    def _activation(self, name: str, tensor: Tensor, operation: Operation) -> Value:
        if tensor.dtype.is_complex:
            raise ReadError(f"{operation.where} makes complex numbers: only real networks can be measured")
        shape, axes = one_sample(tensor.shape, self.sizes)
        ignored = row(operation).ignores
        read = [(slot, self.values[v]) for slot, v in operation.reads if v in self.values]
        sources = [value for slot, value in read if slot.argument not in ignored]
        like = [value for slot, value in read if slot.argument in ignored]
        lost = not axes and any(value.samples is not None for value in sources)
        mixed = len(axes) > 1 or (lost and tensor.numel() > 0)
        if mixed:
            raise ReadError(
                f"{operation.where} mixes the samples of a batch: its result has shape {tuple(tensor.shape)}. "
                f"Curvature is a sum over samples only if each output depends on its own input{self._guard(operation)}"
            )
        samples = locate(shape, axes[0], operation, sources, like) if axes else None
        return Value(name, "activation", shape, tensor.dtype, samples)

    def _guard(self, operation: Operation) -> str:
        """What to do where it looks for overflow, as half precision needs and no other type."""
        halves = any(value.dtype == torch.float16 for value in self.values.values())
        if operation.name not in ("any", "all") or not halves:
            return ""
        return ". In float16 models look for overflow there: measure model.bfloat16() or model.float(), which need not"

    def _output(self, end: Node) -> str:
        name = self.names[end.name]
        value = self.values.get(name)
        if value is None or value.samples != Samples(0):
            raise ReadError("the outputs have to be a tensor with the samples along its first axis")
        if not value.dtype.is_floating_point:
            raise ReadError(f"the outputs have type {value.dtype}, expected floating point logits")
        if not value.numel:
            raise ReadError(f"the outputs have shape {('n', *value.shape[1:])}: there is nothing in them to measure")
        return name


def _needed(end: Node) -> set[Node]:
    """The nodes that a value is made of, itself included."""
    needed: set[Node] = set()
    waiting = [end]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    return needed


def _not_plain(what: str, node: Node) -> str:
    return (
        f"{where(node)} holds {what}, which is not a plain operation. Control flow such as torch.cond cannot be "
        "measured: write it with torch.where, or measure the submodules that hold the layers"
    )


def _refuse_random(target: Any, arguments: Mapping[str, Any], node: Node) -> None:
    """Operations that draw random numbers even in eval mode."""
    seeded = isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags
    idle = arguments.get("train") is False or arguments.get("training") is False or arguments.get("dropout_p") == 0.0
    name = target.overloadpacket.__name__ if seeded else ""
    nothing_dropped = name in _DROPOUTS and arguments.get("p") == 0.0
    if seeded and not idle and not nothing_dropped:
        hint = ": pass training=self.training to it" if "dropout" in name else ""
        raise ReadError(
            f"{name} in module '{place(node)}' draws random numbers, even in eval mode{hint}. A network that is "
            "different every time has no curvature"
        )


def _is_coarse(made: Any) -> bool:
    """Whether a tensor's numbers have fewer than 16 bits: a few steps between zero and the largest there is."""
    return isinstance(made, Tensor) and made.dtype.is_floating_point and made.dtype.itemsize < 2


def _is_many(node: Any) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), tuple | list)


def _is_number(node: Node) -> bool:
    """Arithmetic on sizes."""
    return isinstance(node.meta.get("val"), int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)


def _arguments(node: Node, names: Mapping[str, str]) -> tuple[str, dict[str, Any], frozenset[str]]:
    """The call's arguments by name, defaults filled in, with a Ref for each value."""

    def record(given: Any) -> Any:
        if isinstance(given, Node):
            number = settled(given.meta.get("val"))
            return Ref(names[given.name]) if number is None else number
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
    return table_name(node.target), arguments, frozenset(keywords)
