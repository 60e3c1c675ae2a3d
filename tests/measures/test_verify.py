"""The proof finds what is true, and what is not."""

import dataclasses
from itertools import cycle
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.measures.verify import _order
from minsharp.reference.objective import Objective
from minsharp.subject.batches import Batch
from tests.support.zoo import BY_NAME, ZOO, Entry, network


@pytest.mark.parametrize("entry", ZOO, ids=lambda e: e.name)
@pytest.mark.parametrize("scope", ["layer", "neuron"])
def test_the_zoo_holds(entry: Entry, scope: Any) -> None:
    model, data = entry.model(), entry.data()
    result = ms.minimum_sharpness(network(entry), data, scope=scope, curvature="ggn")
    verification = ms.verify(model, data, result)
    assert verification.holds, verification
    exact = sum(result.exact.values())
    assert len(verification.checks) == 6 + exact


PRECISIONS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("name", ["lenet", "transformer", "residual_batch_norm", "tied_autoencoder"])
@pytest.mark.parametrize("power_of_two", [False, True], ids=["any", "powers"])
def test_every_precision_holds_without_labels(name: str, precision: torch.dtype, power_of_two: bool) -> None:
    entry = BY_NAME[name]
    model, (inputs, _) = entry.model(precision), entry.data(20, precision)
    result = ms.minimum_sharpness(model, inputs, scope="neuron", curvature="ggn", power_of_two=power_of_two)
    verification = ms.verify(model, inputs, result)
    assert verification.holds, verification
    own = [check for check in verification.checks if "rounding" in check.claim or "bit for bit" in check.claim]
    assert len(own) == (precision != torch.float64 or power_of_two)


@dataclasses.dataclass(frozen=True)
class Broken(ms.Symmetries):
    """A group that gives one parameter a wrong factor."""

    parameter: str = ""
    factor: float = 1.0

    def log_scales(self, z: Tensor) -> dict[str, Tensor]:
        right = super().log_scales(z)
        return {**right, self.parameter: right[self.parameter] + log(self.factor)}


def broken(result: ms.measures.MinimumSharpness, parameter: str, factor: float) -> ms.measures.MinimumSharpness:
    held = {field.name: getattr(result.symmetries, field.name) for field in dataclasses.fields(result.symmetries)}
    return dataclasses.replace(result, symmetries=Broken(**held, parameter=parameter, factor=factor))


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize(("name", "scope"), [("deep_mlp", "layer"), ("lenet", "neuron")])
def test_a_broken_group_is_found_in_every_precision(name: str, scope: Any, precision: torch.dtype) -> None:
    entry = BY_NAME[name]
    model, data = entry.model(precision), entry.data(10, precision)
    right = ms.minimum_sharpness(model, data, scope=scope)
    for parameter, factor in zip(right.scales, cycle([1.01, 0.25, 1 + 1e-6]), strict=False):
        wrong = broken(right, parameter, factor)
        failed = [c.claim for c in ms.verify(model, data, wrong, directions=1).checks if not c.holds]
        assert "the rescaled network has the same outputs" in failed, parameter


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_swapped_factors_are_found(precision: torch.dtype) -> None:
    """Each parameter gets the factors of another that has the same shape."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).to(precision)
    x = torch.randn(16, 4).to(precision)
    right = ms.minimum_sharpness(model, x, scope="neuron", power_of_two=True)
    e = dict(right.symmetries.exponents)
    e["0.weight"], e["2.weight"] = e["2.weight"], e["0.weight"]
    wrong = dataclasses.replace(right, symmetries=dataclasses.replace(right.symmetries, exponents=e))
    failed = [c.claim for c in ms.verify(model, x, wrong).checks if not c.holds]
    assert "the rescaled network has the same outputs" in failed


def test_what_the_data_does_not_show_is_found_on_random_inputs() -> None:
    """On the data no activation reaches the clamp: a group that takes it for the identity is wrong all the same."""

    class Clamped(nn.Module):
        def __init__(self, high: float) -> None:
            super().__init__()
            self.a, self.b, self.high = nn.Linear(3, 4), nn.Linear(4, 2), high

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.relu(self.a(x)).clamp(max=self.high) if self.high else torch.relu(self.a(x)))

    torch.manual_seed(0)
    model, free = Clamped(30.0).double(), Clamped(0.0).double()
    free.load_state_dict(model.state_dict())
    x = torch.randn(20, 3).double()
    result = ms.minimum_sharpness(free, x)
    assert result.scales
    failed = [c.claim for c in ms.verify(model, x, result).checks if not c.holds]
    assert failed == ["and on random inputs (4 of 4 draws)"]


def test_whole_numbers_stay_in_range_and_masks_are_masks() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(7, 4), nn.Linear(4, 3)

        def forward(self, words: Tensor, mask: Tensor) -> Tensor:
            assert mask.dtype == torch.bool
            return self.out(torch.relu(self.table(words) * mask[..., None]).mean(1))

    torch.manual_seed(0)
    model = Words()
    inputs = {"words": torch.randint(0, 7, (5, 6), dtype=torch.int32), "mask": torch.rand(5, 6) > 0.3}
    verification = ms.verify(model, inputs, ms.minimum_sharpness(model, inputs))
    assert verification.holds, verification
    assert verification.checks[1].claim == "and on random inputs (4 of 4 draws)"


def test_random_inputs_that_the_model_does_not_take_are_left_out() -> None:
    class Positive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.relu(self.a(x.log())))

    torch.manual_seed(0)
    model, x = Positive().double(), torch.rand(9, 3).double() ** 4 + 0.01
    verification = ms.verify(model, x, ms.minimum_sharpness(model, x))
    assert verification.holds
    assert verification.checks[1].claim == "and on random inputs (1 of 4 draws)"


def test_single_precision_inside_is_allowed_for() -> None:
    class Casting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.relu(self.a(x)).float().to(x.dtype))

    torch.manual_seed(0)
    model, x = Casting().double(), torch.randn(9, 3).double()
    result = ms.minimum_sharpness(model, x)
    assert ms.verify(model, x, result).holds
    assert not ms.verify(model, x, broken(result, "a.weight", 1.01)).holds


def test_a_model_that_insists_on_its_precision() -> None:
    class Half(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to(torch.float16))

    model, x = Half(3, 2).half(), torch.randn(4, 3).half()
    with pytest.raises(ms.InputError, match="verify runs a copy of the model in double precision: Half does not run"):
        ms.verify(model, x, ms.minimum_sharpness(model, x))


def test_an_overflow_of_the_network_returned_is_found() -> None:
    """Factors that float16 cannot bear: fine in double precision, not in the network that is handed back."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).half()
    x = torch.randn(8, 3).half() * 4
    result = ms.minimum_sharpness(model, x)
    far = dataclasses.replace(result, z=result.z + 10.2)
    failed = [c.claim for c in ms.verify(model, x, far).checks if not c.holds]
    assert "the rescaled network has the same outputs" not in failed
    assert "in float16, its outputs move no further than by rounding" in failed


def lies(result: ms.measures.MinimumSharpness) -> dict[str, ms.measures.MinimumSharpness]:
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


@pytest.mark.parametrize("size", [1e2, 1e4])
def test_certainty_leaves_rounding(size: float) -> None:
    """With p next to one, the Hessian by autograd is all rounding: no reason to doubt the claim."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    x = size * torch.randn(8, 5).double()
    for precision in (torch.float64, torch.float32, torch.bfloat16):
        result = ms.minimum_sharpness(model.to(precision), x.to(precision))
        verification = ms.verify(model, x.to(precision), result)
        assert verification.holds, verification


def test_a_parameter_without_a_derivative() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.gate = nn.Linear(3, 4), nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * (self.gate >= 0)

    model, x = Gated().double(), torch.randn(5, 3).double()
    assert ms.verify(model, x, ms.minimum_sharpness(model, x)).holds


def test_directions_share_what_they_share() -> None:
    """Several at once are as one by one, over several batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    given = [(torch.randn(n, 5).double(), torch.randint(3, (n,))) for n in (3, 4)]
    objective = Objective(model, given, None, None)
    for name, parameter in model.named_parameters():
        vs = [torch.randn_like(parameter) for _ in range(3)]
        alone = [objective.quadratic_forms(name, [v])[0] for v in vs]
        assert objective.quadratic_forms(name, vs) == alone
        assert 0 not in alone
        with objective.prepared():
            outputs, tangents = objective.tangents([{name: v} for v in vs], objective.batches[0])
            for v, tangent in zip(vs, tangents, strict=True):
                same, one = objective.tangent({name: v}, objective.batches[0])
                assert torch.equal(outputs, same)
                torch.testing.assert_close(tangent, one, rtol=1e-12, atol=0)


def test_no_directions_leave_the_curvature_out() -> None:
    model, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double(), torch.randn(6, 4).double()
    result = ms.minimum_sharpness(model, x)
    claims = [check.claim for check in ms.verify(model, x, result).checks]
    fewer = [check.claim for check in ms.verify(model, x, result, directions=0).checks]
    assert fewer == [claim for claim in claims if not claim.startswith("v^T H v")] != claims


def test_other_data_is_refused() -> None:
    entry = BY_NAME["mlp"]
    result = ms.minimum_sharpness(entry.model(), entry.data())
    with pytest.raises(ms.InputError, match="measured on 5 samples, this data has 7"):
        ms.verify(entry.model(), entry.data(7), result)
    with pytest.raises(ms.InputError, match="reads the data several times"):
        ms.verify(entry.model(), iter([entry.data()]), result)


def test_a_forgotten_loss_is_named() -> None:
    entry, loss = BY_NAME["mlp"], nn.MSELoss()
    (x, y), model = entry.data(), entry.model()
    data = (x, torch.randn_like(model(x)))
    result = ms.minimum_sharpness(model, data, loss)
    assert ms.verify(model, data, result, loss).holds
    with pytest.raises(ms.InputError, match=r"is of MSELoss: pass it too, as in verify\(.* loss\)"):
        ms.verify(model, data, result)
    for lossless in ("jacobian", "margin"):
        assert ms.verify(model, (x, y), ms.minimum_sharpness(model, x, curvature=lossless)).holds
    of_words = ms.minimum_sharpness(nn.Linear(3, 4), torch.randn(2, 5, 3), class_axis=-1)
    assert of_words.loss != "CrossEntropyLoss"
    assert ms.verify(nn.Linear(3, 4), torch.randn(2, 5, 3), of_words, class_axis=-1)


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


class Constant(nn.Module):
    """Outputs that no derivative leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return (3 * self.layer(x)).round()


def test_outputs_that_no_derivative_leads_to() -> None:
    x = torch.randn(6, 3, dtype=torch.float64)
    model = Constant().double()
    assert ms.verify(model, (x, torch.zeros(6, dtype=torch.int64)), ms.minimum_sharpness(model, x)).holds


def test_a_function_without_a_second_derivative() -> None:
    x = torch.randn(6, 3, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(3, 4), nn.Hardsigmoid(), nn.Linear(4, 2)).double()
    result = ms.minimum_sharpness(model, x)
    with pytest.raises(ms.InputError, match=r"second derivatives, and in '0\.weight' there is none.*directions=0"):
        ms.verify(model, x, result)
    assert ms.verify(model, x, result, directions=0).holds


@pytest.mark.parametrize("name", ["lenet", "transformer"])
@pytest.mark.parametrize("scope", ["layer", "neuron"])
def test_an_estimate_holds_to_its_error(name: str, scope: Any) -> None:
    entry = BY_NAME[name]
    model, data = entry.model(), entry.data(20)
    result = ms.minimum_sharpness(model, data, scope=scope, curvature="ggn", tolerance=0.05)
    verification = ms.verify(model, data, result)
    assert verification.holds, verification
    assert any("estimated afresh" in check.claim for check in verification.checks) == (result.standard_error > 0)
    wrong = {key: 1.5 * value for key, value in result.by_parameter.items()}
    if result.standard_error:
        assert not ms.verify(model, data, dataclasses.replace(result, by_parameter=wrong)).holds


def test_the_hessian_of_a_smooth_network_by_an_estimate() -> None:
    """Entries of it are negative where nothing can be rescaled: only their sum counts, of either sign."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    model.get_parameter("4.weight").data.mul_(5)
    x = torch.randn(60, 6)
    data = x, model(x).argmax(1)
    diagonal = ms.hessian_diagonal(model, data, tolerance=0.05)
    assert any(bool((block < 0).any()) for block in diagonal.by_parameter.values())
    for scope in ("layer", "neuron"):
        result = ms.minimum_sharpness(model, diagonal, scope=scope)
        assert result.value < result.trace
        assert ms.verify(model, data, result).holds
    model[3] = nn.GELU()
    wrong = x, model(x).topk(2).indices[:, 1]
    estimated = ms.hessian_diagonal(model, wrong, tolerance=0.05)
    assert estimated.trace.by_parameter["0.weight"] < 0
    result = ms.minimum_sharpness(model, estimated, scope="layer")
    assert result.value == result.lower_bound == pytest.approx(estimated.total)


class Meets(nn.Module):
    """A network whose samples meet after it has been read, as a kernel that torch.export cannot look into may do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head, self.meets = nn.Linear(6, 6), nn.Linear(6, 3), False

    def forward(self, x: Tensor) -> Tensor:
        rare = (x.flip(0) > 3).any(1, keepdim=True) if self.meets else 0
        out: Tensor = self.head(self.layer(x).relu() * (1 + rare))
        return out


def test_samples_that_meet_in_the_data_fail() -> None:
    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).clamp(-2, 2)
    x[8, 0] = 5
    model = Meets().double()
    network = ms.read(model, x)
    result = ms.minimum_sharpness(network, x, curvature="ggn")
    assert ms.verify(network, x, result).holds
    batch = Batch(x, None)
    assert _order(model, batch) < 1e-12
    model.meets = True
    assert _order(model, batch) > 1e-2


def test_data_and_result_the_wrong_way_round() -> None:
    model, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(8, 4)
    result: Any = ms.minimum_sharpness(model, x)
    with pytest.raises(ms.InputError, match=r"result is a tuple: expected .* verify\(model, data, result\)"):
        ms.verify(model, result, (x, x))  # type: ignore[arg-type]
