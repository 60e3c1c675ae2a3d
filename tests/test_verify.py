"""The proof finds what is true, and what is not."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms

from .zoo import BY_NAME, ZOO, Entry


@pytest.mark.parametrize("entry", ZOO, ids=lambda e: e.name)
@pytest.mark.parametrize("scope", ["layer", "neuron"])
def test_the_zoo_holds(entry: Entry, scope: Any) -> None:
    model, data = entry.model(), entry.data()
    result = ms.minimum_sharpness(model, data, scope=scope, curvature="ggn")
    verification = ms.verify(model, data, result)
    assert verification.holds, verification
    exact = sum(result.exact.values())
    assert len(verification.checks) == 4 + exact


def test_single_precision_and_no_labels() -> None:
    entry = BY_NAME["lenet"]
    model, (inputs, _) = entry.model(torch.float32), entry.data(20, torch.float32)
    result = ms.minimum_sharpness(model, inputs, scope="neuron")
    assert ms.verify(model, inputs, result).holds


def lies(result: ms.MinimumSharpness) -> dict[str, ms.MinimumSharpness]:
    return {
        "the rescaled network": dataclasses.replace(result, z=result.z + 1, symmetries=_wrong(result.symmetries)),
        "its trace": dataclasses.replace(result, by_parameter={n: 2 * v for n, v in result.by_parameter.items()}),
        "what was promised": dataclasses.replace(result, value=0.9 * result.value),
        "the lower bound": dataclasses.replace(result, lower_bound=1.1 * result.value),
    }


def _wrong(symmetries: ms.Symmetries) -> ms.Symmetries:
    """A group that forgets what the first weight does."""
    exponents = {n: e for n, e in symmetries.exponents.items() if n != "0.weight"}
    return dataclasses.replace(symmetries, exponents=exponents)


@pytest.mark.parametrize("claim", ["the rescaled network", "its trace", "what was promised", "the lower bound"])
def test_lies_are_found(claim: str) -> None:
    entry = BY_NAME["deep_mlp"]
    model, data = entry.model(), entry.data()
    verification = ms.verify(model, data, lies(ms.minimum_sharpness(model, data))[claim])
    assert not verification.holds
    assert any(c.claim.startswith(claim) for c in verification.checks if not c.holds)
    assert "FAILS" in repr(verification)


def test_a_false_claim_of_exactness_is_found() -> None:
    entry = BY_NAME["gelu"]
    model, data = entry.model(), entry.data()
    result = ms.minimum_sharpness(model, data, curvature="ggn")
    claimed = dataclasses.replace(result, exact=dict.fromkeys(result.exact, True))
    failed = [c.claim for c in ms.verify(model, data, claimed).checks if not c.holds]
    assert failed == ["v^T H v = ||S^T J v||^2 in 0.weight", "v^T H v = ||S^T J v||^2 in 0.bias"]


def test_a_parameter_without_a_derivative() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.gate = nn.Linear(3, 4), nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * (self.gate >= 0)

    model, x = Gated().double(), torch.randn(5, 3).double()
    assert ms.verify(model, x, ms.minimum_sharpness(model, x)).holds


def test_other_data_is_refused() -> None:
    entry = BY_NAME["mlp"]
    result = ms.minimum_sharpness(entry.model(), entry.data())
    with pytest.raises(ms.InputError, match="measured on 5 samples, this data has 7"):
        ms.verify(entry.model(), entry.data(7), result)
    with pytest.raises(ms.InputError, match="reads the data several times"):
        ms.verify(entry.model(), iter([entry.data()]), result)


def test_plain_data() -> None:
    entry = BY_NAME["mlp"]
    result = ms.minimum_sharpness(entry.model(), entry.data())
    plain: Any = ms.verify(entry.model(), entry.data(), result).to_dict()
    assert plain["holds"] is True
    assert plain["checks"][0]["claim"] == "the rescaled network has the same outputs"


# Noise


def classifier() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Two clusters far apart, told apart by one weight."""
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    x = torch.cat([torch.ones(50, 1), -torch.ones(50, 1)])
    return model, (x, (x[:, 0] < 0).long())


def test_noise_flips_what_it_should() -> None:
    """The prediction flips where the difference of the weights, N(2, 2 sigma^2), is negative."""
    model, data = classifier()
    result = ms.noise_robustness(model, data, sigmas=[0.0, 2.0], trials=400)
    still, loud = result.levels
    assert still.accuracy is not None
    assert loud.accuracy is not None
    assert still.loss is not None
    assert loud.loss is not None
    assert (still.accuracy.mean, still.agreement.mean) == (1, 1)
    expected = 0.5 * (1 + torch.erf(torch.tensor(2 / (2 * 2**0.5 * 2**0.5)))).item()
    assert abs(loud.accuracy.mean - expected) < 4 * loud.accuracy.standard_error
    assert loud.agreement == loud.accuracy
    assert loud.loss.mean > still.loss.mean


def test_relative_noise_does_not_see_layer_scales() -> None:
    entry = BY_NAME["deep_mlp"]
    model, data = entry.model(), entry.data(50)
    other = ms.rescale(model, ms.symmetries(model, data[0]).random(0))
    a, b = (ms.noise_robustness(m, data, sigmas=[0.2], trials=3, noise="relative") for m in (model, other))
    assert a.levels[0].agreement == b.levels[0].agreement
    loud = ms.noise_robustness(other, data, sigmas=[0.2], trials=3)
    assert loud.levels[0].agreement != b.levels[0].agreement


def test_noise_without_labels() -> None:
    model, (x, _) = classifier()
    result = ms.noise_robustness(model, x, sigmas=[0.1], trials=2)
    assert result.levels[0].accuracy is None
    assert result.levels[0].loss is None
    assert "-" in repr(result)
    assert result.to_dict()["levels"][0]["accuracy"] is None


def test_noise_is_seeded() -> None:
    model, data = classifier()
    a, b, c = (ms.noise_robustness(model, data, sigmas=[1.0], trials=5, seed=s) for s in (1, 1, 2))
    assert a.levels == b.levels != c.levels


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "uniform"}, "noise='uniform': expected"),
        ({"trials": 1}, "at least 2"),
        ({"sigmas": []}, "expected sizes of noise"),
        ({"sigmas": [-0.1]}, "none negative"),
    ],
)
def test_wrong_noise(options: dict[str, Any], message: str) -> None:
    model, data = classifier()
    with pytest.raises(ms.InputError, match=message):
        ms.noise_robustness(model, data, **options)
