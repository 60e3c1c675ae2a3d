"""Norms that torch writes with several results, of which only the first is used."""

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.curvature.schedule import fast_schedule
from minsharp.rules.contraction import PerSampleVJP


class InPlace(nn.Module):
    """A residual block as torchvision and timm write it: norms whose results are overwritten."""

    def __init__(self, norm: type[nn.Module], *, inplace: bool) -> None:
        super().__init__()
        self.into, self.inner = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norms = nn.ModuleList(norm(4) if norm is nn.BatchNorm2d else norm(2, 4) for _ in range(2))
        self.relu, self.head, self.inplace = nn.ReLU(inplace=inplace), nn.Linear(4, 3), inplace

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norms[0](self.into(x)))
        y = self.norms[1](self.inner(x))
        if self.inplace:
            y += x
        else:
            y = y + x
        return self.head(self.relu(y).mean((2, 3)))


class Statistics(nn.Module):
    """A layer norm of which the mean goes on as well."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm, self.head = nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        result = torch.ops.aten.native_layer_norm(self.into(x), (4,), self.norm.weight, self.norm.bias, 1e-5)
        return self.head(result[0].relu() + result[1])


def slow(network: ms.Network) -> list[str]:
    schedule = fast_schedule(network.graph, tuple(network.parameters))
    return [site.leaf for step in schedule.steps for site in step.sites if isinstance(site.contraction, PerSampleVJP)]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.GroupNorm])
def test_in_place(norm: type[nn.Module]) -> None:
    """Of the same speed and of the same value as what is not overwritten."""
    torch.manual_seed(0)
    model, x = InPlace(norm, inplace=True).double().eval(), torch.randn(5, 1, 6, 6, dtype=torch.float64)
    plain = InPlace(norm, inplace=False).double().eval()
    for parameter in model.norms.parameters():
        nn.init.normal_(parameter)
    plain.load_state_dict(model.state_dict())
    network = ms.read(model, x)
    assert slow(network) == []
    found = ms.hessian_diagonal(network, x, curvature="ggn").by_parameter
    for name, expected in ms.hessian_diagonal(plain, x, curvature="ggn").by_parameter.items():
        torch.testing.assert_close(found[name], expected)


def test_statistics_in_use() -> None:
    """Where the other results are read, their cotangents count."""
    torch.manual_seed(0)
    model, x = Statistics().double(), torch.randn(4, 5, dtype=torch.float64)
    network = ms.read(model, x)
    found = ms.hessian_trace(network, x, curvature="ggn").by_parameter
    values = dict(model.named_parameters())
    probabilities = model(x).softmax(1).detach()
    H = (probabilities.diag_embed() - probabilities.unsqueeze(2) * probabilities.unsqueeze(1)) / len(x)
    jacobians = torch.func.jacrev(lambda given: torch.func.functional_call(model, given, (x,)))(values)
    for name, J in jacobians.items():
        expected = torch.einsum("nip,nij,njp->", J.flatten(2), H, J.flatten(2))
        assert found[name] == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
