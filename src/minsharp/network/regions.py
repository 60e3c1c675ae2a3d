"""Regions of forward that switch gradients, inlined: what enters one that switches them off is detached there.

Inside such a region nothing then depends on parameters, and neither does what leaves it: just as autograd has it. What
autograd does when memory that carries a gradient is written behind its back is refused (`_Gradients`).
"""

import operator
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from ..errors import ReadError
from ..subject.nodes import mutates
from .places import where

_REGIONS = {"autocast": "wrap_with_autocast", "gradients": "wrap_with_set_grad_enabled"}


def is_region(node: Node, kind: str) -> bool:
    """Whether a node runs a part of forward under a switch for "gradients" or "autocast"."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == _REGIONS[kind]


def _autocast_body(module: GraphModule, node: Node) -> GraphModule:
    """What runs under autocast: (device, dtype, enabled, cache, body, *arguments)."""
    body: Any = getattr(module, node.args[4].target)  # type: ignore[union-attr,arg-type]
    assert isinstance(body, GraphModule)
    return body


def inline_regions(program: ExportedProgram) -> None:
    """Leave no region that switches gradients in a program; those of autocast stay, with what is inside them flat."""
    quiet: set[Node] = set()
    _inline(program.graph_module, quiet)
    modules = graphs_of(program)
    for module in modules:
        _find_users(module)
    if quiet or any(mutates(node) for module in modules for node in module.graph.nodes):
        gradients = _Gradients(program, quiet)
        gradients.walk(program.graph_module)
        for module in modules:
            gradients.detach_what_enters(module)
    _rename_outputs(program)


def graphs_of(program: ExportedProgram) -> list[GraphModule]:
    """The graph of a program, and those of its regions."""
    return [module for module in program.graph_module.modules() if isinstance(module, GraphModule)]


def _find_users(module: GraphModule) -> None:
    """What torch.export cuts out as a region and puts back does not always count as a user of what it looks at."""
    for node in module.graph.nodes:
        node.users.clear()
    for node in module.graph.nodes:
        for given in node.all_input_nodes:
            given.users[node] = None


def _rename_outputs(program: ExportedProgram) -> None:
    """What leaves a region has another name once it is inlined."""
    made: Any = next(node for node in program.graph.nodes if node.op == "output").args[0]
    for spec, node in zip(program.graph_signature.output_specs, made, strict=True):
        if isinstance(node, Node):
            spec.arg.name = node.name


def _inline(module: GraphModule, quiet: set[Node], off: bool = False) -> None:
    """Replace the regions of a graph by what they hold; ``quiet`` gets the calls that run without gradients."""
    for node in list(module.graph.nodes):
        if is_region(node, "gradients"):
            enabled, inner = node.args[:2]
            body = getattr(module, inner.target)
            _inline(body, quiet, not enabled)
            _replace(module, node, body, quiet)
        elif is_region(node, "autocast"):
            _inline(_autocast_body(module, node), quiet, off)
        elif off and node.op == "call_function" and node.target is not operator.getitem:
            quiet.add(node)


def _replace(module: GraphModule, call: Node, body: GraphModule, quiet: set[Node]) -> None:
    """Copy the body of a region to where it is called."""
    inside = list(body.graph.nodes)
    copies: dict[Node, Any] = dict(zip((n for n in inside if n.op == "placeholder"), call.args[2:], strict=True))
    with module.graph.inserting_before(call):
        for node in inside[:-1]:
            if node.op == "placeholder":
                continue
            if node.op == "get_attr":  # a region inside the region
                path = f"{call.name}_{node.target}"
                setattr(module, path, getattr(body, node.target))
                copies[node] = module.graph.get_attr(path)
            else:
                copies[node] = module.graph.node_copy(node, copies.__getitem__)
            if node in quiet:
                quiet.add(copies[node])
    made: Any = inside[-1].args[0]
    for user in list(call.users):
        result = made[user.args[1]]
        user.replace_all_uses_with(copies.get(result, result))
        module.graph.erase_node(user)
    region: Any = call.args[1]
    module.graph.erase_node(call)
    module.graph.erase_node(region)


def _tensors(node: Node) -> list[Tensor]:
    made = node.meta.get("val")
    return [t for t in (made if isinstance(made, tuple | list) else (made,)) if isinstance(t, Tensor)]


class _Gradients:
    """Follows, in the order of the calls, which memory carries a gradient."""

    def __init__(self, program: ExportedProgram, quiet: set[Node]):
        self.quiet = quiet
        self.carrying: set[int] = set()
        self.known_as: dict[int, int] = {}  # memory inside a region of autocast -> the same memory outside
        self.cut: set[Node] = set()
        """Views that carry none, whatever the memory that they look at: made by detach, or without gradients."""
        names = program.graph_signature.inputs_to_parameters
        for node in program.graph.nodes:
            if node.op == "placeholder" and node.name in names:
                self._add(node)

    def _memory(self, node: Node) -> set[int]:
        """What tells one piece of memory from another; views of a tensor share it."""
        found = (tensor.untyped_storage()._cdata for tensor in _tensors(node))
        return {self.known_as.get(memory, memory) for memory in found}

    def _add(self, node: Node) -> None:
        if any(tensor.dtype.is_floating_point for tensor in _tensors(node)):
            self.carrying |= self._memory(node)

    def _carries(self, node: Node) -> bool:
        return node not in self.cut and bool(self._memory(node) & self.carrying)

    def walk(self, module: GraphModule) -> None:
        """One graph, and those of the regions in it."""
        for node in module.graph.nodes:
            if is_region(node, "autocast"):
                self._enter(_autocast_body(module, node), node)
            elif node.op == "call_function":
                self._call(node)

    def _enter(self, body: GraphModule, call: Node) -> None:
        inside = list(body.graph.nodes)
        given: Any = zip((n for n in inside if n.op == "placeholder"), call.args[5:], strict=True)
        for node, outer in given:
            self._same(node, outer)
        self.walk(body)
        made: Any = inside[-1].args[0]
        for user in call.users:
            self._same(user, made[user.args[1]])

    def _same(self, node: Node, other: Node) -> None:
        """One tensor, on this side of a region's border and on the other."""
        for tensor, memory in zip(_tensors(node), self._memory(other), strict=True):
            self.known_as[tensor.untyped_storage()._cdata] = memory
        if other in self.cut:
            self.cut.add(node)

    def _call(self, node: Node) -> None:
        if node.target is operator.getitem and node.args[0] in self.cut:
            self.cut.add(node)
            return
        off = node in self.quiet or getattr(node.target, "_opname", "") == "detach"
        tracked = not off and any(map(self._carries, node.all_input_nodes))
        if mutates(node):
            self._write(node, tracked)
            return
        if tracked:
            self._add(node)
        elif self._looks(node, off):
            self.cut.add(node)

    def _looks(self, node: Node, off: bool) -> bool:
        """Whether a call makes a view that carries no gradient."""
        through = [n for n in node.all_input_nodes if self._memory(node) & self._memory(n)]
        return bool(through) and (off or all(n in self.cut for n in through))

    def _write(self, node: Node, tracked: bool) -> None:
        for written in _written(node):
            if node not in self.quiet and written not in self.cut:
                if tracked:
                    self._add(written)
            elif tracked or self._memory(written) & self.carrying:
                raise ReadError(
                    f"{getattr(node.target, '_opname', node.target)} in {where(node)} writes in place, without "
                    "gradients, into a tensor that carries one: autograd does not see that the values change. Work "
                    "on a copy: tensor.detach().clone(). What forward does in its first run alone, as a change of its "
                    "weights for inference, is no longer there once it has run: model.eval()(inputs)"
                )
            if written in self.cut:  # what a call that writes returns is what it wrote into
                self.cut.add(node)

    def detach_what_enters(self, module: GraphModule) -> None:
        """Let the calls that run without gradients see detached values only."""
        for node in [n for n in module.graph.nodes if n in self.quiet]:
            for given in node.all_input_nodes:
                if given in self.quiet or not self._memory(given) & self.carrying:
                    continue
                with module.graph.inserting_before(node):
                    detached = module.graph.call_function(torch.ops.aten.detach.default, (given,))
                detached.meta = {**node.meta, "val": given.meta["val"]}
                node.replace_input_with(given, detached)


def _written(node: Node) -> list[Node]:
    """The arguments that a call writes into."""
    schema: Any = node.target._schema  # type: ignore[union-attr]
    found = []
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
            found += [n for n in (given if isinstance(given, tuple | list) else (given,)) if isinstance(n, Node)]
    return found
