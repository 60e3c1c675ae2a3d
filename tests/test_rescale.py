"""Copies: rescaled, and with BatchNorm folded away."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms

from .zoo import BY_NAME, call


def mlp() -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"7.weight": 2.0}, r"no parameter is called \['7\.weight'\]. The parameters are \['0\.weight'"),
    "zero": ({"0.weight": 0.0}, "has to be positive and finite, got 0.0"),
    "negative": ({"0.weight": torch.tensor([[1.0], [1.0], [-2.0], [1.0]])}, "got -2.0"),
    "nan": ({"0.bias": float("nan")}, "got nan"),
    "infinite": ({"0.bias": float("inf")}, "got inf"),
    "shape": ({"0.weight": torch.ones(4)}, r"of shape \(4,\), does not broadcast to \(4, 3\)"),
    "overflow": ({"2.weight": 1e42}, r"'2\.weight' does not fit in torch\.float32"),
    "underflow": ({"2.weight": 1e-46}, r"'2\.weight' does not fit in torch\.float32"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_scales(name: str) -> None:
    scales, message = BAD[name]
    model = mlp()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ms.InputError, match=message):
        ms.rescale(model, scales)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_copies_are_independent() -> None:
    model = mlp()
    model[0].bias.requires_grad_(False)
    other: Any = ms.rescale(model, {"0.weight": 2.0})
    assert torch.equal(other[0].weight, 2 * model[0].weight)
    assert not other[0].bias.requires_grad
    other[0].weight.data.zero_()
    assert bool(model[0].weight.any())


def test_tied_parameters() -> None:
    model: Any = BY_NAME["tied_autoencoder"].model()
    other: Any = ms.rescale(model, {"out.weight": 2.0})
    assert other.out.weight is other.table.weight
    assert torch.equal(other.table.weight, 2 * model.table.weight)
    with pytest.raises(ms.InputError, match="are one tensor, but have different factors"):
        ms.rescale(model, {"out.weight": 2.0, "table.weight": 3.0})


class Folding(nn.Module):
    """Every kind of layer that a BatchNorm may follow, with a residual connection, and one it cannot be folded into."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.up, self.up_norm = nn.ConvTranspose2d(3, 3, 3, padding=1), nn.BatchNorm2d(3, affine=False)
        self.after_sum = nn.BatchNorm2d(3)
        self.linear, self.linear_norm = nn.Linear(3, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        x = self.after_sum(self.up_norm(self.up(x)) + x)
        return self.linear_norm(self.linear(torch.relu(x).mean((2, 3))))


def test_folding() -> None:
    torch.manual_seed(0)
    model = Folding().double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    x = torch.randn(5, 1, 4, 4, dtype=torch.float64)
    folded: Any = ms.fold_batchnorm(model)
    assert model.training
    assert isinstance(model.norm, nn.BatchNorm2d)
    left = [name for name, m in folded.named_modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert left == ["after_sum"]
    with torch.no_grad():
        assert torch.allclose(folded(x), model.eval()(x), rtol=1e-12, atol=1e-12)


def test_a_folded_network_has_more_freedom() -> None:
    entry = BY_NAME["residual_batch_norm"]
    inputs, _ = entry.data()
    folded = ms.fold_batchnorm(entry.model())
    with torch.no_grad():
        assert torch.allclose(call(folded, inputs), call(entry.model().eval(), inputs), rtol=1e-12)
    free, held = (ms.symmetries(m, inputs, "neuron") for m in (folded, entry.model()))
    assert free.dimension == held.dimension == 6
    assert {"a.weight", "skip.0.weight"} == {n for n in held.pinned if n != "head.bias"}
    assert set(free.pinned) == {"head.bias"}


def test_folding_what_cannot_be_traced() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ms.ReadError, match="cannot trace Branching"):
        ms.fold_batchnorm(Branching())
