"""Criteria, shapes and class axes as messages name them, and the precision that the factors are made in."""

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import LossError


def described(criterion: nn.Module, *options: str) -> str:
    """The criterion with the options that are not at their defaults."""
    plain = type(criterion)()
    given = {name: getattr(criterion, name) for name in options}
    odd = [
        f"{name}={value.tolist() if isinstance(value, Tensor) else repr(value)}"
        for name, value in given.items()
        if value is not None and (isinstance(value, Tensor) or value != getattr(plain, name))
    ]
    return f"{type(criterion).__name__}({', '.join(odd)})" if odd else type(criterion).__name__


def name_of(criterion: Any) -> str:
    """What a criterion is called, without its options."""
    return type(criterion).__name__ if isinstance(criterion, nn.Module) else getattr(criterion, "__name__", "loss")


def shape_of(tensor: Tensor | None) -> str:
    """Shape and type, as in ``(2, 3) torch.float32``."""
    return "none" if tensor is None else f"{tuple(tensor.shape)} {tensor.dtype}"


def wide_type(tensor: Tensor) -> torch.dtype:
    """float64 where the device has it, else float32."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def wide(tensor: Tensor) -> Tensor:
    """In the widest type of its device."""
    return tensor.to(wide_type(tensor))


def refuse_guess(name: str, outputs: Tensor) -> None:
    """Which axis of several runs over the classes is not for us to say."""
    if outputs.dim() > 2:
        raise LossError(
            f"{name} on outputs of shape {tuple(outputs.shape)} without targets: which axis runs over the classes "
            "cannot be told. Pass targets of shape (n, *positions) as well, with the classes on axis 1 of the outputs "
            "as nn.CrossEntropyLoss has them; if they are on the last axis, wrap the model in a module whose forward "
            f"returns outputs.{_to_axis_1(outputs)}"
        )


def _to_axis_1(outputs: Tensor) -> str:
    return "transpose(1, 2)" if outputs.dim() == 3 else "movedim(-1, 1)"


def check_class_axis(outputs: Tensor, targets: Tensor) -> None:
    """Refuse one target per position for outputs whose positions come before the classes."""
    if outputs.dim() > 2 and targets.shape == outputs.shape[:-1] != (outputs.shape[0], *outputs.shape[2:]):
        raise LossError(
            f"outputs of shape {tuple(outputs.shape)} with targets of shape {tuple(targets.shape)}: the classes have "
            "to be on axis 1, as nn.CrossEntropyLoss has them, and here they are on the last axis. Wrap the model in a "
            f"module whose forward returns outputs.{_to_axis_1(outputs)}"
        )
