"""Derivatives that forward writes by hand show, whatever sample and weights the model is read with."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from tests.support.oracles import ggn_diagonal


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


class Tokens(nn.Module):
    """The places of an image as tokens: cotangents come back to the norm with the channels last in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).flatten(2).transpose(1, 2)).relu().mean(1)


def test_a_single_image_whose_derivative_torch_gets_wrong() -> None:
    """By torch itself, in a batch of several images, the numbers are right."""
    torch.manual_seed(0)
    model, x, y = Tokens().double().eval(), torch.randn(4, 2, 3, 3).double(), torch.tensor([0, 1, 2, 1])
    found = ms.hessian_trace(model, (x, y), curvature="ggn").by_parameter
    for name, value in found.items():
        expected = float(ggn_diagonal(model, x, y, nn.CrossEntropyLoss(), name).sum())
        assert value == pytest.approx(expected, rel=1e-9)
