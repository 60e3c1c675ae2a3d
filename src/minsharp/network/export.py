"""From a module to one flat graph of operations that write nowhere: the only file that calls torch.export."""

import functools
import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..errors import ReadError
from ..subject.modes import quiet_export
from ..subject.nodes import mutates
from ..subject.outputs import picked
from .layout import SIZES
from .places import where
from .regions import graphs_of, inline_regions, is_region
from .writes import replace_writes

_SIZES_DIFFER = (
    "forward does different things for different batch sizes: what was read holds {} only. Measure a module that "
    "treats all batches alike"
)
_OF_VALUES = ("u", "zu")
"""How torch.export's names for numbers that come from values start: whole ones, sizes among them, and others."""
_TRANSFORMS = "torch._functorch.predispatch"
_ITEMS = frozenset({"aten.item.default", "aten._local_scalar_dense.default"})


class _Picked(nn.Module):
    """The model with its hooks, and of what it returns the tensor that is measured."""

    def __init__(self, model: nn.Module, signature: inspect.Signature):
        super().__init__()
        self.training = False
        self.model = model
        forward: Any = functools.wraps(model.forward)(lambda *args, **kwargs: picked(self.model(*args, **kwargs)))
        forward.__signature__ = signature
        self.forward = forward


def _named(signature: inspect.Signature, given: Iterable[str]) -> inspect.Signature:
    """The signature with a name for all that goes through **kwargs: torch.export fixes the sizes of what has none."""
    named = dict(signature.parameters)
    through = next((p.name for p in named.values() if p.kind is p.VAR_KEYWORD), None)
    if through is None:
        return signature
    del named[through]
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in given if name not in named]
    return signature.replace(parameters=[*named.values(), *more])


def export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """Export with the batch size left free, regions without gradients inlined, and no operation that writes."""
    signature = _named(inspect.signature(model.forward), kwargs)
    bound = dict(signature.bind(*args, **kwargs).arguments)
    shapes = pytree.tree_map_only(Tensor, lambda _: {0: Dim.AUTO}, bound)
    with quiet_export():
        program = torch.export.export(_Picked(model, signature), args, kwargs, dynamic_shapes=shapes, strict=False)
        _check_batch_sizes(program)
        inline_regions(program)
        nested = any(is_region(node, "autocast") or _is_transform(node) for node in program.graph.nodes)
        if not nested:
            replace_writes(program)
        if nested or any(mutates(node) for node in program.graph.nodes):
            for module in graphs_of(program):
                module.recompile()
            program = program.run_decompositions({})
    return program


def _is_transform(node: Node) -> bool:
    """Whether it begins or ends torch.vmap or another transform, inside of which shapes are those of one row."""
    return getattr(node.target, "__module__", None) == _TRANSFORMS


def _free_sizes(values: Iterable[Any]) -> list[Any]:
    """The sizes of tensors, in lists or not, that are not numbers."""
    tensors = (t for value in values for t in pytree.tree_leaves(value) if isinstance(t, Tensor))
    sizes: list[Any] = [size for t in tensors for size in t.shape]
    return [size for size in sizes if isinstance(size, torch.SymInt) and size.node.expr.free_symbols]


def _check_batch_sizes(program: ExportedProgram) -> None:
    """The graph has to hold for batches of every size from two on."""
    free = _free_sizes(node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder")
    for condition in [guard.expr for guard in free[0].node.shape_env.guards] if free else []:
        if not all(bool(condition.subs(dict.fromkeys(condition.free_symbols, n))) for n in SIZES[1:]):
            raise ReadError(_SIZES_DIFFER.format(f"where {condition}"))
    live = _live(program)
    _refuse_numbers(program, live)
    made = _free_sizes(node.meta.get("val") for node in live)
    for symbol, bounds in program.range_constraints.items():
        if bounds.lower == bounds.upper:  # the number of entries that a constant mask picks
            continue
        if str(symbol).startswith(_OF_VALUES):
            if any(symbol in size.node.expr.free_symbols for size in made):
                raise ReadError(
                    "forward makes a size of the values of a tensor, as an index by a boolean mask does. Write it with "
                    "torch.where, or with indices that are made outside of forward: mask.nonzero()"
                )
            continue  # a number that is looked at, as an assertion does, or a size of what nothing uses
        if int(bounds.lower) > 2 or bounds.upper < 1 << 40:
            raise ReadError(_SIZES_DIFFER.format(f"for {symbol} in {bounds}"))


def _live(program: ExportedProgram) -> list[Node]:
    """The nodes that the outputs are made of, and those that write and what goes into them; assertions do not count."""
    nodes = list(program.graph.nodes)
    found = _behind(node for node in nodes if node.op == "output" or mutates(node))
    return [node for node in nodes if node in found]


def _refuse_numbers(program: ExportedProgram, live: list[Node]) -> None:
    """A Python number made of the inputs is one for all samples; one made of parameters has no derivative."""
    signature = program.graph_signature
    for node in live:
        if str(node.target) not in _ITEMS:
            continue
        behind = {other.name for other in _behind([node])}
        if not behind.isdisjoint(signature.user_inputs):
            raise ReadError(
                f"item in {where(node)} makes a Python number of the inputs, one for all samples: curvature is a sum "
                "over samples only if each output depends on its own input. Keep it a tensor, one number per sample: "
                "x.flatten(1).sum(1)"
            )
        if isinstance(node.meta["val"], torch.SymFloat) and not behind.isdisjoint(signature.inputs_to_parameters):
            raise ReadError(
                f"item in {where(node)} makes a Python number of parameters, through which no derivative passes. Keep "
                "it a tensor, or detach it if that is meant: weight.sum().detach()"
            )


def _behind(nodes: Iterable[Node]) -> set[Node]:
    """Nodes, with all that goes into them."""
    waiting = list(nodes)
    found = set(waiting)
    while waiting:
        behind = set(waiting.pop().all_input_nodes) - found
        waiting += behind
        found |= behind
    return found
