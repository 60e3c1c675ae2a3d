"""Mixtures of experts are read, and run in float64, by the products that can be: as transformers names them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.subject.modes import eval_mode

X, Y = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])


class Experts(nn.Module):
    """One expert of three for each sample, in three ways."""

    def __init__(self, config: Any):
        super().__init__()
        self.config, self._is_expert_parallel = config, False
        self.gate = nn.Linear(4, 3)
        self.weight = nn.Parameter(torch.randn(3, 3, 4))

    def forward(self, x: Tensor) -> Tensor:
        expert = self.gate(x).argmax(1)
        if self.config._experts_implementation == "batched_mm":
            return torch.bmm(self.weight[expert], x.unsqueeze(-1)).squeeze(-1)
        assert x.dtype == torch.float32  # as the fused kernel has it
        out = x.new_zeros(len(x), 3)
        for i in expert.unique().tolist():
            out[expert == i] = x[expert == i] @ self.weight[i].T
        return out


def mixture(name: str | None) -> Experts:
    torch.manual_seed(0)
    return Experts(SimpleNamespace(_experts_implementation=name))


@pytest.mark.parametrize("name", ["eager", "grouped_mm", "batched_mm", None])
def test_every_implementation_is_measured_alike(name: str | None) -> None:
    model = mixture(name)
    found = ms.hessian_trace(model, (X, Y))
    probabilities = model(X).detach().softmax(1)
    assert found.total == pytest.approx(float(((1 - probabilities.square().sum(1)) * X.square().sum(1)).mean()))
    minimum = ms.minimum_sharpness(model, (X, Y))
    assert ms.verify(model, (X, Y), minimum).holds
    assert model.config._experts_implementation == name


def test_what_was_chosen_comes_back_after_an_error() -> None:
    model = mixture("eager")
    seen = []

    def failing() -> None:
        with eval_mode(model):
            seen.append(model.config._experts_implementation)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert seen == ["batched_mm"]
    assert model.config._experts_implementation == "eager"
