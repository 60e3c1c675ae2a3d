"""The two measures without a loss, and the curvature they rest on."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from tests.support import oracles
from tests.support.zoo import BY_NAME, ZOO, Entry, call, network, rescaled


@pytest.fixture(params=ZOO, ids=lambda e: e.name)
def entry(request: pytest.FixtureRequest) -> Entry:
    chosen: Entry = request.param
    return chosen


def centred(outputs: Tensor) -> Tensor:
    return outputs - outputs.mean(1, keepdim=True)


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """Its Hessian in the outputs is the centring matrix, divided by the number of rows."""
    return centred(outputs).square().sum() / 2 / (outputs.numel() // outputs.shape[1])


def test_jacobian_against_dense_autograd(entry: Entry) -> None:
    net = network(entry)
    inputs, targets = entry.data()
    diagonal = ms.hessian_diagonal(net, (inputs, targets), curvature="jacobian")
    trace = ms.hessian_trace(net, (inputs, targets), curvature="jacobian")
    for name, found in diagonal.by_parameter.items():
        expected = oracles.ggn_diagonal(net.module.eval(), inputs, targets, half_square, name)
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12), name
        assert trace.by_parameter[name] == pytest.approx(float(expected.sum()), rel=1e-9, abs=1e-12)
    assert all(diagonal.exact.values())
    rows = centred(oracles.outputs(net.module, inputs))
    energy = rows.square().sum() / (rows.numel() // rows.shape[1])
    assert trace.energy == pytest.approx(float(energy), rel=1e-12)
    assert diagonal.energy == diagonal.trace.energy == trace.energy


def test_sensitivities_are_what_they_say(entry: Entry) -> None:
    net = network(entry)
    inputs, targets = entry.data()
    parameters = {n: p.detach() for n, p in net.module.named_parameters() if p.requires_grad and n in net.parameters}
    diagonals = {n: oracles.ggn_diagonal(net.module.eval(), inputs, targets, half_square, n) for n in parameters}
    rows = centred(oracles.outputs(net.module, inputs))
    energy = float(rows.square().sum() / (rows.numel() // rows.shape[1]))
    tensor = sum(float(p.square().mean() * diagonals[n].sum()) for n, p in parameters.items()) / energy
    element = sum(float((p.square() * diagonals[n]).sum()) for n, p in parameters.items()) / energy
    assert ms.relative_sensitivity(net, (inputs, targets)).value == pytest.approx(tensor, rel=1e-9)
    assert ms.relative_sensitivity(net, (inputs, targets), scope="element").value == pytest.approx(element, rel=1e-9)
    minimum = ms.minimum_sharpness(net, (inputs, targets), curvature="jacobian")
    assert ms.relative_minimum_sharpness(net, (inputs, targets)).value == pytest.approx(
        minimum.value / energy, rel=1e-12
    )


MEASURES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "minimum": (lambda m, x: ms.relative_minimum_sharpness(m, x).value, ("layer",)),
    "minimum per neuron": (lambda m, x: ms.relative_minimum_sharpness(m, x, scope="neuron").value, ("layer", "neuron")),
    "sensitivity": (lambda m, x: ms.relative_sensitivity(m, x).value, ("layer",)),
    "sensitivity per element": (
        lambda m, x: ms.relative_sensitivity(m, x, scope="element").value,
        ("layer", "neuron"),
    ),
}


@pytest.mark.parametrize("name", MEASURES)
def test_no_rescaling_moves_them(entry: Entry, name: str) -> None:
    measure, scopes = MEASURES[name]
    net, data = network(entry), entry.data()
    before = measure(net, data)
    for scope in scopes:
        scales = ms.symmetries(net, data[0], scope).random(1, 1000.0)  # type: ignore[arg-type]
        assert measure(rescaled(net, scales), data) == pytest.approx(before, rel=1e-9)


def test_the_minimum_is_the_noise_at_the_best_conditioned_network() -> None:
    """The definition, by experiment: relative change of the outputs under small weight noise."""
    entry = BY_NAME["mlp"]
    model, (inputs, _) = entry.model().eval(), entry.data()
    result = ms.relative_minimum_sharpness(model, inputs)
    best = ms.rescale(model, result.scales)
    still = centred(call(best, inputs)).detach()
    torch.manual_seed(0)
    changes = []
    for _ in range(4000):
        noisy = ms.rescale(best, {})
        with torch.no_grad():
            for p in noisy.parameters():
                p.add_(1e-5 * torch.randn_like(p))
            changes.append(float((centred(call(noisy, inputs)) - still).square().sum()))
    measured = sum(changes) / len(changes) / 1e-10 / float(still.square().sum())
    assert measured == pytest.approx(result.value, rel=0.05)


def test_they_do_not_vanish_with_the_loss() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False)).double()
    x = torch.randn(9, 4).double()
    confident = ms.rescale(model, {"2.weight": 1000.0})
    assert ms.minimum_sharpness(confident, x).value < 1e-3 * ms.minimum_sharpness(model, x).value
    a, b = (ms.relative_sensitivity(m, x).value for m in (model, confident))
    assert b == pytest.approx(a, rel=1e-9)


def test_a_single_output_is_not_centred() -> None:
    model = nn.Linear(3, 1, bias=False).double()
    x = torch.randn(5, 3).double()
    trace = ms.hessian_trace(model, x, curvature="jacobian")
    assert trace.total == pytest.approx(float(x.square().sum() / 5))
    assert trace.energy == pytest.approx((model(x).square().sum() / 5).item())


def test_halves_add_up() -> None:
    model, x = nn.Linear(3, 4), torch.randn(10, 3)
    whole = ms.hessian_diagonal(model, x, curvature="jacobian")
    halves = ms.hessian_diagonal(model, x[:3], curvature="jacobian") + ms.hessian_diagonal(
        model, x[3:], curvature="jacobian"
    )
    assert halves.energy == pytest.approx(whole.energy)
    assert ms.relative_sensitivity(model, halves).value == pytest.approx(ms.relative_sensitivity(model, x).value)


def test_bad_input() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    with pytest.raises(ms.InputError, match="scope='layer': expected 'tensor' or 'element'"):
        ms.relative_sensitivity(model, x, scope="layer")  # type: ignore[arg-type]
    with pytest.raises(ms.InputError, match='measure with curvature="jacobian"'):
        ms.relative_minimum_sharpness(model, ms.hessian_trace(model, x))
    with pytest.raises(ms.InputError, match='scope="element" needs the diagonal'):
        ms.relative_sensitivity(model, ms.hessian_trace(model, x, curvature="jacobian"), scope="element")
    with torch.no_grad():
        model.weight.zero_()
        model.bias.fill_(1)
    with pytest.raises(ms.InputError, match="centred outputs are zero"):
        ms.relative_sensitivity(model, x)
