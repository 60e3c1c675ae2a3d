"""What goes into a model and what comes out of it, as the user has it."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..errors import InputError

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]


def describe(given: Any) -> str:
    """Inputs or outputs as a user would describe them: shapes and types, no values."""
    if isinstance(given, Tensor):
        shape = ", ".join(str(size) if type(size) is int else "n" for size in given.shape)  # n while it is traced
        return f"a tensor of shape ({shape}{',' if given.dim() == 1 else ''}), {given.dtype}"
    if isinstance(given, Mapping):
        return "{" + ", ".join(f"'{k}': {describe(v)}" for k, v in given.items()) + "}"
    if isinstance(given, tuple | list):
        return f"{type(given).__name__} of (" + ", ".join(describe(v) for v in given) + ")"
    return f"{type(given).__name__}"


def tensors_of(inputs: Any) -> list[Any]:
    """The tensors among some inputs, in order."""
    return [inputs] if isinstance(inputs, Tensor) else pytree.tree_leaves(inputs)


def call_form(model: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as forward takes them: a dict by keyword where its keys are forward's arguments."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping) and inputs:
        try:
            inspect.signature(model.forward).bind(**inputs)
        except (TypeError, ValueError):
            return (dict(inputs),), {}
        return (), dict(inputs)
    if isinstance(inputs, tuple | list) and inputs:
        return tuple(inputs), {}
    raise InputError(f"expected inputs as a tensor, a tuple of tensors or a dict of tensors, got {describe(inputs)}")
