"""Operations that torch does not have, as a user's library may define them."""

from typing import Any

import torch
from torch import Tensor, nn


@torch.library.custom_op("minsharp_tests::scaled_relu", mutates_args=())
def scaled_relu(x: Tensor, scale: Tensor) -> Tensor:
    return x.relu() * scale


@scaled_relu.register_fake
def _(x: Tensor, scale: Tensor) -> Tensor:
    return torch.empty(torch.broadcast_shapes(x.shape, scale.shape), dtype=x.dtype, device=x.device)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _summed(gradient: Tensor, like: Tensor) -> Tensor:
    return gradient.sum_to_size(like.shape)


def _back(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    x, scale = ctx.saved_tensors
    return _summed(gradient * scale * (x > 0), x), _summed(gradient * x.relu(), scale)


scaled_relu.register_autograd(_back, setup_context=_keep)


@torch.library.custom_op("minsharp_tests::relu", mutates_args=())
def relu(self: Tensor) -> Tensor:
    """Not torch's: x sigmoid(x), which bends."""
    return self * self.sigmoid()


@relu.register_fake
def _(self: Tensor) -> Tensor:
    return torch.empty_like(self)


def _keep_one(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def _bent(ctx: Any, gradient: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    p = x.sigmoid()
    return gradient * p * (1 + x * (1 - p))


relu.register_autograd(_bent, setup_context=_keep_one)


class Scaled(nn.Module):
    """Two layers with a scaled ReLU in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)
        self.scale = nn.Parameter(torch.rand(5) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(scaled_relu(self.first(x), self.scale))


class Named(nn.Module):
    """With an operation that is called as one of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(relu(self.first(x)))
