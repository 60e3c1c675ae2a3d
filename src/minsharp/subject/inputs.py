"""What goes into a model and what comes out of it, as the user has it."""

import inspect
from collections.abc import Iterable, Mapping
from contextlib import suppress
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


def missing_rows(error: BaseException, given: Iterable[Tensor]) -> str:
    """What an IndexError of a model on some tensors says of them: the largest number; nothing of other errors."""
    if not isinstance(error, IndexError) or "index out of range" not in str(error):
        return ""
    largest = max((int(t.max()) for t in given if t.numel() and not t.dtype.is_floating_point), default=None)
    told = "" if largest is None else f" The largest number in the inputs is {largest}"
    return f": an embedding has fewer rows than it is asked for.{told}"


def call_form(model: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Inputs as forward takes them: a dict by keyword where its keys are forward's arguments.

    The ``labels`` of a collator are targets: they go in only if forward cannot be called without.
    """
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping) and inputs:
        for names in ({*inputs} - {"labels"}, {*inputs}):
            with suppress(TypeError, ValueError):
                return (), _by_name(inspect.signature(model.forward), {name: inputs[name] for name in names})
        _refuse_names(model, {*inputs} - {"labels"})
        return (dict(inputs),), {}
    if isinstance(inputs, tuple | list) and inputs:
        return tuple(inputs), {}
    raise InputError(f"expected inputs as a tensor, a tuple of tensors or a dict of tensors, got {describe(inputs)}")


def _by_name(signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments in forward's order, in whatever order they are given; those without a name there come last."""
    signature.bind(**given)
    own = [name for name in signature.parameters if name in given]
    return {name: given[name] for name in (*own, *sorted({*given} - {*own}))}


def _refuse_names(model: nn.Module, given: set[str]) -> None:
    """Refuse a dict whose keys are in part forward's arguments, and do not fit them."""
    try:
        known = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return
    if not given.intersection(known):
        return  # it goes in whole
    single = [p for p in known.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    unknown = sorted(given.difference(known))
    missing = [p.name for p in single if p.default is p.empty and p.name not in given]
    short = [f"has no argument {_quoted(unknown)}"] if unknown else []
    short += [f"needs {_quoted(missing)} too"] if missing else []
    raise InputError(
        f"forward of {type(model).__name__} {' and '.join(short)}: it takes {_quoted(p.name for p in single)}. "
        "The keys of a dict of inputs are forward's arguments; the targets are called 'labels', or go in a pair: "
        "(inputs, targets)"
    )


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
