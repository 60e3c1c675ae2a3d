"""Derivatives that forward writes by hand show, whatever sample and weights the model is read with."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms


class Through(torch.autograd.Function):
    """Rounds, and lets gradients through as if it did not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


class Rectified(torch.autograd.Function):
    """A ReLU with its own derivative, written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * (ctx.saved_tensors[0] > 0)


class ByHand(nn.Module):
    """Units that no sample wakes, and behind them a function with a backward of its own."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.function = function
        nn.init.constant_(self.first.bias, -50.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(self.last(self.first(x).relu()) * 3)


@pytest.mark.parametrize("seed", range(3))
def test_a_derivative_by_hand_that_no_sample_shows(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = ByHand(Through).double(), torch.randn(4, 3, dtype=torch.float64)
    nn.init.zeros_(model.last.bias).requires_grad_(False)
    with pytest.raises(ms.ReadError, match=r"that autograd takes is not that of the operations that torch\.export"):
        ms.read(model, x)


def test_a_derivative_by_hand_that_is_right() -> None:
    model, x = ByHand(Rectified).double(), torch.randn(4, 3, dtype=torch.float64)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    assert ms.read(model, x)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
