"""Another quantity is another class: the engine does not know which one it sums."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minsharp as ms
from minsharp.curvature.engine import Engine
from minsharp.curvature.quantities import Measured, Place, Quantity
from minsharp.losses import as_loss
from minsharp.results.sums import CurvatureSum
from minsharp.subject.batches import batches


class Tied(nn.Module):
    """A weight used twice, one used transposed, one used once, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.once = nn.Linear(3, 4)
        self.twice = nn.Parameter(torch.randn(4, 4))
        self.turned = nn.Parameter(torch.randn(4, 3))
        self.idle = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.once(x))
        h = F.relu(h @ self.twice) @ self.twice + 0 * self.idle.detach()
        return h @ self.turned.t().contiguous().t()


class Gram(Quantity[CurvatureSum]):
    """The sum over samples and columns of g g^T, g the gradient along the first axis."""

    def zero(self, parameter: str, like: Tensor) -> Tensor:
        return like.new_zeros(len(like), len(like), dtype=torch.float64)

    def of_gradients(self, parameter: str, gradients: Tensor) -> Tensor:
        rows = gradients.flatten(3) if gradients.dim() > 3 else gradients.unsqueeze(3)  # (n, R, d, rest)
        return torch.einsum("nrdj,nrej->de", rows, rows)

    def result(self, measured: Measured) -> CurvatureSum:
        return measured.sum


class BySample(Gram):
    """The squares of each sample's trace over all parameters together, beside the traces: what an error bar needs."""

    def zero(self, parameter: str, like: Tensor) -> Tensor:
        return like.new_zeros((), dtype=torch.float64)

    def of_gradients(self, parameter: str, gradients: Tensor) -> Tensor:
        return gradients.flatten(1).square().sum(1)  # (n,)

    def contract(self, place: Place, G: Tensor) -> Tensor:
        return self.of_gradients(place.leaf.parameter, place.gradients(G))

    def add(self, sums: dict[str, Tensor], found: Iterable[tuple[str, Tensor]]) -> None:
        values = dict(found)
        together = torch.stack(list(values.values())).sum(0)
        super().add(sums, [(name, value.sum()) for name, value in values.items()])
        super().add(sums, [("squares", together.square().sum())])


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Tied().double()


def _measured(model: nn.Module, x: Tensor, quantity: Quantity[Any], memory: int | None = None) -> CurvatureSum:
    network = ms.read(model, x)
    engine = Engine(network, list(network.parameters), as_loss(None), quantity, memory)
    return engine.run(batches(x))


def _columns(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """S_i^T J_iP by autograd: {name: (n, K - 1, *shape)}."""
    outputs = model(x)
    columns = as_loss(None).columns(outputs.detach(), None)
    S = columns.slice(0, columns.rank)
    names, leaves = zip(*model.named_parameters(), strict=True)
    rows = [
        torch.autograd.grad(outputs[i], leaves, S[i, k], retain_graph=True, allow_unused=True)
        for i in range(len(x))
        for k in range(columns.rank)
    ]
    found = zip(*rows, strict=True)
    return {
        name: torch.stack([torch.zeros_like(p) if g is None else g for g in gs]).view(len(x), -1, *p.shape)
        for name, p, gs in zip(names, leaves, found, strict=True)
    }


@pytest.mark.parametrize("memory", [None, 1])
def test_gram_matrices_of_gradients(model: nn.Module, memory: int | None) -> None:
    x = torch.randn(5, 3, dtype=torch.float64)
    found = _measured(model, x, Gram(), memory).sums
    expected = {name: Gram().of_gradients(name, g) for name, g in _columns(model, x).items()}
    assert set(found) == {"once.weight", "once.bias", "twice", "turned", "idle"}
    for name, gram in found.items():
        torch.testing.assert_close(gram, expected[name])
    assert not found["idle"].any()


def test_gram_matrices_hold_the_trace(model: nn.Module) -> None:
    x = torch.randn(5, 3, dtype=torch.float64)
    grams = _measured(model, x, Gram()).sums
    traces = ms.hessian_trace(model, x, curvature="ggn").by_parameter
    assert {name: pytest.approx(float(gram.trace()) / 5) for name, gram in grams.items()} == dict(traces)


def test_a_sum_that_belongs_to_no_parameter(model: nn.Module) -> None:
    x = torch.randn(5, 3, dtype=torch.float64)
    found = _measured(model, x, BySample()).sums
    each = sum(g.flatten(1).square().sum(1) for g in _columns(model, x).values())
    assert isinstance(each, Tensor)
    assert list(found)[-1] == "squares"
    torch.testing.assert_close(found["squares"], each.square().sum())
