"""From a module to one flat graph of operations that write nowhere: the only file that calls torch.export."""

import functools
import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from ..errors import ReadError
from ..subject.modes import quiet_export
from ..subject.nodes import mutates
from ..subject.outputs import picked
from .layout import SIZES
from .regions import inline_regions, is_region
from .writes import replace_writes

_SIZES_DIFFER = (
    "forward does different things for different batch sizes: what was read holds {} only. Measure a module that "
    "treats all batches alike"
)


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
        autocast = any(is_region(node, "autocast") for node in program.graph.nodes)
        if not autocast:
            replace_writes(program)
        if autocast or any(mutates(node) for node in program.graph.nodes):
            program = program.run_decompositions({})
    return program


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
    made = _free_sizes(node.meta.get("val") for node in program.graph.nodes)
    for symbol, bounds in program.range_constraints.items():
        if bounds.lower == bounds.upper:  # the number of entries that a constant mask picks
            continue
        if str(symbol).startswith("u") and not any(symbol in size.node.expr.free_symbols for size in made):
            continue  # a number that is looked at, as an assertion does
        if str(symbol).startswith("u"):  # torch.export's name for a size that comes from values
            raise ReadError(
                "forward makes a size of the values of a tensor, as an index by a boolean mask does. Write it with "
                "torch.where, or with indices that are made outside of forward: mask.nonzero()"
            )
        if int(bounds.lower) > 2 or bounds.upper < 1 << 40:
            raise ReadError(_SIZES_DIFFER.format(f"for {symbol} in {bounds}"))
