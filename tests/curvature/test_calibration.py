"""Error bars against what they promise, where they are hardest to get right: few samples at a time, and the rest R."""

from math import inf, sqrt
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from benchmarks import calibration, smooth
from torch import nn

import minsharp as ms
from minsharp.curvature.plan import asked_of, plan
from minsharp.curvature.quantities import TRACE
from minsharp.curvature.smooth import _ENOUGH, Rest
from minsharp.losses import as_loss
from minsharp.subject.batches import Batch
from tests.support.dense import Dense
from tests.support.language import language, tokens


def coverage(z: list[float]) -> list[float]:
    return [fmean(abs(error) <= level for error in z) for level in (1, 2)]


def room(p: float, count: int) -> float:
    """Three standard deviations."""
    return 3 * sqrt(p * (1 - p) / count)


def is_as_said(z: list[float]) -> bool:
    one, two = coverage(z)
    sound = abs(one - 0.683) < room(0.683, len(z)) and abs(two - 0.954) < room(0.954, len(z))
    return sound and abs(fmean(z)) < 3.5 / sqrt(len(z)) and 0.8 < stdev(z) < 1.25


def test_what_is_said_of_errors_can_be_wrong() -> None:
    errors = torch.randn(300, generator=torch.Generator().manual_seed(0))
    assert is_as_said(errors.tolist())
    for wrong in (errors * 1.4, errors / 1.4, errors + 0.3):
        assert not is_as_said(wrong.tolist())


def test_two_samples_at_a_time() -> None:
    """Each block plans for itself, with the draws that the whole run needs, not each block alone."""
    network, x = ms.read(language(V=30, d=12, T=6), tokens(2, 6, 30), class_axis=-1), tokens(24, 6, 30)
    exact = ms.hessian_trace(network, x, curvature="ggn").total
    options: Any = {"curvature": "ggn", "tolerance": 0.05, "memory": 1}
    found = [ms.hessian_trace(network, x, seed=seed, **options) for seed in range(80)]
    assert is_as_said([(r.total - exact) / r.standard_error for r in found])
    assert max(r.standard_error for r in found) <= 1.3 * 0.05 * exact


def test_the_hessian_of_a_smooth_network() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    data = torch.randn(30, 3).double(), torch.randint(3, (30,))
    exact = float(Dense(model, data).hessian.trace())
    network = ms.read(model, data[0])
    found = [ms.hessian_trace(network, data, tolerance=0.03, seed=seed) for seed in range(60)]
    assert is_as_said([(r.total - exact) / r.standard_error for r in found])


@pytest.mark.parametrize("factor", [3, 10, 30])
def test_a_sample_that_has_most_of_the_trace_without_much_output_curvature(factor: float) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 60)), torch.randn(64, 10)
    x[0] *= factor
    network = ms.read(model, x)
    exact = ms.hessian_trace(network, x).total
    found = [ms.hessian_trace(network, x, tolerance=0.02, seed=seed) for seed in range(60)]
    assert is_as_said([(r.total - exact) / r.standard_error for r in found])


@pytest.mark.parametrize("dark", [1e-6, 1e-2])
def test_samples_without_inputs_have_biases(dark: float) -> None:
    """More than half of them, so that the usual size is no size at all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 10))
    x = torch.randn(900, 8)
    x[torch.rand(900) < 0.6] *= dark
    network = ms.read(model, x)
    exact = ms.hessian_trace(network, x).total
    found = [ms.hessian_trace(network, x, tolerance=0.03, seed=seed) for seed in range(150)]
    assert is_as_said([(r.total - exact) / r.standard_error for r in found])


@pytest.mark.slow
def test_a_trained_network_whose_variance_a_few_samples_have() -> None:
    entry = calibration.ENTRIES["CNN, trained"]
    model, data = calibration.trained(entry)
    network = ms.read(model, data[0])
    exact = ms.hessian_trace(network, data).total
    found = [ms.hessian_trace(network, data, tolerance=0.02, seed=seed) for seed in range(150)]
    assert is_as_said([(r.total - exact) / r.standard_error for r in found])


@pytest.mark.parametrize("name", ["perceptron, tanh", "swiglu, rms norm"])
def test_smooth_networks_beside_dense_autograd(name: str) -> None:
    assert smooth.measured(name).sound


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", smooth.ENTRIES)
def test_all_ten_of_the_benchmark(name: str, seed: int) -> None:
    found = smooth.measured(name, seed)
    assert abs(found.off) < 4
    assert found.standard_error < 0.02 * abs(found.trace)


def test_draws_for_few_samples_are_shared_among_blocks() -> None:
    energies = torch.ones(2, 5000, dtype=torch.float64)
    draws = [plan(energies, 4999, 1e12, torch.Generator(), samples).groups[0].mixes for samples in (0, 8, 32, 1000)]
    assert draws == [129, 33, 9, 2]


@pytest.mark.parametrize("n", [2, 16, 100])
def test_a_variance_is_told_by_as_many_draws_as_are_asked_for_whoever_has_it(n: int) -> None:
    """Satterthwaite's count, of the parts as they were planned."""
    generator = torch.Generator().manual_seed(0)
    for power in (0, 1, 4):
        energies = torch.rand(n, 300, dtype=torch.float64, generator=generator) ** power * torch.rand(n, 1) ** power
        for freedom in (20.0, 64.0, 256.0):
            made = plan(energies, 299, 1e12, generator, freedom=freedom)
            drawn = [group for group in made.groups if group.mixes]
            left = [energies[group.samples].sort(1).values[:, : 300 - group.tops].sum(1) for group in drawn]
            parts = [(part.square() / group.mixes, group.mixes) for part, group in zip(left, drawn, strict=True)]
            uncertain = sum(float(part.square().sum()) / (mixes - 1) for part, mixes in parts)
            total = sum(float(part.sum()) for part, _ in parts)
            assert total**2 >= 0.99 * freedom * uncertain
            assert made.freedom == pytest.approx(total**2 / uncertain) if uncertain else made.freedom == inf


def test_draws_that_are_not_normal_need_more_of_them() -> None:
    """With r squares in each draw, the sample variance of m is as uncertain as that of so many fewer normal ones."""
    generator = torch.Generator().manual_seed(0)
    for r in (1, 4, 400):
        m = round(asked_of(2 / r))
        draws = torch.randn(4000, m, r, generator=generator).square().sum(2)
        uncertain = float(draws.var(1).div(2 * r).var())  # 2 / freedom for normal draws
        assert m == 256 or abs(uncertain / (2 / asked_of(0.0)) - 1) < 0.2
    assert asked_of(2 / 400) < asked_of(2 / 4) < asked_of(2.0) == 256


@pytest.mark.parametrize("epochs", [0, 3])
def test_few_samples_of_many_classes(epochs: int) -> None:
    """Where some eighty draws are all that there are."""
    torch.manual_seed(0)
    centres, y = 1.5 * torch.randn(100, 10), torch.randint(100, (500,))
    x = centres[y] + torch.randn(500, 10)
    model = nn.Sequential(nn.Linear(10, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 100))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for part in (torch.arange(500).split(50)) * epochs:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
    network, x = ms.read(model.double(), x.double()), x[:12].double()
    exact = ms.hessian_trace(network, x).total
    found = [ms.hessian_trace(network, x, tolerance=0.05, seed=seed) for seed in range(200)]
    assert is_as_said([(r.total - exact) / r.standard_error for r in found])


def test_a_tolerance_that_was_missed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minsharp.curvature.smooth._MOST", 32)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 2)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4)
    x, y = torch.randn(2, 4).double(), torch.tensor([0, 1])
    with pytest.warns(UserWarning, match=r"the standard error is .*% of the trace, not 0\.01%.*curvature=\"ggn\""):
        found = ms.hessian_trace(model, (x, y), tolerance=1e-4)
    assert found.standard_error > 1e-4 * abs(found.total)


def test_what_is_hopeless_is_given_up_early() -> None:
    """No tolerance of 1e-6 is met with 4096 probes: a few hundred tell, and their error is an honest one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    data = torch.randn(3, 4).double(), torch.tensor([0, 1, 1])
    batch, network, loss = Batch(*data), ms.read(model, data[0]), as_loss(nn.CrossEntropyLoss())
    dense = float(Dense(model, data).hessian.trace()) - ms.hessian_trace(model, data, curvature="ggn").total
    off = []
    for seed in range(40):
        rest = Rest(network, list(network.parameters), loss, TRACE, 1000 * seed)
        first = rest.first(batch)
        found = rest.refined(batch, first, first.variance * 1e-6)
        assert found.probes == _ENOUGH
        off.append((found.total / len(batch) - dense) / (found.standard_error / len(batch)))
    assert abs(fmean(off)) < 3.5 / sqrt(len(off))
    assert 0.6 < stdev(off) < 1.4
    met = rest.refined(batch, first, first.variance / 100)
    assert met.probes > _ENOUGH
    assert met.variance <= first.variance / 100
