"""A monitor logs what a direct call says, when it is time, and leaves training alone."""

import gc
import warnings
from itertools import pairwise

import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.measures import monitor as module
from minsharp.measures.registry import MEASURES

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def test_it_logs_what_a_direct_call_says(model: nn.Sequential) -> None:
    monitor, optimizer = ms.Monitor(model, (X, Y), every=2), torch.optim.SGD(model.parameters(), lr=0.1)
    steps = []
    for step in range(5):
        nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()
        gradients, mode, state = [p.grad for p in model.parameters()], model.training, torch.get_rng_state()
        buffers = {name: b.clone() for name, b in model.named_buffers()}
        logged = monitor(step)
        assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
        assert (model.training, torch.equal(torch.get_rng_state(), state)) == (mode, True)
        assert all(torch.equal(b, buffers[name]) for name, b in model.named_buffers())
        if logged:
            steps.append(step)
            assert logged["minsharp/trace"] == ms.hessian_trace(model, X).total
            assert logged["minsharp/minimum_sharpness"] == ms.minimum_sharpness(model, X).value
            assert logged["minsharp/trace/standard_error"] == 0.0
            assert logged["minsharp/trace/seconds"] > 0
            assert all(type(value) is float for value in logged.values())
    assert steps == monitor.frame()["step"] == [0, 2, 4]
    assert {len(column) for column in monitor.frame().values()} == {3}


def test_other_measures_and_options(model: nn.Sequential) -> None:
    names = ["minimum sharpness (neuron)", "largest eigenvalue"]
    logged = ms.Monitor(model, (X, Y), measures=names, parameters="0.*", curvature="ggn")(0)
    diagonal = ms.hessian_diagonal(model, X, parameters="0.*", curvature="ggn")
    sharpness = ms.minimum_sharpness(model, diagonal, scope="neuron").value
    assert logged["minsharp/minimum_sharpness_neuron"] == sharpness
    assert "minsharp/largest_eigenvalue" in logged
    assert "minsharp/largest_eigenvalue/standard_error" not in logged


def test_replaced_modules_are_noticed(model: nn.Sequential) -> None:
    monitor = ms.Monitor(model, X)
    before = monitor(0)
    model[2] = nn.Identity()  # the same weights, another function
    after = monitor(1)["minsharp/trace"]
    assert after == ms.hessian_trace(model, X).total != before["minsharp/trace"]
    model[4] = nn.Linear(8, 5)
    assert monitor(2)["minsharp/trace"] == ms.hessian_trace(model, X).total
    model[4].weight = nn.Parameter(torch.randn(2, 8))
    model[4].register_parameter("bias", None)  # another shape in a module that stays
    assert monitor(3)["minsharp/trace"] == ms.hessian_trace(model, X).total


def test_another_function_of_the_same_modules_is_noticed(model: nn.Sequential) -> None:
    model[2] = nn.LeakyReLU(0.1)
    monitor = ms.Monitor(model, X)
    assert monitor(0)["minsharp/trace"] == ms.hessian_trace(model, X).total
    vars(model[2])["negative_slope"] = 0.7
    assert monitor(1)["minsharp/trace"] == ms.hessian_trace(model, X).total
    hook = model[0].register_forward_hook(lambda module, given, result: 2 * result)
    assert monitor(2)["minsharp/trace"] == ms.hessian_trace(model, X).total
    hook.remove()
    assert monitor(3)["minsharp/trace"] == ms.hessian_trace(model, X).total
    assert len(set(monitor.frame()["minsharp/trace"])) == 3


def test_what_stays_is_read_once(model: nn.Sequential, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = ms.Monitor(model, X)
    monkeypatch.setattr(module, "read", lambda *given, **more: pytest.fail("read again"))
    for step in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        vars(model[3])["p"] = 0.1 * step  # dropout counts in training alone
        assert monitor(step)["minsharp/trace"] > 0


def test_a_compiled_model_and_a_probe_of_its_own(model: nn.Sequential) -> None:
    given = X.clone()
    monitor = ms.Monitor(torch.compile(model, backend="eager"), given)  # type: ignore[arg-type]
    given.zero_()
    assert monitor()["minsharp/trace"] == ms.hessian_trace(model, X).total


def test_every_measure_of_a_network_that_diverged_is_nan(model: nn.Sequential) -> None:
    monitor = ms.Monitor(model, (X, Y), measures=list(MEASURES))
    assert all(value == value for value in monitor(0).values())
    with torch.no_grad():
        model.get_parameter("4.weight").fill_(float("nan"))
    logged = monitor(1)
    assert len(logged) > 2 * len(MEASURES)
    assert all(value != value for name, value in logged.items() if not name.endswith("/seconds"))


def test_a_measure_without_a_value_is_nan(model: nn.Sequential) -> None:
    """Zeros have no margin and nothing to be relative to, and a trace."""
    names = ["trace", "margin sensitivity", "relative sensitivity", "Rangamani flatness"]
    monitor = ms.Monitor(model, (X, Y), measures=names)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    logged = monitor()
    assert logged["minsharp/trace"] > 0
    for name in ("margin_sensitivity", "relative_sensitivity", "Rangamani_flatness"):
        assert logged[f"minsharp/{name}"] != logged[f"minsharp/{name}"]


def test_estimates_carry_their_error() -> None:
    torch.manual_seed(0)
    smooth = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 30))
    x, y = torch.randn(400, 4), torch.randint(30, (400,))
    logged = ms.Monitor(smooth, (x, y), tolerance=0.1, seed=3)()
    direct = ms.hessian_trace(smooth, (x, y), tolerance=0.1, seed=3)
    assert logged["minsharp/trace"] == direct.total
    assert logged["minsharp/trace/standard_error"] == direct.standard_error > 0
    assert logged["minsharp/minimum_sharpness/standard_error"] > 0


def test_a_network_that_diverged_is_logged_as_nan(model: nn.Sequential) -> None:
    monitor = ms.Monitor(model, X)
    with torch.no_grad():
        model.get_parameter("0.weight")[0, 0] = float("inf")
    assert monitor(0)["minsharp/trace"] != monitor(0)["minsharp/trace"]


def test_what_is_wrong_is_raised() -> None:
    smooth = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    with pytest.raises(ms.NotExactError, match="not piecewise linear"):
        ms.Monitor(smooth, X)(0)
    with pytest.raises(ms.InputError, match=r"budget=5: expected a share of the time, as in budget=0.05"):
        ms.Monitor(smooth, X, budget=5)
    with pytest.raises(ms.InputError, match="every=0: expected a whole number of steps, 1 or more"):
        ms.Monitor(smooth, X, every=0)
    with pytest.raises(ms.InputError, match="budget='5%': expected a share of the time"):
        ms.Monitor(smooth, X, budget="5%")  # type: ignore[arg-type]
    with pytest.raises(ms.InputError, match=r"step=0.5: expected a whole number, as in monitor\(10\)"):
        ms.Monitor(smooth, X)(0.5)  # type: ignore[arg-type]
    with pytest.raises(ms.InputError, match=r"tolerance=-1: expected a relative standard error below 1"):
        ms.Monitor(smooth, X, tolerance=-1)
    with pytest.raises(ms.InputError, match="unknown"):
        ms.Monitor(smooth, X, measures=["maximum sharpness"])


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_budget_is_kept(model: nn.Sequential, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each step, and three for each measurement: a tenth of the time allows one in thirty seconds."""
    clock = _Clock()
    monkeypatch.setattr(module, "perf_counter", clock)
    monitor = ms.Monitor(model, X, budget=0.1)

    def slow() -> dict[str, float]:
        clock.now += 3.0
        return {"minsharp/trace": 1.0}

    monkeypatch.setattr(monitor, "_values", slow)
    for step in range(300):
        clock.now += 1.0
        monitor(step)
        spent = 3.0 * len(monitor.frame()["step"])
        assert spent <= max(3.0, 0.1 * clock.now)
    assert len(monitor.frame()["step"]) >= 10


def test_memory_stays(model: nn.Sequential) -> None:
    monitor = ms.Monitor(model, X)
    for _ in range(3):
        monitor()
    counts = []
    for _ in range(5):
        for _ in range(20):
            monitor()
        gc.collect()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # looking at everything touches what torch calls deprecated
            counts.append((sum(isinstance(o, torch.Tensor) for o in gc.get_objects()), len(gc.get_objects())))
    assert counts[-2][0] == counts[-1][0]
    grown = [after[1] - before[1] for before, after in pairwise(counts)]
    assert min(grown) < 20  # what stays of every call would show between any two


def test_a_figure(model: nn.Sequential) -> None:
    monitor = ms.Monitor(model, X)
    monitor(0), monitor(5)
    figure = monitor.plot()
    assert [axis.get_ylabel() for axis in figure.axes] == ["trace", "minimum sharpness"]
    assert list(figure.axes[0].lines[0].get_xdata()) == [0, 5]
    assert repr(monitor) == "Monitor(Sequential: trace, minimum sharpness; measured 2 times)"
