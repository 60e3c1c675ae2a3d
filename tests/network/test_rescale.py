"""Copies with parameters multiplied by factors."""

from typing import Any

import pytest
import torch
from torch import nn

import minsharp as ms
from tests.support.zoo import BY_NAME


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


class Keeping(nn.Module):
    """Keeps in eval mode what it made of a parameter, as LeViT of timm does, until it is trained again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.kept: dict[str, torch.Tensor] = {}

    def train(self, mode: bool = True) -> "Keeping":
        if mode:
            self.kept = {}
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.first.weight.mul(1) if self.training else self.kept.setdefault("w", self.first.weight.mul(1))
        y: torch.Tensor = self.second((x @ made.T + self.first.bias).relu())
        return y


@pytest.mark.parametrize("training", [True, False])
def test_what_a_model_keeps_of_its_weights_is_made_anew(training: bool) -> None:
    torch.manual_seed(0)
    model, x = Keeping().eval(), torch.randn(5, 3)
    with torch.no_grad():
        expected = model(x)
        kept = model.kept["w"]
        model.training = training
        model.second.training = not training
        other = ms.rescale(model, {"first.weight": 4.0, "first.bias": 4.0, "second.weight": 0.25})
        assert (other.training, other.get_submodule("second").training) == (training, not training)
        torch.testing.assert_close(other.eval()(x), expected)
    assert model.kept["w"] is kept
