"""Which of what a model returns is measured."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

from torch import Tensor, nn

from ..errors import InputError, ReadError
from .inputs import describe

Pick = str | int | Callable[[Any], Tensor] | None
"""A name, an index, a function of what the model returns; nothing for the tensor itself, or its ``logits``."""

_OUTPUTS = "_minsharp_outputs"


def picked(returned: Any, outputs: Pick = None) -> Tensor:
    """The tensor that is measured of what a model returns.

    >>> import torch
    >>> picked({"logits": torch.ones(2), "hidden": torch.zeros(2)})
    tensor([1., 1.])
    >>> picked({"logits": torch.ones(2), "hidden": torch.zeros(2)}, "hidden")
    tensor([0., 0.])
    """
    found = _own(returned) if outputs is None else _chosen(returned, outputs)
    if isinstance(found, Tensor):
        return found
    if outputs is None:
        raise ReadError(
            f"the model returns {describe(returned)}, expected one tensor of outputs, or a dict or an object with "
            f"'logits'. {_calls(returned)}"
        )
    raise ReadError(
        f"outputs={outputs!r} picks {describe(found)} of what the model returns, {describe(returned)}; expected one "
        f"tensor of outputs. {_calls(returned)}"
    )


def _own(returned: Any) -> Any:
    """The tensor itself, a tuple's only one, or what is called logits."""
    if isinstance(returned, tuple | list) and len(returned) == 1:
        return returned[0]
    if isinstance(returned, Mapping):
        return returned.get("logits")
    return returned if isinstance(returned, Tensor) else getattr(returned, "logits", None)


def _chosen(returned: Any, outputs: str | int | Callable[[Any], Tensor]) -> Any:
    if callable(outputs):
        return _by_function(returned, outputs)
    try:
        if isinstance(outputs, str) and not isinstance(returned, Mapping):
            return getattr(returned, outputs)
        return returned[outputs]
    except (AttributeError, IndexError, KeyError, TypeError):
        raise ReadError(
            f"outputs={outputs!r}, but the model returns {describe(returned)}. {_calls(returned)}"
        ) from None


def _by_function(returned: Any, outputs: Callable[[Any], Tensor]) -> Any:
    try:
        return outputs(returned)
    except Exception as error:
        raise ReadError(
            f"outputs={outputs!r} stopped with {type(error).__name__}: {error}. The model returns {describe(returned)}"
        ) from error


def _calls(returned: Any) -> str:
    """Calls that would work."""
    places: list[Any] = []
    if isinstance(returned, Mapping):
        places = [name for name, value in returned.items() if isinstance(value, Tensor)]
    elif isinstance(returned, tuple | list):
        places = [i for i, value in enumerate(returned) if isinstance(value, Tensor)]
    else:
        places = [name for name, value in getattr(returned, "__dict__", {}).items() if isinstance(value, Tensor)]
    if places:
        return "Say which: " + " or ".join(f"outputs={place!r}" for place in places[:5])
    return "Pick it with a function, as in outputs=lambda returned: returned.logits"


def adapted(model: nn.Module, outputs: Pick) -> nn.Module:
    """The same model, weights and names, whose forward returns the chosen tensor alone; itself where none is chosen.

    It shares every parameter and submodule with the model, so what is measured is the model as it is at that moment.
    """
    if outputs is None:
        return model
    if isinstance(outputs, bool) or (not isinstance(outputs, str | SupportsIndex) and not callable(outputs)):
        raise InputError(f"outputs={outputs!r}: expected a name, an index or a function of what the model returns")
    if model._forward_hooks:
        raise InputError(
            f"{type(model).__name__} has forward hooks, which may change what it returns before outputs={outputs!r} "
            "picks of it. Remove them, or register them on a module inside"
        )
    if "forward" in model.__dict__:
        raise InputError(
            f"the forward of this {type(model).__name__} was replaced on the instance; outputs={outputs!r} picks of "
            "what the class's own returns. Let the replacement return the tensor itself"
        )
    kind: Any = type(model)
    same: nn.Module = model.__new__(_class(kind))
    same.__dict__.update(model.__dict__)
    same.__dict__[_OUTPUTS] = outputs
    return same


@functools.cache
def _class(kind: Any) -> type[nn.Module]:
    """A kind of module with a forward that picks of what the kind's own returns."""

    @functools.wraps(kind.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        return picked(kind.forward(self, *args, **kwargs), self.__dict__[_OUTPUTS])

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def plain(module: nn.Module) -> nn.Module:
    """A module of the user's own kind again: what `adapted` did is taken back, in place."""
    if _OUTPUTS in module.__dict__:
        del module.__dict__[_OUTPUTS]
        module.__class__ = type(module).__bases__[0]
    return module
