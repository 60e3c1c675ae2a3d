"""Minimum sharpness over the whole group: no change of basis can fool it."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import minsharp as ms
from minsharp.measures.full import FullMinimumSharpness
from minsharp.network.symmetry import FullSymmetries
from minsharp.solve.status import Status
from tests.support.descent import Dense, descended
from tests.support.framed import CASES, Attention, built, network, outputs

NEVER_ATTAINED = {"linear, linear", "three in a row"}
"""More hidden units than outputs: their gradients have too low a rank."""


def minimum(net: Any, inputs: Any, **options: Any) -> FullMinimumSharpness:
    found = ms.minimum_sharpness(net, (inputs, None), scope="full", curvature="ggn", **options)
    assert isinstance(found, FullMinimumSharpness)
    return found


@cache
def case(name: str) -> tuple[ms.Network, Any, FullMinimumSharpness]:
    net, inputs = network(name)
    return net, inputs, minimum(net, inputs)


def gradients(net: ms.Network, inputs: Any) -> dict[str, Tensor]:
    """S^T J of every sample by dense autograd, over the root of n: (n, R, *parameter)."""
    module, several = net.module, inputs if isinstance(inputs, tuple) else (inputs,)
    parameters = {name: p.detach() for name, p in net.parameters.items() if p.requires_grad}
    rows: dict[str, list[Tensor]] = {name: [] for name in parameters}
    count = len(several[0])
    for i in range(count):
        one = tuple(t[i : i + 1] for t in several)

        def forward(p: dict[str, Tensor], one: tuple[Tensor, ...] = one) -> Tensor:
            return functional_call(module, p, one)[0]

        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            J = jacrev(forward)(parameters)
            p = forward(parameters).softmax(0)
        values, vectors = torch.linalg.eigh(torch.diag(p) - torch.outer(p, p))
        S = vectors * values.clamp_min(0).sqrt()
        for name in parameters:
            rows[name].append(torch.einsum("kr,k...->r...", S, J[name]))
    return {name: torch.stack(found) / count**0.5 for name, found in rows.items()}


QUICK = ("joint, no bias", "LoRA", "linear, linear", "linear bottleneck", "positions")
"""Descent takes long: these at once, the others where there is time."""


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_it_is_what_descent_over_matrices_finds_and_never_above(name: str) -> None:
    net, inputs, found = case(name)
    dense = Dense(found, gradients(net, inputs))
    least = min(descended(dense, seed) for seed in range(2))
    assert found.value <= least * (1 + 1e-10)
    assert least == pytest.approx(found.value, rel=1e-3 if name in NEVER_ATTAINED else 1e-7)
    assert 0 <= 1 - found.lower_bound / found.value < 1e-10


@pytest.mark.parametrize("name", CASES)
def test_the_flattest_network_has_that_trace_and_the_same_outputs(name: str) -> None:
    net, inputs, found = case(name)
    flat = ms.rescale(net, found.scales)
    fresh = ms.hessian_trace(replace(net, module=flat), (inputs, None), curvature="ggn")
    before = outputs(net.module, inputs)
    assert float((outputs(flat, inputs) - before).abs().max()) < 1e-12 * float(before.abs().max())
    assert fresh.total == pytest.approx(sum(found.by_parameter.values()), rel=1e-8)
    assert found.attained == (name not in NEVER_ATTAINED)
    assert fresh.total == pytest.approx(found.value, rel=1e-8 if found.attained else 1e-5)
    for parameter, trace in found.by_parameter.items():
        assert fresh.by_parameter[parameter] == pytest.approx(trace, rel=1e-6, abs=1e-9 * found.value)


@pytest.mark.parametrize("name", CASES)
def test_the_group_of_layers_goes_no_lower(name: str) -> None:
    net, inputs, found = case(name)
    layer = ms.minimum_sharpness(net, (inputs, None), curvature="ggn")
    assert found.value <= layer.value * (1 + 1e-12) <= found.trace * (1 + 1e-11)


MANY = [n if n == "joint, no bias" else pytest.param(n, marks=pytest.mark.slow) for n in CASES]


@pytest.mark.parametrize("name", MANY)
def test_no_element_of_the_group_moves_it(name: str) -> None:
    """Twenty elements with condition numbers up to a thousand; trace and layer minimum move."""
    net, inputs, found = case(name)
    group = found.symmetries
    layer = ms.minimum_sharpness(net, (inputs, None), curvature="ggn").value
    traces, layers = [], []
    for seed in range(20):
        other = replace(net, module=ms.rescale(net, group.random(seed, 1e3)))
        grams = ms.hessian_grams(other, (inputs, None), curvature="ggn")
        again = ms.minimum_sharpness(other, grams, scope="full")
        assert again.value == pytest.approx(found.value, rel=1e-8)
        traces.append(again.trace / found.trace)
        layers.append(ms.minimum_sharpness(other, grams).value / layer)
    assert max(traces) > 2
    assert max(layers) > 1.01


def test_parts_of_the_data_add_up() -> None:
    net, inputs, found = case("joint")
    grams = [ms.hessian_grams(net, inputs[i : i + 3], curvature="ggn", memory=1) for i in (0, 3, 6)]
    whole: Any = sum(grams)
    assert ms.minimum_sharpness(net, whole, scope="full").value == pytest.approx(found.value, rel=1e-12)
    assert whole.trace.total == pytest.approx(found.trace, rel=1e-12)
    assert ms.minimum_sharpness(net, whole).value == pytest.approx(
        ms.minimum_sharpness(net, inputs, curvature="ggn").value, rel=1e-12
    )
    assert "Gauss-Newton trace" in repr(whole)


@pytest.mark.parametrize("name", CASES)
def test_gram_matrices_are_those_of_dense_gradients(name: str) -> None:
    net, inputs, found = case(name)
    dense, group = gradients(net, inputs), found.symmetries
    grams = ms.hessian_grams(net, (inputs, None), curvature="ggn")
    assert isinstance(group, FullSymmetries)
    for parameter, g in dense.items():
        place = torch.arange(g[0, 0].numel()).view(g.shape[2:])
        members = [m for frame in group.frames for m in frame.members if m.parameter == parameter]
        blocks = [g.flatten(2)[:, :, m.read(place)] for m in members]  # (n, R, h, m)
        for block, matrix in zip(blocks, grams.matrices(parameter), strict=True):
            expected = torch.einsum("nrhm,nrkm->hk", block, block)
            noise = 1e-12 * float(expected.abs().max()) + 1e-24 * found.trace  # a bias of keys has no gradient at all
            assert torch.allclose(matrix, expected, rtol=0, atol=noise)
        rest = float(g.square().sum()) - sum(float(block.square().sum()) for block in blocks)
        assert grams.rest(parameter) == pytest.approx(rest, rel=1e-9, abs=1e-10 * float(g.square().sum()) + 1e-24)


def test_a_head_without_gradient_has_an_infimum() -> None:
    """The outputs of a head are multiplied by zero: its values have no curvature, and W_O can be scaled away there."""
    model, inputs = built("separate")
    assert isinstance(model, Attention)
    with torch.no_grad():
        model.o.weight[:, :4] = 0
    found = minimum(model, inputs)
    assert found.status.case is Status.INFIMUM_OF_FRAMES
    assert not found.attained
    assert "v.weight[0]" in found.status
    change = found.scales
    assert change.condition <= 1e6
    assert all(torch.isfinite(A).all() for A in change.matrices)
    flat = ms.rescale(model, change)
    assert float((outputs(flat, inputs) - outputs(model, inputs)).abs().max()) < 1e-9
    fresh = ms.hessian_trace(flat, inputs, curvature="ggn").total
    assert found.value <= fresh * (1 + 1e-9)
    assert fresh == pytest.approx(found.value, rel=1e-4)
    assert ms.verify(model, (inputs, None), found).holds


def test_one_sample_makes_singular_matrices() -> None:
    model, inputs = built("separate")
    found = minimum(model, inputs[:1])
    flat = ms.rescale(model, found.scales)
    fresh = ms.hessian_trace(flat, inputs[:1], curvature="ggn").total
    assert found.lower_bound <= found.value <= fresh * (1 + 1e-9)
    assert fresh <= found.value * (1 + 1e-3)
    assert found.scales.condition <= 1e6


def test_nothing_at_all() -> None:
    model, inputs = built("linear, linear")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    found = ms.minimum_sharpness(model, torch.zeros_like(inputs), scope="full", parameters="0.*")
    assert found.value == 0
    assert found.status.case is Status.NO_CURVATURE


def test_single_precision_keeps_its_outputs() -> None:
    model, inputs = built("separate")
    single, x = Attention(), inputs.float()
    single.load_state_dict(model.state_dict())
    found = minimum(single, x)
    assert found.value == pytest.approx(case("separate")[2].value, rel=1e-4)
    assert found.scales.condition <= torch.finfo(torch.float32).eps ** -0.5
    assert ms.verify(single, (x, None), found).holds


@pytest.mark.parametrize("name", ["linear, linear", "linear bottleneck", "cross"])
def test_verification_holds_and_fails(name: str) -> None:
    net, inputs, found = case(name)
    assert ms.verify(net, (inputs, None), found).holds
    wrong = replace(found, matrices=tuple(1.01 * A for A in found.matrices))
    assert not ms.verify(net, (inputs, None), wrong).holds


def test_what_is_asked_wrongly_is_refused() -> None:
    net, inputs, _ = case("separate")
    with pytest.raises(ms.InputError, match='scope="full" has matrices, and none of powers of two'):
        minimum(net, inputs, power_of_two=True)
    with pytest.raises(ms.InputError, match='scope="full" needs Gram matrices'):
        ms.minimum_sharpness(net, ms.hessian_trace(net, inputs, curvature="ggn"), scope="full")
    grams = ms.hessian_grams(net, inputs, curvature="ggn", parameters=["q.*", "k.*"])
    with pytest.raises(ms.InputError, match="of other frames than the network has"):
        ms.minimum_sharpness(net, replace(grams, layout={}), scope="full")
    some: Any = ms.minimum_sharpness(net, grams, scope="full")
    assert {n for frame in some.symmetries.frames for n in frame.parameters} == {
        "q.weight",
        "q.bias",
        "k.weight",
        "k.bias",
    }


def test_the_result_tells_and_saves() -> None:
    _, _, found = case("separate")
    assert "scope 'full'" in repr(found)
    assert "2 of 4x4" in repr(found)
    told = found.to_dict()
    assert told["scope"] == "full"
    assert len(told["frames"]) == 4
    assert told["frames"][0]["parameters"] == ["q.weight", "q.bias", "k.weight", "k.bias"]
    assert isinstance(told["frames"][0]["matrix"][0][0], float)


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_it_comes_back_from_a_file_as_it_was(suffix: str, tmp_path: Path) -> None:
    net, inputs, found = case("joint")
    again = ms.load(found.save(tmp_path / f"minimum.{suffix}"))
    assert again == found
    assert torch.equal(outputs(ms.rescale(net, again.scales), inputs), outputs(ms.rescale(net, found.scales), inputs))
    grams = ms.hessian_grams(net, (inputs, None), curvature="ggn")
    assert ms.load(grams.save(tmp_path / f"grams.{suffix}")) == grams


def test_a_file_with_entries_that_are_not_there_is_refused(tmp_path: Path) -> None:
    path = case("LoRA")[2].save(tmp_path / "minimum.json")
    document = json.loads(path.read_text())
    document["fields"]["symmetries"]["frames"][0]["members"][0]["entries"]["start"] = 10**6
    path.write_text(json.dumps(document))
    with pytest.raises(ms.InputError, match=r"its frames speak of entries that 'down\.weight' does not have"):
        ms.load(path)


def test_a_tolerance_gives_an_estimate_with_an_error_bar() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 5), nn.Linear(5, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 30)]
    net, inputs = nn.Sequential(*layers).double(), torch.randn(200, 6).double()
    found = minimum(net, inputs)
    assert found.symmetries.frames
    for seed in range(5):
        drawn = minimum(net, inputs, tolerance=0.05, seed=seed)
        assert 0 < drawn.standard_error < 0.1 * drawn.value
        assert drawn.value == pytest.approx(found.value, abs=5 * drawn.standard_error)
    with pytest.raises(ms.NotExactError, match='need not be positive: ask for curvature="ggn"'):
        ms.minimum_sharpness(net, inputs, scope="full", tolerance=0.05)


def test_flattest_and_relative_take_the_scope() -> None:
    net, inputs, found = case("separate")
    flat = ms.flattest(net, (inputs, None), scope="full", curvature="ggn")
    trace = ms.hessian_trace(replace(net, module=flat), inputs, curvature="ggn").total
    assert trace == pytest.approx(found.value, rel=1e-9)
    relative = ms.relative_minimum_sharpness(net, inputs, scope="full")
    layer = ms.relative_minimum_sharpness(net, inputs)
    moved = replace(net, module=ms.rescale(net, found.symmetries.random(0)))
    assert relative.value < layer.value
    assert ms.relative_minimum_sharpness(moved, inputs, scope="full").value == pytest.approx(relative.value, rel=1e-8)
