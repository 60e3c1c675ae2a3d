"""Derivatives stay with their sample, also where the values are the same for all samples."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms


class _Saturated(nn.Module):
    """Values that depend on the parameter and on no input; then something that may let samples meet."""

    def __init__(self, then: Callable[[Tensor], Tensor]):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(torch.minimum(x.abs() + 1, self.p))


def _first(h: Tensor) -> Tensor:
    return h.index_select(0, torch.zeros(h.shape[0], dtype=torch.int64))


MEETING: dict[str, Callable[[Tensor], Tensor]] = {
    "first": lambda h: _first(h) + h,
    "last": lambda h: h.flip(0).index_select(0, torch.zeros(h.shape[0], dtype=torch.int64)) + h,
    "roll": lambda h: h.roll(1, 0) + h,
    "flip": lambda h: h.flip(0) * h,
    "gather": lambda h: h.gather(0, torch.zeros_like(h).long()) - h,
}


@pytest.mark.parametrize("name", MEETING)
def test_samples_that_meet_in_derivatives_alone_are_refused(name: str) -> None:
    x = torch.randn(4, 3, dtype=torch.float64)
    with pytest.raises(ms.ReadError, match=r"mixes the samples|It starts at"):
        ms.read(_Saturated(MEETING[name]), x)


def test_the_operation_is_named() -> None:
    with pytest.raises(ms.ReadError, match="index_select"):
        ms.read(_Saturated(MEETING["first"]), torch.randn(4, 3, dtype=torch.float64))


def test_samples_that_stay_apart_are_read() -> None:
    x = torch.randn(4, 3, dtype=torch.float64)
    total = ms.hessian_trace(_Saturated(lambda h: 2 * h), (x, x), nn.MSELoss(reduction="sum")).total
    assert total == pytest.approx(2 * 4 * (2 * 3) ** 2 / 3)  # three outputs, each with derivative 2


class _Rounded(torch.autograd.Function):
    """Rounds, and lets gradients through as if it did not."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


class _Quantized(nn.Module):
    """Running statistics, which autograd does not differentiate, before a backward pass of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = _Rounded.apply(3 * self.layers(x))  # type: ignore[no-untyped-call]
        return self.head(h)


def test_a_backward_of_its_own_is_refused_behind_running_statistics() -> None:
    with pytest.raises(ms.ReadError, match=r"derivative of _Quantized's outputs"):
        ms.read(_Quantized().double(), torch.randn(4, 3, dtype=torch.float64))
