"""Criteria, shapes and class axes as messages name them, and the precision that the factors are made in."""

from typing import Any

import torch
from torch import Tensor, nn


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
