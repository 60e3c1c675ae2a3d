"""From a module to one flat graph of operations that write nowhere: the only file that calls torch.export."""

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from ..errors import ReadError
from .inputs import picked
from .modes import quiet_export
from .regions import inline_regions, is_region, mutates


class _Picked(nn.Module):
    """The model with its hooks, and of what it returns the tensor that is measured."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.training = False
        self.model = model
        self.forward = functools.wraps(model.forward)(lambda *args, **kwargs: picked(self.model(*args, **kwargs)))


def export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """Export with the batch size left free, regions without gradients inlined, and no operation that writes."""
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
        program = torch.export.export(_Picked(model), args, kwargs, dynamic_shapes=shapes, strict=False)
        inline_regions(program)
        if any(mutates(node) or is_region(node, "autocast") for node in program.graph.nodes):
            program = program.run_decompositions({})
    return program
