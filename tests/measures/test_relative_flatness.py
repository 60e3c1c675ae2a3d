"""Relative flatness against the dense Hessian."""

import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.measures.relative_flatness import relative_flatness
from tests.support.dense import Dense
from tests.support.zoo import BY_NAME


@pytest.mark.parametrize(
    ("name", "layer"),
    [("mlp", None), ("mlp", "0"), ("residual", "a"), ("sequence", "0"), ("sequence", None), ("pools", None)],
)
def test_relative_flatness_against_the_dense_hessian(name: str, layer: str | None) -> None:
    entry = BY_NAME[name]
    inputs, targets = entry.data()
    model = entry.model()
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    chosen = linear[-1] if layer is None else layer
    dense = Dense(model, (inputs, targets), names=[f"{chosen}.weight"])
    W = dense.held[f"{chosen}.weight"]
    H = dense.hessian.view(*W.shape, *W.shape)
    expected = float(torch.einsum("sj,tj,sktk->", W, W, H))
    score = relative_flatness(entry.model(), (inputs, None), layer=layer)
    assert score.value == pytest.approx(expected, rel=1e-9)
    assert score.details["layer"] == chosen


def test_relative_flatness_where_it_cannot_be() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(2, 1, 4, 4)
    with pytest.raises(
        ms.InputError, match=r"layer='0' is a Conv2d: expected an nn\.Linear, one of layer=\['2', '4'\]"
    ):
        relative_flatness(model, x, layer="0")
    with pytest.raises(ms.InputError, match="layer='head' is not there"):
        relative_flatness(model, x, layer="head")
    with pytest.raises(ms.InputError, match="the model holds none"):
        relative_flatness(nn.Sequential(nn.Conv2d(1, 2, 4), nn.Flatten()), x)
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    with pytest.raises(ms.InputError, match=r"is shared: \['0\.weight', '1\.weight'\]"):
        relative_flatness(tied, torch.randn(2, 3))


class Idle(nn.Module):
    """A layer that forward does not use comes last, as a head of another task does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head, self.idle = nn.Linear(6, 5), nn.Linear(5, 3), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.a(x).relu())
        return out


def test_a_layer_that_forward_does_not_use() -> None:
    model, x = Idle().double(), torch.randn(4, 6, dtype=torch.float64)
    score = relative_flatness(model, x)
    assert score.details["layer"] == "head"
    assert score.value == relative_flatness(ms.read(model, x), x).value == relative_flatness(model, iter([x])).value
    with pytest.raises(
        ms.InputError, match=r"layer='idle': forward does not use its weight\. It uses those of \['a', "
    ):
        relative_flatness(model, x, layer="idle")
