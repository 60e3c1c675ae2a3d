"""Bits for each tensor: optimal, within the budget, and what they cost."""

import copy
import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import minsharp as ms
from minsharp.errors import MinsharpWarning
from minsharp.measures.noise import quantized
from tests.support.zoo import BY_NAME, network


def by_hand(weight: Tensor, bits: int) -> Tensor:
    """Round to nearest, entry by entry."""
    step = float(weight.abs().max()) / (2 ** (bits - 1) - 1)
    return torch.tensor([round(float(w) / step) * step if step else 0.0 for w in weight.flatten()]).view_as(weight)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_rounding(bits: int) -> None:
    weight = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(bits))
    assert torch.allclose(quantized(weight, bits, "max"), by_hand(weight, bits), atol=1e-6)
    rows = torch.stack([by_hand(row, bits) for row in weight])
    found = quantized(weight, bits, "max-per-channel")
    assert torch.allclose(found, rows, atol=1e-6)
    assert all(len(row.unique()) <= 2**bits - 1 for row in found)
    zero = torch.zeros(3, 2)
    assert torch.equal(quantized(zero, bits, "max-per-channel"), zero)


def cost(h: Tensor, weight: Tensor, bits: int, noise: str) -> float:
    """Half of step²/12 sum h, row by row where each has its own step."""
    rows = zip(h, weight, strict=True) if noise == "max-per-channel" else [(h, weight)]
    return sum(float(a.sum() * (b.abs().max() / (2 ** (bits - 1) - 1)) ** 2) / 24 for a, b in rows)


@pytest.mark.parametrize("noise", ["max", "max-per-channel"])
@pytest.mark.parametrize("budget", [2.0, 2.7, 4.0, 5.5, 8.0, 20.0])
def test_no_assignment_is_cheaper(noise: Any, budget: float) -> None:
    """Against all of them."""
    entry = BY_NAME["deep_mlp"]
    net, choices = network(entry), (2, 3, 4, 8)
    diagonal = ms.hessian_diagonal(net, entry.data())
    result = ms.allocate_bits(net, diagonal, bits=choices, budget=budget, noise=noise)
    weights = {n: p.detach() for n, p in net.parameters.items() if p.dim() > 1}
    total = sum(w.numel() for w in weights.values())
    best = float("inf")
    for bits in itertools.product(choices, repeat=len(weights)):
        if sum(b * w.numel() for b, w in zip(bits, weights.values(), strict=True)) > budget * total * (1 + 1e-12):
            continue
        h = diagonal.by_parameter
        costs = [cost(h[n], w, b, noise) for b, (n, w) in zip(bits, weights.items(), strict=True)]
        best = min(best, sum(costs))
    assert result.increase == pytest.approx(best, rel=1e-9)
    assert result.mean_bits <= budget * (1 + 1e-12)
    assert set(result.bits) == set(weights)


@pytest.mark.parametrize("noise", ["max", "max-per-channel"])
@pytest.mark.parametrize("budget", [2.0, 2.7, 4.0, 7.7])
def test_no_assignment_to_channels_is_cheaper(noise: Any, budget: float) -> None:
    """Against all of them; the costs written out entry by entry."""
    torch.manual_seed(2)
    net: Any = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    choices, diagonal = (2, 4, 8), ms.hessian_diagonal(net, torch.randn(20, 3).double())
    result = ms.allocate_bits(net, diagonal, bits=choices, budget=budget, noise=noise, per="channel")
    rows = [
        (h, (row if noise == "max-per-channel" else net[int(name[0])].weight).detach().abs().max(), row.numel())
        for name in ("0.weight", "2.weight")
        for h, row in zip(diagonal.by_parameter[name], net[int(name[0])].weight, strict=True)
    ]
    best, total = float("inf"), sum(size for *_, size in rows)
    for bits in itertools.product(choices, repeat=len(rows)):
        if sum(b * size for b, (*_, size) in zip(bits, rows, strict=True)) > budget * total * (1 + 1e-12):
            continue
        steps = [float(top) / (2 ** (b - 1) - 1) for b, (_, top, _) in zip(bits, rows, strict=True)]
        best = min(best, sum(float(h.sum()) * step**2 / 24 for (h, *_), step in zip(rows, steps, strict=True)))
    assert result.increase == pytest.approx(best, rel=1e-9)
    assert result.lower_bound == result.increase
    assert [len(each) for each in result.bits.values() if isinstance(each, tuple)] == [4, 3]
    spent = sum(b * size for b, (*_, size) in zip([b for t in result.bits.values() for b in t], rows, strict=True))  # type: ignore[union-attr]
    assert result.mean_bits == pytest.approx(spent / total)
    assert result.mean_bits <= budget * (1 + 1e-12)
    assert result.increase <= ms.allocate_bits(net, diagonal, bits=choices, budget=budget, noise=noise).increase


def test_bits_of_channels_go_on(tmp_path: Path) -> None:
    """Into JSON, files, rounding by hand, predictions and the table."""
    entry = BY_NAME["lenet"]
    net, data = network(entry), entry.data()
    found = ms.allocate_bits(net, data, budget=4.0, per="channel", noise="max-per-channel")
    plain = json.loads(json.dumps(found.to_dict()))
    assert (plain["per"], plain["bytes"]) == ("channel", found.size)
    assert plain["bits"] == {name: list(each) for name, each in found.bits.items()}  # type: ignore[arg-type]
    assert ms.load(found.save(tmp_path / "bits.json")) == found
    assert ms.allocate_bits(net, data, size=found.size, per="channel", noise="max-per-channel").bits == found.bits
    assert re.search(r"weight +\d-\d, mean \d", repr(found))
    options: Any = {"noise": "max-per-channel", "parameters": "*.weight"}
    level, listed = ms.noise_robustness(net, data, bits=[found.bits, plain["bits"]], **options).levels
    assert listed == level
    moved = {
        name: torch.stack([by_hand(row.detach(), b) for row, b in zip(net.parameters[name], bits, strict=True)])
        for name, bits in plain["bits"].items()
    }
    assert all(
        torch.allclose(quantized(net.parameters[name].detach(), bits, "max-per-channel"), moved[name].to(torch.double))
        for name, bits in plain["bits"].items()
    )
    predicted = ms.predicted_accuracy(net, data, bits=plain["bits"], **options)
    assert predicted == ms.predicted_accuracy(net, data, bits=found.bits, **options)
    same = {name: [5] * len(bits) for name, bits in plain["bits"].items()}
    five = ms.predicted_accuracy(net, data, bits=same, **options)
    assert five.accuracy == ms.predicted_accuracy(net, data, bits=5, **options).accuracy


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([4, 4], r"bits of '0\.weight': 2 numbers, expected one number, or as many as the first axis"),
        ([4] * 40 + [1], "bits=1: expected a whole number from 2"),
        ("four", "bits='four': expected a whole number"),
        (4.0, r"bits=4\.0: expected a whole number"),
    ],
)
def test_bits_of_channels_that_cannot_be(given: Any, message: str) -> None:
    entry = BY_NAME["mlp"]
    net = network(entry)
    bits = {name: 4 for name, p in net.parameters.items() if p.dim() > 1} | {"0.weight": given}
    for measure in (ms.noise_robustness, ms.predicted_accuracy):
        options: Any = {"bits": [bits] if measure is ms.noise_robustness else bits, "noise": "max"}
        with pytest.raises(ms.InputError, match=message):
            measure(net, entry.data(), **options)


def test_a_channel_that_would_gain_is_refused() -> None:
    entry = BY_NAME["mlp"]
    net = network(entry)
    diagonal = ms.hessian_diagonal(net, entry.data())
    first = torch.arange(len(net.parameters["0.weight"])) == 1
    lost = changed(diagonal, lambda n, h: torch.where(first[:, None], -1e-3 - h, h) if n == "0.weight" else h)
    with pytest.raises(ms.InputError, match=r"curvature of channel 1 of '0\.weight', times its noise, adds up to -"):
        ms.allocate_bits(net, lost, budget=4.0, per="channel")


def plain_network() -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.randn(20, 4)


def test_results_of_another_network_are_refused() -> None:
    """Also where its shapes would broadcast."""
    model, x = plain_network()
    diagonal = ms.hessian_diagonal(model, x)
    for other in (nn.Sequential(nn.Linear(4, 1), nn.ReLU(), nn.Linear(1, 3)), nn.Linear(4, 3)):
        with pytest.raises(
            ms.InputError, match=r"these results are of another network: the model has no \['0\.weight'"
        ):
            ms.allocate_bits(other, diagonal, budget=4.0)
    with pytest.raises(ms.InputError, match=r"need the diagonal, got a Trace: pass hessian_diagonal\(model, data\)"):
        ms.allocate_bits(model, ms.hessian_trace(model, x), budget=4.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    """Where curvature was measured before they came to be so."""
    model, x = plain_network()
    diagonal = ms.hessian_diagonal(model, x)
    with torch.no_grad():
        next(model.parameters())[1, 2] = value
    for per in ("tensor", "channel"):
        with pytest.raises(ms.NonFiniteError, match=r"the weights of '0\.weight' are not all finite"):
            ms.allocate_bits(model, diagonal, budget=4.0, per=per)
    for noise in ("relative", "max", "max-per-channel"):
        with pytest.raises(ms.NonFiniteError, match=r"the weights of '0\.weight' are not all finite"):
            ms.minimum_sharpness(model, diagonal, scope="neuron", noise=noise)


def test_bits_as_numpy_and_torch_have_them() -> None:
    model, x = plain_network()
    data, diagonal = (x, model(x).argmax(1)), ms.hessian_diagonal(model, x)
    expected = ms.allocate_bits(model, diagonal, bits=(2, 4, 8), budget=4.0)
    for bits in ([8, 2, 4, 4], {2, 4, 8}, np.array([2, 4, 8]), torch.tensor([2, 4, 8]), (b for b in (2, 4, 8))):
        assert ms.allocate_bits(model, diagonal, bits=bits, budget=4.0) == expected  # type: ignore[arg-type]
    rows: Any = {"0.weight": (2, 3, 4, 5, 6, 7), "2.weight": 4}
    level, four = ms.noise_robustness(model, data, noise="max", bits=[rows, 4]).levels
    assert level.bits == rows
    for make in (list, np.array, torch.tensor):
        given: Any = {"0.weight": make((2, 3, 4, 5, 6, 7)), "2.weight": np.int64(4)}
        assert ms.noise_robustness(model, data, noise="max", bits=[given]).levels == (level,)
        found = ms.predicted_accuracy(model, data, noise="max", bits=given)
        assert found == ms.predicted_accuracy(model, data, noise="max", bits=rows)
        same: Any = make([4, 4])
        assert ms.noise_robustness(model, data, noise="max", bits=same).levels == (four, four)
    with pytest.raises(ms.InputError, match=r"bits of '0\.weight': 2 numbers, expected one number, or as many as the"):
        ms.predicted_accuracy(model, data, noise="max", bits=rows | {"0.weight": np.array([2, 3])})


def test_bits_for_what_is_not_there_are_refused() -> None:
    model, x = plain_network()
    bits = {"0.weight": 4, "2.weight": 4, "4.weight": 4}
    with pytest.raises(ms.InputError, match=r"bits for \['4\.weight'\]: the network has no such parameters, but \['0"):
        ms.predicted_accuracy(model, x, noise="max", bits=bits)
    with pytest.raises(ms.InputError, match=r"bits for \['4\.weight'\]: the network has no such parameters, but \['0"):
        ms.noise_robustness(model, x, noise="max", bits=[bits])


@pytest.mark.parametrize("budget", [2.1, 2.3, 3.3, 4.1, 4.35, 5.7])
@pytest.mark.parametrize("per", ["tensor", "channel"])
def test_budgets_that_are_no_binary_fractions(budget: float, per: Any) -> None:
    """Are met exactly where they can be, and come back as they were given."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 100, bias=False), nn.ReLU(), nn.Linear(100, 10, bias=False))
    choices = range(2, 9)
    found = ms.allocate_bits(model, torch.randn(30, 10), bits=choices, budget=budget, per=per)
    assert found.budget == budget
    assert found.mean_bits <= budget
    assert found.lower_bound <= found.increase
    if per == "channel":
        assert found.mean_bits == pytest.approx(budget, abs=10 / 2000)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("bits", {"0.weight": [4] * 5, "2.weight": [4] * 3}, "24 weights of '0.weight' do not make 5 channels"),
        ("bits", {"0.weight": [], "2.weight": 4}, "24 weights of '0.weight' do not make 0 channels"),
        ("bits", {"2.weight": 4}, "its fields speak of different parameters"),
        ("sizes", {"0.weight": 24, "2.weight": 0}, "0 weights of '2.weight' do not make"),
        ("curvature", "fisher", "expected one of"),
    ],
)
def test_damaged_files(field: str, value: Any, message: str, tmp_path: Path) -> None:
    model, x = plain_network()
    path = ms.allocate_bits(model, x, budget=4.0, per="channel").save(tmp_path / "bits.json")
    document = json.loads(path.read_text())
    document["fields"][field] = value
    path.write_text(json.dumps(document))
    with pytest.raises(ms.InputError, match=message):
        ms.load(path)


def test_what_is_predicted_is_named() -> None:
    model, x = plain_network()
    loss, margin = (ms.allocate_bits(model, x, budget=4.0, curvature=c) for c in ("ggn", "margin"))
    assert "predicted increase of the loss" in repr(loss)
    assert "predicted squared noise to margin, halved" in repr(margin)
    assert margin.curvature == "margin"


class Mixed(nn.Module):
    """Words, a convolution in groups, a transposed one and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.grouped = nn.Conv1d(4, 6, 3, groups=2)
        self.up = nn.ConvTranspose1d(6, 5, 2)
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.grouped(self.words(x).transpose(1, 2)).relu()).relu()
        last: Tensor = self.last(y.mean(2))
        return last


def test_every_kind_of_layer_has_bits_along_the_first_axis() -> None:
    torch.manual_seed(0)
    model, x = Mixed(), torch.randint(7, (12, 6))
    found = ms.allocate_bits(model, x, budget=4.0, per="channel", noise="max-per-channel")
    rows = {"words.weight": 7, "grouped.weight": 6, "up.weight": 6, "last.weight": 3}
    assert {name: len(each) for name, each in found.bits.items() if isinstance(each, tuple)} == rows
    data = (x, model(x).argmax(1))
    level = ms.noise_robustness(model, data, noise="max-per-channel", bits=[found.bits]).levels[0]
    by_rows = Mixed()
    state = {
        n: torch.stack([by_hand(row, b) for row, b in zip(w, found.bits[n], strict=True)]) if n in rows else w  # type: ignore[arg-type]
        for n, w in model.state_dict().items()
    }
    by_rows.load_state_dict(state)
    assert level.accuracy is not None
    assert level.accuracy.mean == float((by_rows(x).argmax(1) == data[1]).double().mean())


def test_bytes_and_json() -> None:
    entry = BY_NAME["lenet"]
    net, data = network(entry), entry.data()
    result = ms.allocate_bits(net, data, budget=4.0)
    again = ms.allocate_bits(net, data, size=result.size)
    assert again.bits == result.bits
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["bits"] == dict(result.bits)
    assert plain["bytes"] == result.size
    assert "bits per weight (at most 4)" in repr(result)
    level = ms.noise_robustness(net, data, noise="max", bits=[result.bits]).levels[0]
    assert level.loss is not None
    assert ms.predicted_accuracy(net, data, noise="max", bits=result.bits).accuracy is not None
    margin = ms.allocate_bits(net, data, budget=4.0, curvature="margin")
    assert margin.mean_bits <= 4


def test_rounded_networks_are_measured() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(30, 4)
    data = (x, model(x).argmax(1))
    result = ms.noise_robustness(model, data, noise="max", bits=[2, 16])
    rounded = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    rounded.load_state_dict({n: by_hand(w, 2) if w.dim() > 1 else w for n, w in model.state_dict().items()})
    low, high = result.levels
    assert low.accuracy is not None
    assert high.accuracy is not None
    assert low.accuracy.mean == float((rounded(x).argmax(1) == data[1]).double().mean())
    assert low.accuracy.standard_error == 0
    assert (high.accuracy.mean, high.bits, result.trials) == (1, 16, 1)
    assert repr(result).startswith("Weights rounded to nearest, relative to each tensor's largest weight, 1 trial\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 1.0}, r"budget=1\.0 bits per weight: no assignment meets it\. With 2 bits throughout"),
        ({"size": 3}, "size=3 bytes: no assignment meets it"),
        ({"budget": 4.0, "size": 100}, "expected one of them"),
        ({"budget": "four"}, "budget='four', size=None: expected a number"),
        ({"size": True}, "budget=None, size=True: expected a number"),
        ({"size": 10.5}, r"budget=None, size=10\.5: expected a number, .* or a whole one"),
        ({"costs": "guess"}, "costs='guess': expected 'curvature', 'measured' or 'both'"),
        ({"costs": "both", "per": "channel"}, "costs='both' takes a run of the network for each group"),
        ({"costs": "both", "curvature": "margin"}, "increases of the loss, which curvature='margin' does not give"),
        ({"diagonal": 3}, r"diagonal is a int: expected hessian_diagonal\(model, data\)"),
        ({"budget": 4.0, "bits": (1, 2)}, "bits=1: expected a whole number from 2"),
        ({"budget": 4.0, "bits": ()}, "expected some numbers of bits"),
        ({"budget": 4.0, "bits": 4}, r"bits=4: expected numbers of bits to choose from, as in bits=\(2, 3, 4, 8\)"),
        ({"budget": float("nan")}, "budget=nan, size=None: expected a number"),
        ({"budget": 4.0, "noise": "relative"}, "expected 'max' or 'max-per-channel'"),
        ({"budget": 4.0, "parameters": "*.bias"}, "nothing to give bits to"),
        ({"budget": 4.0, "per": "layer"}, "per='layer': expected 'tensor' or 'channel'"),
        ({"budget": 1.5, "per": "channel"}, r"budget=1\.5 bits per weight: no assignment meets it"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    entry = BY_NAME["mlp"]
    with pytest.raises(ms.InputError, match=message):
        ms.allocate_bits(network(entry), entry.data(), **options)


@pytest.mark.parametrize("bits", [4, [], [1]])
def test_bits_of_robustness(bits: Any) -> None:
    entry = BY_NAME["mlp"]
    with pytest.raises(ms.InputError, match="bits="):
        ms.noise_robustness(network(entry), entry.data(), noise="max", bits=bits)
    with pytest.raises(ms.InputError, match="quantizers make the noises"):
        ms.noise_robustness(network(entry), entry.data(), bits=[4])


def changed(diagonal: ms.Diagonal, change: Any) -> ms.Diagonal:
    """With other sums."""
    sums = {n: change(n, h) for n, h in diagonal.sum.sums.items()}
    return dataclasses.replace(diagonal, sum=dataclasses.replace(diagonal.sum, sums=sums))


def test_curvature_that_is_negative() -> None:
    """A few negative entries are an estimate's; a tensor that would gain from being rounded is refused."""
    entry = BY_NAME["mlp"]
    net = network(entry)
    diagonal = ms.hessian_diagonal(net, entry.data())
    lost = changed(diagonal, lambda n, h: -h if n == "0.weight" else h)
    with pytest.raises(
        ms.InputError, match=r"the curvature of '0\.weight', times its noise, adds up to -.* ask for curvature=\"ggn\""
    ):
        ms.allocate_bits(net, lost, budget=4.0)
    tiny = changed(diagonal, lambda n, h: h - 1e-9 * float(h.mean()))
    assert ms.allocate_bits(net, tiny, budget=4.0).bits == ms.allocate_bits(net, diagonal, budget=4.0).bits


def test_a_smooth_network_by_an_estimate() -> None:
    """What the error says is what helps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    data = (torch.randn(30, 6), torch.randint(3, (30,)))
    with pytest.raises(ms.NotExactError, match=r"tolerance=0\.01"):
        ms.allocate_bits(model, data, budget=4.0)
    assert ms.allocate_bits(model, data, budget=4.0, tolerance=0.1).mean_bits <= 4
    assert ms.allocate_bits(model, data, budget=4.0, curvature="ggn").mean_bits <= 4


def test_tensors_of_zeros_cost_nothing() -> None:
    model: Any = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].weight.zero_()
    found = ms.allocate_bits(model, torch.randn(30, 6), budget=6.0)
    assert found.by_parameter["0.weight"] == 0
    assert found.bits == {"0.weight": 2, "2.weight": 8}


@pytest.mark.parametrize("sigmas", [[], "0.1", 0.1, [-1.0], ["0.1"], [float("nan")], np.array([-0.1])])
def test_sizes_of_robustness(sigmas: Any) -> None:
    entry = BY_NAME["mlp"]
    with pytest.raises(ms.InputError, match="sigmas="):
        ms.noise_robustness(network(entry), entry.data(), sigmas=sigmas)


def test_outputs_that_are_no_numbers_have_no_robustness() -> None:
    entry = BY_NAME["mlp"]
    inputs, targets = entry.data()
    assert isinstance(inputs, Tensor)
    with pytest.raises(ms.NonFiniteError, match="the outputs on this data are not finite"):
        ms.noise_robustness(network(entry), (inputs * torch.nan, targets))


def risen(model: nn.Module, x: Tensor, y: Tensor, name: str, bits: int, noise: Any) -> float:
    """How much the loss grows, by hand: a copy with one tensor rounded; a rise below zero is none."""
    other = copy.deepcopy(model)
    weight = dict(other.named_parameters())[name]
    with torch.no_grad():
        rows = [weight] if noise == "max" else list(weight)
        rounded = [by_hand(row.detach(), bits) for row in rows]
        weight.copy_(rounded[0] if noise == "max" else torch.stack(rounded))
        return max(float(cross_entropy(other(x), y)) - float(cross_entropy(model(x), y)), 0.0)


@pytest.mark.parametrize("noise", ["max", "max-per-channel"])
def test_costs_that_are_measured(noise: Any) -> None:
    """Each tensor rounded by hand; both is the sum, and what is chosen is the best of all assignments."""
    model, x, y = labelled()
    names, choices, loader = ["0.weight", "2.weight"], (2, 3, 4, 8), [(x[:17], y[:17]), (x[17:], y[17:])]
    alone = {(n, b): risen(model, x, y, n, b, noise) for n in names for b in choices}
    before = {n: p.clone() for n, p in model.named_parameters()}
    options: Any = {"bits": choices, "noise": noise}
    curved = {b: ms.allocate_bits(model, (x, y), costs="curvature", budget=b, bits=(b,), noise=noise) for b in choices}
    for costs in ("measured", "both"):
        found = ms.allocate_bits(model, loader, costs=costs, **options)
        each: dict[Any, float] = dict(alone)
        if costs == "both":
            each = {(n, b): rise + curved[b].by_parameter[n] for (n, b), rise in alone.items()}
        for name in names:
            assert found.by_parameter[name] == pytest.approx(each[name, found.bits[name]], rel=1e-6, abs=1e-7)
        for b in choices:
            assert found.uniform[str(b)] == pytest.approx(sum(each[n, b] for n in names), rel=1e-6, abs=1e-7)
        fit = [(a, b) for a in choices for b in choices if 24 * a + 18 * b <= 4 * 42]
        assert found.increase == pytest.approx(min(each[names[0], a] + each[names[1], b] for a, b in fit), rel=1e-6)
        assert (found.costs, found.warning, found.predicted) == (costs, "", "increase of the loss")
        assert found.to_dict()["costs"] == costs
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def labelled() -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    x = torch.randn(40, 4).double()
    return model, x, (model(x) + torch.randn(40, 3)).argmax(1)


def test_costs_are_those_that_can_be() -> None:
    """Both with labels and tensors; curvature for what has no labels, for channels, for the margin, for a diagonal."""
    model, x, y = labelled()
    data, diagonal = (x, y), ms.hessian_diagonal(model, x)
    both = ms.allocate_bits(model, data)
    assert both.costs == "both"
    assert ms.allocate_bits(model, data, diagonal=diagonal).bits == both.bits
    assert ms.allocate_bits(model, iter([data])) == both
    measured = ms.allocate_bits(model, data, costs="measured")
    assert ms.allocate_bits(model, iter([data]), costs="measured") == measured
    curved: list[tuple[Any, Any]] = [
        (x, {}), (diagonal, {}), (data, {"per": "channel"}), (data, {"curvature": "margin"}),
        (iter([x]), {}), (data, {"costs": "curvature"}),
    ]  # fmt: skip
    for given, options in curved:
        assert ms.allocate_bits(model, given, **options).costs == "curvature"
    assert ms.allocate_bits(model, data, parameters="2.*").bits.keys() == {"2.weight"}
    assert ms.allocate_bits(model, data, parameters="2.*", costs="measured").bits.keys() == {"2.weight"}
    with pytest.raises(ms.InputError, match=r'pass data=\(inputs, targets\), or ask for costs="curvature"'):
        ms.allocate_bits(model, x, costs="measured")
    with pytest.raises(ms.InputError, match=r"costs='both' needs data with targets, got a Diagonal: pass it beside"):
        ms.allocate_bits(model, diagonal, costs="both")


def test_a_smooth_network_is_measured_without_its_hessian() -> None:
    model, x, y = labelled()
    model[1] = nn.Tanh()
    found = ms.allocate_bits(model, (x, y), costs="measured")
    assert found.costs == "measured"
    assert found.mean_bits <= 4


def test_two_bits_by_curvature_are_warned_of() -> None:
    model, x, _ = labelled()
    result = ms.allocate_bits(model, x, budget=2.0)
    assert result.warning.startswith("2 bits in 0.weight, 2.weight: what curvature alone predicts there")
    assert result.warning in repr(result)
    assert not ms.allocate_bits(model, x, bits=(3, 4), budget=3.0).warning
    per = ms.allocate_bits(model, x, budget=2.0, per="channel")
    assert per.warning.startswith("2 bits in 0.weight")
    margin = ms.allocate_bits(model, x, budget=2.0, curvature="margin")
    told = {r.warning: r for r in (result, per, margin)}
    assert ['costs="both"' in warning for warning in told] == [True, False]  # where it can be asked for
    assert all(r.to_dict()["warning"] == warning for warning, r in told.items())


def test_what_is_refused_is_refused_before_anything_is_measured() -> None:
    """Whatever the costs are made of; a model that would complain of being run."""

    class Untouched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError

    model, x, y = labelled()
    junk: list[dict[str, Any]] = [
        {"tolerance": 7}, {"seed": "a"}, {"memory": -1}, {"curvature": "nonsense"}, {"budget": 1.0}, {"size": 1.5},
        {"budget": "four"},
    ]  # fmt: skip
    for each in junk:
        for costs in ("measured", "both", "curvature"):
            name = next(iter(each))
            with pytest.raises(ms.InputError, match=f"{name}="):
                ms.allocate_bits(Untouched(), (x, y), costs=costs, **each)
    diagonal = ms.hessian_diagonal(model, x)
    with pytest.raises(ms.InputError, match="two diagonals, one in place of data"):
        ms.allocate_bits(model, diagonal, diagonal=diagonal)


def test_parameters_choose_from_a_diagonal_too() -> None:
    model, x, y = labelled()
    diagonal = ms.hessian_diagonal(model, x)
    assert list(ms.allocate_bits(model, (x, y), diagonal=diagonal, parameters="2.*").bits) == ["2.weight"]
    assert list(ms.allocate_bits(model, diagonal, parameters="2.*").bits) == ["2.weight"]
    with pytest.raises(ms.InputError, match=r"parameters='4\.\*': nothing matches"):
        ms.allocate_bits(model, (x, y), diagonal=diagonal, parameters="4.*")


def test_what_the_error_shows_is_what_is_negative() -> None:
    """A channel with large weights and negative curvature, in a tensor whose curvature adds up to more than zero."""
    model, x, _ = labelled()
    with torch.no_grad():
        next(model.parameters())[0] = 100.0
    diagonal = ms.hessian_diagonal(model, x)
    odd = changed(diagonal, lambda n, h: torch.cat([-torch.ones_like(h[:1]), torch.ones_like(h[1:])]))
    with pytest.raises(ms.NegativeError, match=r"'0\.weight', times its noise, adds up to -\d"):
        ms.allocate_bits(model, odd, noise="max-per-channel")


def test_a_loss_that_is_not_finite_before_rounding_is_not_blamed_on_it() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        next(model.parameters()).fill_(1e30)
    with pytest.raises(ms.NonFiniteError, match="not finite with the weights as they are, before rounding"):
        ms.allocate_bits(model, (torch.ones(3, 2), torch.zeros(3, 2)), nn.MSELoss(), costs="measured")


def test_roundings_that_break_the_network_are_named() -> None:
    class Inverse(nn.Module):
        """Infinite where a weight is rounded to zero."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([[1.0, 0.1]]))

        def forward(self, x: Tensor) -> Tensor:
            return x / self.weight

    data = (torch.ones(3, 2), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ms.NonFiniteError, match="with 'weight' rounded to 2 bits the loss is not finite"):
        ms.allocate_bits(Inverse(), data, costs="measured")
    with pytest.raises(ms.LossError, match="weighs nothing"):
        ms.allocate_bits(labelled()[0], (torch.ones(3, 4).double(), torch.full((3,), -100)), costs="measured")


def test_labels_that_are_the_tokens_are_warned_of() -> None:
    """However the bits are chosen."""
    torch.manual_seed(0)
    model, ids = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)), torch.arange(12).view(2, 6) % 9
    diagonal = ms.hessian_diagonal(model, (ids, ids), nn.CrossEntropyLoss(), class_axis=-1)
    each: tuple[Any, ...] = ({"costs": "measured"}, {"costs": "both"}, {"diagonal": diagonal})
    for options in each:
        with pytest.warns(MinsharpWarning, match="the labels are the tokens that go in") as told:
            ms.allocate_bits(model, (ids, ids), class_axis=-1, **options)
        assert len(told) == 1
