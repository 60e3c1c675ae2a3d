"""The table of all measures."""

import csv
import io
import json
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.measures.catalogue import chosen
from minsharp.measures.registry import MEASURES

INVARIANT = {
    "minimum sharpness",
    "minimum sharpness (neuron)",
    "relative minimum sharpness",
    "relative minimum sharpness (neuron)",
    "relative sensitivity",
    "relative sensitivity (element)",
    "normalized sharpness",
    "normalized sharpness (icml)",
    "margin sensitivity",
    "margin sensitivity (element)",
    "minimum margin sensitivity",
    "minimum margin sensitivity (neuron)",
    "minimum sharpness (full)",
    "relative minimum sharpness (full)",
    "Fisher-Rao norm",
    "Rangamani flatness",
    "ASAM",
    "ASAM (average)",
    "ASAM (normalized logits)",
    "geodesic sharpness",
    "training loss",
    "relative flatness",
}
FOOLED = {"trace", "largest eigenvalue", "Keskar sharpness", "SAM", "SAM (average)", "parameter corruption", "pacGen"}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(40, 5), torch.randint(3, (40,))


@pytest.fixture(scope="module")
def table() -> ms.measures.Comparison:
    return ms.compare(network(), data(), rescalings=3)


def test_every_measure_has_a_row(table: ms.measures.Comparison) -> None:
    names = [row.name for row in table.rows]
    assert set(names) == INVARIANT | FOOLED
    assert names == [m.name for m in chosen(None)]
    assert {row.name: row.error for row in table.rows if row.error} == {}
    assert table.samples == 40


@pytest.mark.parametrize("name", sorted(INVARIANT))
def test_invariant_measures_do_not_drift(table: ms.measures.Comparison, name: str) -> None:
    drift = table[name].drift
    assert drift is not None
    assert drift < 1e-9
    assert table[name].invariance != "none"


@pytest.mark.parametrize("name", sorted(FOOLED))
def test_the_others_are_fooled(table: ms.measures.Comparison, name: str) -> None:
    drift = table[name].drift
    assert drift is not None
    assert drift > 0.5
    assert table[name].invariance == "none"


def test_per_neuron() -> None:
    result = ms.compare(network(), data(), rescalings=2, scope="neuron")
    for row in result.rows:
        assert row.drift is not None
        kept = row.invariance == "neuron" or row.name == "geodesic sharpness"  # without frames, ASAM in one step
        assert (row.drift < 1e-9) == kept, row


def test_values_are_those_of_the_functions(table: ms.measures.Comparison) -> None:
    model, pair = network(), data()
    assert table["trace"].value == pytest.approx(ms.hessian_trace(model, pair).total, rel=1e-5)
    assert table["minimum sharpness"].value == pytest.approx(ms.minimum_sharpness(model, pair).value, rel=1e-5)
    assert table["normalized sharpness"].value == pytest.approx(
        ms.measures.normalized_sharpness(model, pair).value, rel=1e-5
    )
    assert table["relative sensitivity"].value == pytest.approx(ms.relative_sensitivity(model, pair).value, rel=1e-5)
    loss = nn.functional.cross_entropy(model(pair[0]), pair[1])
    assert table["training loss"].value == pytest.approx(loss.item(), rel=1e-5)
    assert table["SAM (average)"].standard_error is not None


def test_it_prints_and_goes_out(table: ms.measures.Comparison) -> None:
    assert json.loads(json.dumps(table.to_dict()))["rows"][1]["name"] == "trace"
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert float(rows[1]["value"]) == table["trace"].value
    assert "minimum sharpness (neuron)" in repr(table)
    assert "<td>" in table.to_html()
    assert table.to_html() == table._repr_html_()


def test_without_labels_the_rest_still_stands() -> None:
    result = ms.compare(network(), data()[0], rescalings=0)
    assert result["SAM"].error == "needs labels: pass data=(inputs, targets)"
    assert result["SAM"].value is None
    assert result["minimum sharpness"].value is not None
    assert result["minimum sharpness"].drift is None
    assert "failed" in repr(result)


@pytest.fixture
def broken() -> Iterator[None]:
    @ms.measure("broken <b>")
    def fails(model: nn.Module, data: object, loss: object) -> float:
        raise ZeroDivisionError("three over zero")

    @ms.measure("number of parameters", invariance="neuron")
    def count(model: nn.Module, data: object, loss: object) -> float:
        return sum(p.numel() for p in model.parameters())

    yield
    MEASURES.pop("broken <b>")
    MEASURES.pop("number of parameters")


@pytest.mark.usefixtures("broken")
def test_a_measure_of_ones_own_and_one_that_fails() -> None:
    result = ms.compare(network(), data(), measures=["broken <b>", "number of parameters", "trace"], rescalings=1)
    assert result["number of parameters"].value == 123
    assert result["number of parameters"].drift == 0
    assert result["broken <b>"].error == "ZeroDivisionError: three over zero"
    assert "three over zero" in result._repr_html_()
    assert "<b>" not in result._repr_html_()
    assert [row.name for row in result.rows] == ["broken <b>", "number of parameters", "trace"]


def test_a_network_that_is_not_piecewise_linear() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 3))
    result = ms.compare(model, data(), measures=["trace", "SAM"], rescalings=1)
    assert "gelu" in str(result["trace"].error)
    assert result["SAM"].value is not None
    assert result["SAM"].drift is None  # nothing to rescale
    assert ms.compare(model, data(), measures=["trace"], curvature="ggn").rows[0].value is not None


def test_the_model_stays_as_it_is() -> None:
    model = network().train()
    before = {n: p.clone() for n, p in model.named_parameters()}
    ms.compare(model, data(), rescalings=1)
    assert model.training
    assert all(p.grad is None and torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_batches_may_come_from_a_generator() -> None:
    x, y = data()
    whole = ms.compare(network(), (x, y), rescalings=1, drift_samples=40)
    parts = ms.compare(network(), (pair for pair in zip(x.split(7), y.split(7), strict=True)), rescalings=1)
    for a, b in zip(whole.rows, parts.rows, strict=True):
        assert b.value == pytest.approx(a.value, rel=1e-3), a.name


def test_bad_input() -> None:
    with pytest.raises(ms.InputError, match=r"unknown \['sharpnes'\]. Known are 'training loss', 'trace'"):
        ms.compare(network(), data(), measures=["sharpnes"])
    with pytest.raises(ms.InputError, match="rescalings=-1"):
        ms.compare(network(), data(), rescalings=-1)
    with pytest.raises(ms.InputError, match="exists already"):
        ms.measure("trace")(lambda model, data, loss: 0.0)
    with pytest.raises(ms.InputError, match="no measure 'SAM'"):
        ms.compare(network(), data(), measures=["trace"], rescalings=0)["SAM"]
