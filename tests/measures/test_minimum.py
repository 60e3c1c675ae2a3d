"""Minimum sharpness: what no rescaling can fool."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import minsharp as ms
from minsharp.measures.program import _terms
from minsharp.network.symmetry import group
from tests.support.random_networks import COMMON, networks
from tests.support.zoo import BY_NAME, ZOO, Entry, call, network, rescaled

SCOPES = ("layer", "neuron")


def measured(net: Any, entry: Entry) -> ms.Diagonal:
    return ms.hessian_diagonal(net, entry.data(), curvature="ggn")


@pytest.fixture(params=ZOO, ids=lambda e: e.name)
def entry(request: pytest.FixtureRequest) -> Entry:
    chosen: Entry = request.param
    return chosen


def independent_minimum(diagonal: ms.Diagonal, net: ms.Network, scope: Any) -> float:
    """scipy's BFGS on the group's definition, from several starts."""
    symmetries = group(net.graph, scope, [n for n in net.graph.parameters if n not in diagonal.by_parameter])
    if not symmetries.dimension:
        return diagonal.total
    blocks = diagonal.trace.by_parameter if scope == "layer" else diagonal.by_parameter
    c, plus, minus, _ = _terms({n: torch.as_tensor(b, dtype=torch.float64) for n, b in blocks.items()}, symmetries)
    nodes = np.zeros((symmetries.nodes.count, symmetries.dimension))
    nodes[symmetries.nodes.form, symmetries.nodes.number] = symmetries.nodes.coefficient

    def f(z: Any) -> tuple[float, Any]:
        t = nodes @ z
        terms = c * np.exp(-2 * (t[plus] - t[minus]))
        slope = np.bincount(plus, -2 * terms, len(nodes)) + np.bincount(minus, 2 * terms, len(nodes))
        return float(np.log(terms.sum())), slope @ nodes / terms.sum()

    rng = np.random.default_rng(0)
    starts = [np.zeros(symmetries.dimension), *(0.3 * rng.standard_normal((2, symmetries.dimension)))]
    options = {"gtol": 1e-13, "maxiter": 5000}
    best = min(scipy.optimize.minimize(f, z, jac=True, method="BFGS", options=options).fun for z in starts)
    return float(np.exp(best))


@pytest.mark.parametrize("scope", SCOPES)
def test_equals_an_independent_minimiser(entry: Entry, scope: Any) -> None:
    diagonal = measured(network(entry), entry)
    result = ms.minimum_sharpness(network(entry), diagonal, scope=scope)
    best = independent_minimum(diagonal, network(entry), scope)
    assert result.value <= best * (1 + 1e-9)
    assert result.value == pytest.approx(best, rel=1e-9)
    assert 0 <= result.value - result.lower_bound <= 1e-9 * result.value


@pytest.mark.parametrize("scope", SCOPES)
def test_invariance(entry: Entry, scope: Any) -> None:
    """Over random elements of the group, while the trace goes anywhere."""
    net = network(entry)
    result = ms.minimum_sharpness(net, measured(net, entry), scope=scope)
    traces = []
    for seed in range(4):
        other = rescaled(net, result.symmetries.random(seed))
        moved = ms.minimum_sharpness(other, entry.data(), scope=scope, curvature="ggn")
        assert moved.value == pytest.approx(result.value, rel=1e-9)
        traces.append(moved.trace)
    if result.symmetries.dimension:
        assert max(traces) > 5 * result.value


@pytest.mark.slow
@pytest.mark.parametrize("scope", SCOPES)
def test_invariance_under_twenty_elements(entry: Entry, scope: Any) -> None:
    net = network(entry)
    result = ms.minimum_sharpness(net, measured(net, entry), scope=scope)
    for seed in range(20):
        other = rescaled(net, result.symmetries.random(100 + seed))
        moved = ms.minimum_sharpness(other, entry.data(), scope=scope, curvature="ggn")
        assert moved.value == pytest.approx(result.value, rel=1e-9)


def test_neuron_below_layer_below_trace(entry: Entry) -> None:
    diagonal = measured(network(entry), entry)
    layer, neuron = (ms.minimum_sharpness(network(entry), diagonal, scope=s) for s in ("layer", "neuron"))
    assert neuron.value <= layer.value * (1 + 1e-12)
    assert layer.value <= layer.trace * (1 + 1e-12)
    assert layer.trace == pytest.approx(diagonal.total, rel=1e-12)


@pytest.mark.parametrize("scope", SCOPES)
def test_the_flattest_network(entry: Entry, scope: Any) -> None:
    """Same outputs, and its trace, computed afresh, is the minimum; the original is untouched."""
    model, net = entry.model().eval(), network(entry)
    before = [p.detach().clone() for p in model.parameters()]
    result = ms.minimum_sharpness(net, measured(net, entry), scope=scope)
    flat = ms.flattest(model, entry.data(), scope=scope, curvature="ggn")
    fresh = ms.hessian_trace(replace(net, module=flat), entry.data(), curvature="ggn")
    assert fresh.total == pytest.approx(result.value, rel=1e-9)
    for name, value in fresh.by_parameter.items():
        assert value == pytest.approx(result.by_parameter[name], rel=1e-8, abs=1e-12 * result.value)
    inputs, _ = entry.data()
    with torch.no_grad():
        assert torch.allclose(call(flat, inputs), call(model, inputs), rtol=1e-11, atol=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers_of_two_change_no_bit(entry: Entry, dtype: torch.dtype) -> None:
    model = entry.model(dtype).eval()
    data = entry.data(dtype=dtype)
    flat = ms.flattest(network(entry, dtype), data, power_of_two=True, curvature="ggn").eval()
    with torch.no_grad():
        assert torch.equal(call(flat, data[0]), call(model, data[0]))
    for (name, old), new in zip(model.named_parameters(), flat.parameters(), strict=True):
        factors = (new / old)[old != 0]
        assert bool((factors.log2() == factors.log2().round()).all()), name


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 10, 20, 50])
def test_the_papers_theorem(depth: int) -> None:
    """Chains without biases: D (prod Tr[H_d])^(1/D), reached at alpha_d^2 = Tr[H_d] / (prod Tr[H_k])^(1/D)."""
    torch.manual_seed(depth)
    widths = [6, *(7 for _ in range(depth - 1)), 4]
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layer = nn.Linear(a, b, bias=False)
        nn.init.normal_(layer.weight, std=(2 / a) ** 0.5)
        layers += [layer, nn.LeakyReLU(0.5)]
    model = nn.Sequential(*layers[:-1]).double()
    trace = ms.hessian_trace(model, torch.randn(10, 6, dtype=torch.float64))
    result = ms.minimum_sharpness(model, trace)
    logs = np.log(list(trace.by_parameter.values()))
    assert result.value == pytest.approx(depth * np.exp(logs.mean()), rel=1e-12)
    if depth > 1:
        assert list(result.scales.values()) == pytest.approx(np.exp((logs - logs.mean()) / 2), rel=1e-12)
    assert result.symmetries.dimension == depth - 1


@settings(max_examples=60, derandomize=True, **COMMON)  # type: ignore[arg-type]
@given(networks())
def test_random_networks(case: tuple[nn.Module, Tensor]) -> None:
    """Both groups keep the outputs; neuron <= layer <= trace; the flattest network has the value promised."""
    model, x = case
    model.eval()
    net = ms.read(model, x)
    diagonal = ms.hessian_diagonal(net, x)
    if diagonal.total == 0:
        return
    layer, neuron = (ms.minimum_sharpness(net, diagonal, scope=s) for s in ("layer", "neuron"))
    assert neuron.value <= layer.value * (1 + 1e-10)
    assert layer.value <= layer.trace * (1 + 1e-10)
    with torch.no_grad():
        outputs = model(x)
        for result in (layer, neuron):
            for scales in (result.symmetries.random(0, 30.0), result.scales):
                moved = ms.rescale(model, scales)(x)
                assert float((moved - outputs).abs().max()) <= 1e-10 * float(outputs.abs().max()) + 1e-13
            fresh = ms.hessian_trace(replace(net, module=ms.rescale(model, result.scales)), x).total
            assert fresh == pytest.approx(sum(result.by_parameter.values()), rel=1e-8)
            assert result.lower_bound <= result.value
            assert result.value - result.lower_bound <= 1e-9 * result.value


def test_results_print_and_serialise() -> None:
    import json

    entry = BY_NAME["mlp"]
    result = ms.minimum_sharpness(entry.model(), entry.data(), scope="neuron")
    text = repr(result)
    numbers = f"{result.value:.6g}, from a trace of {result.trace:.6g}"
    assert text.startswith(f"Minimum sharpness {numbers} (Hessian, scope 'neuron')")
    assert "minimum, certified to" in text
    assert "pinned" in text
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["value"] == result.value
    assert len(plain["scales"]["0.weight"]) == 5


def test_a_trivial_group_says_what_pins_it() -> None:
    entry = BY_NAME["gelu"]
    result = ms.minimum_sharpness(entry.model(), entry.data(), curvature="ggn")
    assert result.value == pytest.approx(result.trace, rel=1e-14)
    assert result.scales == {}
    assert "nothing to rescale" in result.status
    assert "gelu in module '1'" in result.status
    one = ms.minimum_sharpness(nn.Linear(3, 2), torch.randn(4, 3))
    assert "the outputs have to stay as they are" in one.status


def test_zero_curvature() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    result = ms.minimum_sharpness(model, torch.randn(5, 3))
    assert (result.value, result.lower_bound, result.trace) == (0, 0, 0)
    assert result.status.startswith("zero")


def test_a_dead_layer_is_an_infimum() -> None:
    """All hidden units off: the layers before them have no curvature, those after only through their biases."""
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        model[2].weight.zero_()
        model[2].bias.fill_(1.0)
    x = torch.randn(6, 3, dtype=torch.float64)
    for scope in SCOPES:
        result = ms.minimum_sharpness(model, x, scope=scope)  # type: ignore[arg-type]
        assert not result.attained
        assert "not attained" in result.status
        assert result.value < result.trace
        assert all(bool(torch.isfinite(torch.as_tensor(f)).all()) for f in result.scales.values())
        with torch.no_grad():
            assert torch.allclose(ms.rescale(model, result.scales)(x), model(x), rtol=1e-10)
        assert sum(result.by_parameter.values()) == pytest.approx(result.value, rel=1e-4)


def test_traces_from_1e_minus_300_to_1e300() -> None:
    entry = BY_NAME["no_biases"]
    trace = ms.hessian_trace(network(entry), entry.data())
    sums = dict(zip(trace.sum.sums, torch.tensor([1e300, 1e-300, 1e-200], dtype=torch.float64), strict=True))
    extreme = ms.Trace(type(trace.sum)(sums, 1.0, 5), trace.kind, trace.loss, trace.mean, trace.exact, trace.graph)
    result = ms.minimum_sharpness(network(entry), extreme)
    assert result.value == pytest.approx(3 * 10 ** (-200 / 3), rel=1e-10)
    assert result.attained


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_impossible_curvatures_are_refused(bad: float) -> None:
    entry = BY_NAME["no_biases"]
    trace = ms.hessian_trace(network(entry), entry.data())
    sums = {name: torch.tensor(bad if name == "2.weight" else 1.0) for name in trace.sum.sums}
    wrong = ms.Trace(type(trace.sum)(sums, 1.0, 5), trace.kind, trace.loss, trace.mean, trace.exact, trace.graph)
    with pytest.raises(ms.InputError, match=r"the curvature of '2\.weight' (that one scale moves )?is"):
        ms.minimum_sharpness(network(entry), wrong)


def test_wrong_arguments() -> None:
    entry = BY_NAME["mlp"]
    with pytest.raises(ms.InputError, match="scope='tensor'"):
        ms.minimum_sharpness(entry.model(), entry.data(), scope="tensor")  # type: ignore[arg-type]
    trace = ms.hessian_trace(network(entry), entry.data())
    with pytest.raises(ms.InputError, match='scope="neuron" needs the diagonal'):
        ms.minimum_sharpness(network(entry), trace, scope="neuron")
    with pytest.raises(ms.InputError, match="not of this network"):
        ms.minimum_sharpness(network(BY_NAME["lenet"]), trace)


def test_unmeasured_parameters_stay() -> None:
    entry = BY_NAME["deep_mlp"]
    result = ms.minimum_sharpness(entry.model(), entry.data(), parameters=["0.*", "2.*"])
    assert set(result.scales) <= {"0.weight", "0.bias", "2.weight"}
    assert list(result.by_parameter) == ["0.weight", "0.bias", "2.weight", "2.bias"]
