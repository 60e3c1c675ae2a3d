"""The margin in place of a loss, against dense autograd."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp import laws
from tests.support import oracles
from tests.support.zoo import BY_NAME, ZOO, Entry, network, rescaled


@pytest.fixture(params=ZOO, ids=lambda e: e.name)
def entry(request: pytest.FixtureRequest) -> Entry:
    chosen: Entry = request.param
    return chosen


def margins(outputs: Tensor) -> Tensor:
    """First minus second along axis 1, by sorting."""
    ordered = outputs.sort(dim=1, descending=True).values
    return ordered[:, 0] - ordered[:, 1]


def floor_of(outputs: Tensor) -> float:
    return 0.05 * float(margins(outputs).square().mean().sqrt())


def criterion(floor: float) -> Any:
    """Its Hessian in the outputs is that of the squared margins over what they are now, at least the floor."""

    def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
        m = margins(outputs)
        return (m / m.detach().clamp_min(floor)).square().mean() / 2

    return half_square


def test_against_dense_autograd(entry: Entry) -> None:
    net = network(entry)
    inputs, targets = entry.data()
    diagonal = ms.hessian_diagonal(net, (inputs, targets), curvature="margin")
    trace = ms.hessian_trace(net, (inputs, targets), curvature="margin")
    half_square = criterion(floor_of(oracles.outputs(net.module, inputs)))
    for name, found in diagonal.by_parameter.items():
        expected = oracles.ggn_diagonal(net.module.eval(), inputs, targets, half_square, name)
        assert torch.allclose(found, expected, rtol=1e-8, atol=1e-12 * diagonal.total), name
        assert trace.by_parameter[name] == pytest.approx(float(expected.sum()), rel=1e-8, abs=1e-12 * trace.total)
    assert all(diagonal.exact.values())
    assert diagonal.kind == "margin"


@pytest.mark.parametrize("shape", [(6, 5), (6, 2), (6, 4, 3), (3, 4, 2, 2), (6, 1), (6,)])
@pytest.mark.parametrize("floor", [None, 0.7])
def test_the_laws_of_a_loss(shape: tuple[int, ...], floor: float | None) -> None:
    outputs = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert laws.check_loss(ms.losses.Margin(floor), outputs) == []


def test_one_column_for_any_number_of_classes() -> None:
    assert ms.losses.Margin().rank((1, 1000)) == 1
    assert ms.losses.Margin().rank((1, 1000, 7)) == 7
    assert ms.losses.Margin().rank((1, 1)) == 1


def test_classes_on_the_last_axis() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5)).double()
    x = torch.randn(3, 7, 4, dtype=torch.float64)
    found = ms.hessian_trace(model, x, curvature="margin", class_axis=-1)
    flat = ms.hessian_trace(model, x.flatten(0, 1), curvature="margin")
    assert found.total == pytest.approx(flat.total, rel=1e-12)


def test_the_floor_is_an_option() -> None:
    entry = BY_NAME["mlp"]
    net, data = network(entry), entry.data()
    assert isinstance(data[0], Tensor)
    low, high = (
        ms.hessian_trace(net, data, ms.losses.Margin(floor), curvature="margin").total for floor in (1e-9, 100.0)
    )
    assert high < low
    m = margins(oracles.outputs(net.module, data[0]))
    weighed = ms.hessian_trace(net, data, ms.losses.Margin(2 * float(m.max())), curvature="margin").total
    again = ms.hessian_trace(net, data, ms.losses.Margin(4 * float(m.max())), curvature="margin").total
    assert weighed == pytest.approx(4 * again, rel=1e-12)
    halves = [
        ms.hessian_trace(net, (data[0][p], data[1][p]), ms.losses.Margin(0.1), curvature="margin")
        for p in (slice(0, 2), slice(2, 5))
    ]
    whole = ms.hessian_trace(net, data, ms.losses.Margin(0.1), curvature="margin")
    assert (halves[0] + halves[1]).total == pytest.approx(whole.total, rel=1e-12)


def test_outputs_twice_as_large_have_the_same_margins() -> None:
    """The default floor scales with the outputs: multiplying the last layer divides only its own curvature."""
    model: Any = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, bias=False)).double()
    x = torch.randn(9, 4, dtype=torch.float64)
    before = ms.hessian_trace(model, x, curvature="margin").by_parameter
    with torch.no_grad():
        model[2].weight.mul_(8)
    after = ms.hessian_trace(model, x, curvature="margin").by_parameter
    assert after["0.weight"] == pytest.approx(before["0.weight"], rel=1e-12)
    assert after["2.weight"] == pytest.approx(before["2.weight"] / 64, rel=1e-12)


def test_chunks_change_nothing() -> None:
    entry = BY_NAME["lenet"]
    net, data = network(entry), entry.data(7)
    whole = ms.hessian_trace(net, data, curvature="margin").total
    assert ms.hessian_trace(net, data, curvature="margin", memory=1).total == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("scope", ["layer", "neuron"])
def test_the_minimum_is_invariant(entry: Entry, scope: Any) -> None:
    net = network(entry)
    result = ms.minimum_sharpness(net, entry.data(), scope=scope, curvature="margin")
    other = rescaled(net, result.symmetries.random(0))
    moved = ms.minimum_sharpness(other, entry.data(), scope=scope, curvature="margin")
    assert moved.value == pytest.approx(result.value, rel=1e-8)


class _Once:
    """Batches that are gone once they have been gone through, and do not say so."""

    def __init__(self, given: list[Tensor]) -> None:
        self.left = iter(given)

    def __iter__(self) -> Any:
        return self.left


def test_what_is_refused() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 3))
    x = torch.randn(5, 4)
    with pytest.raises(ms.InputError, match="reads the data twice"):
        ms.hessian_trace(model, ms.shard(iter([x]), rank=0, size=1), curvature="margin")
    once = _Once([x[:3], x[3:]])
    with pytest.raises(
        ms.InputError, match=r"changed between two passes: [0-9,]+ samples in the first, [0-9,]+ in the second"
    ):
        ms.hessian_trace(model, once, curvature="margin")
    with pytest.raises(ms.InputError, match="reads the data twice"):
        ms.hessian_trace(model, iter([x]), curvature="margin")
    with pytest.raises(ms.LossError, match=r"floor=-1\.0: expected a positive number"):
        ms.losses.Margin(-1.0)
    with pytest.raises(ms.NonFiniteError, match="input 'input' holds 20 NaN"):
        ms.hessian_trace(model, x * torch.nan, curvature="margin")
    torch.nn.init.zeros_(model[0].weight)
    torch.nn.init.zeros_(model[0].bias)
    with pytest.raises(ms.InputError, match="every margin on this data is zero"):
        ms.hessian_trace(model, x, curvature="margin")
    with pytest.raises(ms.LossError, match="a margin is zero, and there is no floor"):
        ms.losses.Margin().columns(torch.zeros(2, 3), None)
