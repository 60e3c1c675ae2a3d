"""Autograd as the rule for everything else: all columns at once where it can, one by one where it cannot."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.rules import pullback
from minsharp.rules.pullback import gradient_rows, widened
from tests.support import oracles

SEEN: list[int] = []


def _operation(name: str, back: Callable[[Any, Tensor], Tensor]) -> Any:
    """An operation of a library, sin(x), with a backward of its own."""

    @torch.library.custom_op(f"minsharp_tests::{name}", mutates_args=())
    def sine(x: Tensor) -> Tensor:
        return x.sin()

    sine.register_fake(torch.empty_like)
    sine.register_autograd(back, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]))
    return sine


def _plain(ctx: Any, g: Tensor) -> Tensor:
    SEEN.append(g.dim())
    return g * ctx.saved_tensors[0].cos()


def _looks_at_numbers(ctx: Any, g: Tensor) -> Tensor:
    SEEN.append(g.dim())
    if float(g.abs().sum()) == 0:
        return torch.zeros_like(g)
    return g * ctx.saved_tensors[0].cos()


def _through_numpy(ctx: Any, g: Tensor) -> Tensor:
    SEEN.append(g.dim())
    return torch.from_numpy(g.detach().numpy() * ctx.saved_tensors[0].cos().detach().numpy())


def _throws_dice(ctx: Any, g: Tensor) -> Tensor:
    SEEN.append(g.dim())
    noise = torch.rand(g.shape, dtype=g.dtype)
    return g * ctx.saved_tensors[0].cos() * ((noise + 1) / (noise + 1))


BACKWARDS = {"plain": _plain, "looks": _looks_at_numbers, "numpy": _through_numpy, "dice": _throws_dice}
SINES = {name: _operation(f"sine_{name}", back) for name, back in BACKWARDS.items()}


class Wave(nn.Module):
    """Two layers with somebody's sine in between, and another on a parameter that meets the samples in it."""

    def __init__(self, sine: Any):
        super().__init__()
        self.first, self.last, self.sine = nn.Linear(3, 4), nn.Linear(4, 2), sine
        self.shift = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.sine(self.first(x)) * self.sine(self.shift))


@pytest.mark.parametrize("name", SINES)
def test_a_derivative_that_cannot_be_batched_is_taken_one_by_one(name: str) -> None:
    torch.manual_seed(0)
    model, x = Wave(SINES[name]).double(), torch.randn(5, 3, dtype=torch.float64)
    y = torch.randint(2, (5,))
    found = ms.hessian_diagonal(model, x, curvature="ggn").by_parameter
    for parameter in found:
        expected = oracles.ggn_diagonal(model, x, y, nn.functional.cross_entropy, parameter)
        torch.testing.assert_close(found[parameter], expected)


@pytest.mark.parametrize(("name", "calls"), [("plain", 1), ("looks", 1 + 7), ("dice", 1 + 7)])
def test_how_often_a_backward_is_called(name: str, calls: int) -> None:
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    y, G = SINES[name](x), torch.randn(7, 4, dtype=torch.float64)
    SEEN.clear()
    (rows,) = gradient_rows([y], [x], [G], "sine")
    assert len(SEEN) == calls
    assert rows is not None
    torch.testing.assert_close(rows, G * x.detach().cos())


def test_an_operation_without_a_rule_for_batches() -> None:
    x = torch.randn(1, 1, 3, 3, 3, requires_grad=True)
    grid = torch.rand(1, 2, 2, 2, 3) - 0.5
    y, G = nn.functional.grid_sample(x, grid, align_corners=True), torch.randn(5, 1, 1, 2, 2, 2)
    (rows,) = gradient_rows([y], [x], [G], "grid_sample")
    expected = torch.stack([torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in G])
    torch.testing.assert_close(rows, expected)


def test_a_derivative_that_fails_says_so() -> None:
    def fails(ctx: Any, g: Tensor) -> Tensor:
        raise RuntimeError("no derivative today")

    x = torch.randn(4, requires_grad=True)
    y = _operation("sine_fails", fails)(x)
    with pytest.raises(ms.ReadError, match="torch cannot differentiate a sine: no derivative today"):
        gradient_rows([y], [x], [torch.ones(2, 4)], "a sine")


def test_what_no_gradient_reaches_is_none() -> None:
    x, z = torch.randn(3, requires_grad=True), torch.randn(2, requires_grad=True)
    rows = gradient_rows([2 * x], [x, z], [torch.ones(4, 3)], "a product")
    assert rows[1] is None
    torch.testing.assert_close(rows[0], torch.full((4, 3), 2.0))


def test_arguments_in_half_precision_are_widened_and_others_kept() -> None:
    bound = {"x": torch.ones(2), "dim": 1, "dtype": torch.float64}
    assert widened(bound) is bound
    half = torch.ones(2, dtype=torch.bfloat16)
    made = widened({"x": half, "tensors": [half, torch.ones(1).double()], "dtype": torch.float16, "i": torch.tensor(1)})
    assert made["x"].dtype == made["tensors"][0].dtype == made["dtype"] == torch.float32
    assert made["tensors"][1].dtype == torch.float64
    assert made["i"].dtype == torch.int64


def test_columns_are_pulled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_by_one(*_: Any) -> None:
        raise AssertionError("one row after the other")

    monkeypatch.setattr(pullback, "_row_by_row", one_by_one)
    model = nn.Sequential(nn.Linear(3, 4), nn.GLU(), nn.Linear(2, 5))
    assert ms.hessian_trace(model, torch.randn(6, 3), curvature="ggn").total > 0
