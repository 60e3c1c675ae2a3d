"""Networks in half precision, against the same rounded weights and inputs in float64."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Several roundings of the activations, each of half a unit in the last of 8 or 11 digits, and squared."""


def in_float64(model: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
    """The very numbers of a network in half precision."""
    return deepcopy(model).double(), x.double() if x.is_floating_point() else x


def perceptron(*scales: float, bias: float = 0.0, bend: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Linear layers with weights, and biases, of these sizes."""
    layers: list[nn.Module] = []
    for scale in scales:
        linear = nn.Linear(8, 8)
        nn.init.normal_(linear.weight, std=scale / 8**0.5)
        nn.init.normal_(linear.bias, std=bias)
        layers += [linear, bend()]
    return nn.Sequential(*layers[:-1])


class Rotated(nn.Module):
    """Words, rms norms written out, attention with shared keys, weights that are made before they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.weight = nn.Embedding(9, 8), nn.Parameter(torch.rand(8) + 0.5)
        self.q, self.kv = nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))

    def forward(self, i: Tensor) -> Tensor:
        x = self.words(i)
        x = self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        q = self.q(x).unflatten(-1, (4, 2)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (4, 2)).transpose(1, 2).chunk(2, 1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.head(x + y.transpose(1, 2).flatten(2))[:, -1].float()


CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "relu": lambda: (perceptron(1, 1, 1, bend=nn.ReLU), torch.randn(6, 8)),
    "convolutions": lambda: (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2), nn.GELU(), nn.Flatten()),
        torch.randn(5, 1, 8, 8),
    ),
    "encoder": lambda: (
        nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten(), nn.Linear(40, 3)),
        torch.randn(5, 5, 8),
    ),
    "rotated": lambda: (Rotated(), torch.randint(9, (5, 4))),
    "gradients of 1e-12": lambda: (perceptron(1, 1e-4, 1e-4, 1e-4, bias=1.0), torch.randn(6, 8)),
    "gradients of 1e6": lambda: (perceptron(1e-5, 30, 30, 300, bend=nn.ReLU), torch.randn(6, 8)),
    "logits that saturate": lambda: (perceptron(1, 15, bend=nn.ReLU), torch.randn(12, 8)),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_each_trace_is_that_of_the_rounded_weights(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    model, x = CASES[name]()
    low = model.eval().to(dtype)
    x = x.to(dtype) if x.is_floating_point() else x
    found = ms.hessian_trace(low, x, curvature="ggn").by_parameter
    expected = ms.hessian_trace(*in_float64(low, x), curvature="ggn").by_parameter
    assert all(p.dtype == dtype for p in low.parameters())
    largest = float(model(x).detach().abs().max())  # rounding a logit o by o eps/2 changes its probability by as much
    tolerance = TOLERANCE[dtype] + 2 * torch.finfo(dtype).eps * largest
    for parameter, value in expected.items():
        assert value > 0
        assert found[parameter] == pytest.approx(value, rel=tolerance, abs=0), parameter


def test_cotangents_that_float16_cannot_hold() -> None:
    """A factor of the loss of 1e-9, and a gradient of 1e-12 at the first layer: zero in float16, not here."""
    torch.manual_seed(0)
    model, x = perceptron(1, 1e-3, 1e-3, bias=1.0).half(), torch.randn(6, 8).half()

    def small(outputs: Tensor, targets: Tensor) -> Tensor:
        return 1e-18 * (outputs - targets).square().sum() / len(outputs)

    y = torch.zeros(6, 8)
    found = ms.hessian_trace(model, (x, y), small, curvature="ggn").by_parameter
    expected = ms.hessian_trace(deepcopy(model).double(), (x.double(), y.double()), small, curvature="ggn")
    for parameter, value in expected.by_parameter.items():
        assert 0 < value < 1e-16
        assert found[parameter] == pytest.approx(value, rel=2e-3, abs=0)


def test_the_diagonal_too() -> None:
    torch.manual_seed(0)
    model, x = Rotated().eval().bfloat16(), torch.randint(9, (5, 4))
    found = ms.hessian_diagonal(model, x, curvature="ggn").by_parameter
    expected = ms.hessian_diagonal(*in_float64(model, x), curvature="ggn").by_parameter
    for name, diagonal in expected.items():
        assert found[name].dtype == torch.float64
        torch.testing.assert_close(found[name], diagonal, rtol=0.1, atol=2e-2 * float(diagonal.max()))
