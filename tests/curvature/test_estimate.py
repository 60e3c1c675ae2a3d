"""Estimates: unbiased, with errors as large as they say, no larger than asked for, at less than all columns."""

import functools
import operator
from collections.abc import Iterator
from fractions import Fraction
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.curvature.plan import FREEDOM, plan
from tests.support.language import language, tokens
from tests.support.zoo import ZOO, Entry, network

D = torch.float64
RUNS = 40


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def many_classes() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 30))
    return model, torch.randn(80, 1, 6, 6)


def peaked() -> tuple[nn.Module, Tensor]:
    """Few samples hold nearly all of the curvature, as they do late in training."""
    model, x = many_classes()
    x[8:] *= 20
    return model, x


def no_head() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 30), nn.ReLU(), nn.Linear(30, 25), nn.Tanh()), torch.randn(70, 5)


def sentences() -> tuple[nn.Module, Tensor]:
    return language(V=30, d=12, T=6), tokens(12, 6, 30)


def tied_sentences() -> tuple[nn.Module, Tensor]:
    return language(V=30, d=12, T=6, tied=True), tokens(12, 6, 30)


def one_sentence() -> tuple[nn.Module, Tensor]:
    return language(V=30, d=12, T=40), tokens(1, 40, 30)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "many classes": (many_classes, {}),
    "peaked": (peaked, {}),
    "no head": (no_head, {"curvature": "ggn"}),
    "language": (sentences, {"curvature": "ggn", "class_axis": -1}),
    "tied": (tied_sentences, {"curvature": "ggn", "class_axis": -1}),
    "one sentence": (one_sentence, {"curvature": "ggn", "class_axis": -1}),
    "jacobian": (many_classes, {"curvature": "jacobian"}),
    "squared error": (many_classes, {"loss": nn.MSELoss()}),
}


@pytest.mark.parametrize("case", CASES)
def test_errors_are_as_large_as_they_say(case: str) -> None:
    """Fixed seeds: the mean is within four of its standard errors, the spread within a factor of 1.6."""
    make, options = CASES[case]
    model, x = make()
    read = ms.read(model, x)
    exact = ms.hessian_trace(read, x, **options)
    found = [ms.hessian_trace(read, x, tolerance=0.02, seed=seed, **options) for seed in range(RUNS)]
    assert all(0 <= r.standard_error <= 1.2 * 0.02 * exact.total for r in found)
    z = [(r.total - exact.total) / r.standard_error for r in found if r.standard_error]  # zero: all columns were less
    assert len(z) > RUNS / 2
    assert abs(fmean(z)) < 4 / sqrt(RUNS)
    assert 1 / 1.6 < stdev(z) < 1.6
    for name, value in exact.by_parameter.items():
        each = [(r.by_parameter[name] - value) / r.standard_errors[name] for r in found if r.standard_errors[name]]
        if each:
            assert abs(fmean(each)) < 4.5 / sqrt(len(each)), name
            assert 0.5 < stdev(each) < 2, name
        else:
            assert found[0].by_parameter[name] == pytest.approx(value, rel=1e-4)  # the last layer: no draw takes part


@pytest.mark.parametrize("case", ["many classes", "tied"])
def test_the_diagonal_is_estimated_with_the_same_draws(case: str) -> None:
    make, options = CASES[case]
    model, x = make()
    read = ms.read(model, x)
    trace = ms.hessian_trace(read, x, tolerance=0.05, seed=3, **options)
    diagonal = ms.hessian_diagonal(read, x, tolerance=0.05, seed=3, **options)
    assert diagonal.trace.by_parameter == pytest.approx(dict(trace.by_parameter), rel=1e-4)
    assert diagonal.standard_errors == pytest.approx(dict(trace.standard_errors), rel=1e-3)
    exact = ms.hessian_diagonal(read, x, **options)
    draws = (ms.hessian_diagonal(read, x, tolerance=0.05, seed=draw, **options) for draw in range(30))
    mean = functools.reduce(operator.add, draws)
    for name, entries in exact.by_parameter.items():
        apart = (mean.by_parameter[name] - entries).norm() / entries.norm()
        assert float(apart) < 0.15, name


@pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)
def test_every_network_of_the_zoo(entry: Entry) -> None:
    data = entry.data()
    exact = ms.hessian_trace(network(entry), data, curvature="ggn")
    found = ms.hessian_trace(network(entry), data, curvature="ggn", tolerance=0.2, seed=1)
    for name, value in exact.by_parameter.items():
        allowed = 6 * found.standard_errors[name] + 1e-6 * exact.total + 1e-9
        assert abs(found.by_parameter[name] - value) <= allowed, name
    assert found.standard_error <= 0.25 * exact.total + 1e-12


def test_few_columns_are_simply_all_taken() -> None:
    model, x = nn.Linear(4, 2).double(), torch.randn(9, 4, dtype=D)
    found = ms.hessian_trace(model, x, tolerance=0.1)
    assert found.standard_error == 0
    assert found.total == pytest.approx(ms.hessian_trace(model, x).total, rel=1e-12)
    assert "standard error" not in repr(found)


def test_a_smaller_tolerance_has_a_smaller_error() -> None:
    model, x = many_classes()
    read = ms.read(model, x)
    errors = [ms.hessian_trace(read, x, tolerance=t).standard_error for t in (0.02, 0.001, 0.0005)]
    total = ms.hessian_trace(read, x).total
    assert errors[0] > errors[1] > errors[2]
    assert errors[1] <= 1.1 * 0.001 * total
    assert errors[2] <= 1.1 * 0.0005 * total


def test_a_generator_that_runs_once_is_enough() -> None:
    model, x = many_classes()

    def once() -> Iterator[Tensor]:
        yield from x.split(7)

    found = ms.hessian_trace(model, once(), tolerance=0.05, memory=200_000)
    assert found.samples == len(x)
    assert abs(found.total - ms.hessian_trace(model, x).total) < 5 * found.standard_error


def test_a_seed_repeats_itself_and_another_does_not() -> None:
    model, x = many_classes()
    read = ms.read(model, x)
    first, again, other = (ms.hessian_trace(read, x, tolerance=0.05, seed=seed).total for seed in (1, 1, 2))
    assert first == again != other


def test_errors_of_parts_add_up() -> None:
    model, x = many_classes()
    read = ms.read(model, x)
    a, b = (ms.hessian_trace(read, part, tolerance=0.05, seed=s) for s, part in enumerate((x[:40], x[40:])))
    both = a + b
    assert both.standard_error == pytest.approx(sqrt(a.standard_error**2 + b.standard_error**2) / 2)
    assert (a + ms.hessian_trace(read, x[40:])).standard_error == pytest.approx(a.standard_error / 2)
    assert "standard error" in repr(both)
    assert both.to_dict()["standard_error"] == both.standard_error


def test_the_minimum_has_the_error_of_what_it_is_made_of() -> None:
    """dMS/dc_P = exp(-2 t_P): over seeds, the minimum scatters as much as its error says."""
    model, x = no_head()
    read = ms.read(model, x)
    exact = ms.minimum_sharpness(read, x, curvature="ggn")
    assert exact.standard_error == 0
    found = [ms.minimum_sharpness(read, x, curvature="ggn", tolerance=0.02, seed=s) for s in range(RUNS)]
    z = [(r.value - exact.value) / r.standard_error for r in found]
    assert abs(fmean(z)) < 4 / sqrt(RUNS)
    assert 1 / 1.6 < stdev(z) < 1.6
    assert "±" in repr(found[0])
    assert ms.relative_minimum_sharpness(read, x, tolerance=0.02).standard_error > 0
    assert ms.relative_sensitivity(read, x, tolerance=0.02).standard_error > 0


def test_compare_tells_the_errors() -> None:
    model, x = many_classes()
    table = ms.compare(model, x, measures=["trace", "minimum sharpness"], tolerance=0.05, rescalings=1, drift_samples=3)
    assert table["trace"].standard_error
    assert table["minimum sharpness"].standard_error
    assert table["minimum sharpness"].drift is not None
    assert table["minimum sharpness"].drift < 1e-4  # measured without an error


def test_no_curvature_at_all() -> None:
    model, x = many_classes()
    nn.init.zeros_(model[3].weight)  # type: ignore[index]
    x = torch.zeros_like(x)
    found = ms.hessian_trace(model, x, tolerance=0.05)
    assert found.by_parameter["0.weight"] == 0


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, 2, float("nan"), float("inf"), "1%", True])
def test_what_is_no_tolerance_is_refused(tolerance: Any) -> None:
    model, x = many_classes()
    with pytest.raises(ms.InputError, match=r"tolerance=.*expected a relative standard error below 1.*tolerance=0.01"):
        ms.hessian_trace(model, x, tolerance=tolerance)


@pytest.mark.parametrize("tolerance", [np.float32(0.125), np.array(0.125), torch.tensor(0.125), Fraction(1, 8)])
def test_a_number_of_any_kind_is_a_tolerance(tolerance: Any) -> None:
    model, x = many_classes()
    plain = ms.hessian_trace(model, x, tolerance=0.125)
    assert ms.hessian_trace(model, x, tolerance=tolerance).total == plain.total
    monitor = ms.Monitor(model, x, measures=["trace"], tolerance=tolerance, budget=Fraction(1, 2))  # type: ignore[arg-type]
    assert monitor.measure(0)["minsharp/trace"] == plain.total
    assert ms.compare(model, x, tolerance=tolerance, rescalings=0).to_dict()


def test_a_plan_keeps_to_the_variance_that_is_allowed() -> None:
    energies = torch.rand(200, 40, dtype=D, generator=generator()) ** 6
    for units in (1e3, 10.0, 0.1, 1e-9):
        made = plan(energies, 39, units, generator())
        assert made.units <= units
        counted = torch.cat([group.samples for group in made.groups])
        assert sorted(counted.tolist()) == list(range(200))
    assert all(group.mixes == 0 for group in plan(energies, 39, 0.0, generator()).groups)


def test_a_plan_spends_where_the_energy_is() -> None:
    energies = torch.full((100, 40), 1e-3, dtype=D)
    energies[:5] = 1.0
    made = plan(energies, 39, 1.0, generator())
    columns = torch.zeros(100)
    for group in made.groups:
        columns[group.samples] = group.tops + group.mixes if group.mixes else 39
    assert columns[:5].min() > columns[5:].max()


def test_no_few_samples_have_the_variance_among_them() -> None:
    energies = torch.full((500, 10), 1e-3, dtype=D) + 1e-3 * torch.rand(500, 10, dtype=D, generator=generator())
    energies[:8] = 0.1
    made = plan(energies, 9, 1e6, generator())
    whole = torch.cat([group.samples for group in made.groups if not group.mixes])
    assert sorted(whole.tolist()) == list(range(8))


def test_what_is_spent_on_even_shares_is_bounded() -> None:
    energies = torch.logspace(0, -100, 400, dtype=D).unsqueeze(1).expand(400, 10)  # each above the sum of the rest
    for rank in (9, 99):
        made = plan(energies, rank, 1e6, generator())
        assert any(not group.mixes for group in made.groups)
        assert len(energies) < made.cost <= 1.25 * len(energies) + FREEDOM


def test_the_hessian_of_a_smooth_network_with_an_error_bar() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.GELU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(12, 3, dtype=D), torch.randint(3, (12,))
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), parameters, create_graph=True)
    expected = {}
    for (name, p), g in zip(model.named_parameters(), gradients, strict=True):
        rows = [torch.autograd.grad(g.flatten()[i], p, retain_graph=True)[0].flatten()[i] for i in range(p.numel())]
        expected[name] = float(torch.stack(rows).sum())
    found = ms.hessian_trace(model, (x, y), tolerance=0.03)
    assert 0 < found.standard_error <= 0.03 * abs(found.total) * 1.2
    for name, value in expected.items():
        assert abs(found.by_parameter[name] - value) <= 4 * found.standard_errors[name] + 1e-9, name
    assert abs(found.total - sum(expected.values())) < 3 * found.standard_error
    assert found.by_parameter["4.weight"] == pytest.approx(expected["4.weight"], rel=1e-9)
    with pytest.raises(ms.LossError, match=r"needs labels.*curvature=\"ggn\""):
        ms.hessian_trace(model, x, tolerance=0.03)
    with pytest.raises(ms.NotExactError, match=r"tolerance=0\.01"):
        ms.hessian_trace(model, (x, y))


def test_activations_by_layer() -> None:
    model, x = many_classes()
    found = ms.hessian_trace(model, x, of="activations")
    assert list(found.by_parameter) == ["0", "3"]
    assert ms.hessian_trace(model, x, of="activations", tolerance=0.02).standard_error > 0
    with pytest.raises(ms.InputError, match="of='weights': expected 'parameters' or 'activations'"):
        ms.hessian_trace(model, x, of="weights")  # type: ignore[arg-type]


def test_no_entry_of_a_diagonal_is_zero_by_chance() -> None:
    """A unit that few samples reach would be taken for one that noise cannot harm."""
    torch.manual_seed(0)
    first, x = nn.Linear(5, 40), torch.randn(600, 5).double()
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(40, 4)).double()
    with torch.no_grad():
        first.bias.sub_(2.2 * first.weight.norm(dim=1))  # each unit is live for one sample in seventy
    exact, found = ms.hessian_diagonal(model, x), ms.hessian_diagonal(model, x, tolerance=0.1)
    for name, block in exact.by_parameter.items():
        assert ((found.by_parameter[name] > 0) == (block > 0)).all()
