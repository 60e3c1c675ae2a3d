"""What is switched on around a call changes nothing; threads do not disturb each other; all is as it was before."""

import copy
import logging
import os
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.reference import estimators
from minsharp.subject.modes import LOCK, eval_mode, plain_mode

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def mlp(seed: int = 0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))


@contextmanager
def switched(switch: Callable[[Any], None], on: Any, off: Any) -> Iterator[None]:
    switch(on)
    try:
        yield
    finally:
        switch(off)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "float16": lambda: torch.autocast("cpu", torch.float16),
    "meta": lambda: torch.device("meta"),
    "default type": lambda: switched(torch.set_default_dtype, torch.float64, torch.float32),
    "deterministic": lambda: switched(torch.use_deterministic_algorithms, True, False),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
}
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "trace": lambda m, d: ms.hessian_trace(m, d).by_parameter,
    "diagonal": lambda m, d: ms.hessian_diagonal(m, d).by_parameter["0.weight"].tolist(),
    "minimum": lambda m, d: ms.minimum_sharpness(m, d, scope="neuron").value,
    "flattest": lambda m, d: ms.flattest(m, d)[0].weight.tolist(),  # type: ignore[index]
    "verify": lambda m, d: ms.verify(m, d, ms.minimum_sharpness(m, d)).holds,
    "random": lambda m, d: {k: float(v) for k, v in ms.symmetries(m, d[0]).random(1).items()},
    "compare": lambda m, d: [row.value for row in ms.compare(m, d).rows],
    "hutchinson": lambda m, d: estimators.hutchinson_trace(m, d, probes=2).value,
    "noise": lambda m, d: str(ms.noise_robustness(m, d, sigmas=[0.1], trials=2)),
}


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return {name: call(mlp(), (X, Y)) for name, call in CALLS.items()}


def state() -> list[Any]:
    return [
        logging.getLogger("torch").level,
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        random.getstate(),
        torch.get_rng_state().tolist(),
        repr(np.random.get_state(legacy=False)),
        list(warnings.filters),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.get_default_device(),
    ]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mode", MODES)
def test_what_is_switched_on_changes_nothing(mode: str, call: str, expected: dict[str, Any]) -> None:
    model, data = mlp(), (X, Y)
    with MODES[mode]():
        if mode == "inference":
            data = (X.clone(), Y.clone())  # as a user has them there
        before = state()
        assert CALLS[call](model, data) == expected[call]
        assert state() == before


def test_plain_mode_costs_next_to_nothing() -> None:
    with plain_mode():
        assert torch.is_grad_enabled()


class Failing(nn.Module):
    """Raises something in the middle of forward, after it has drawn random numbers from everywhere."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.layer, self.error = nn.Linear(4, 3), error

    def forward(self, x: Tensor) -> Tensor:
        random.random(), np.random.rand(), torch.rand(1)
        warnings.simplefilter("always")
        raise self.error


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt()])
def test_all_is_as_before_an_error(error: BaseException) -> None:
    model = Failing(error).train()
    model.layer.eval()
    before = state()
    with pytest.raises((ms.MinsharpError, KeyboardInterrupt)):
        ms.read(model, X)
    assert state() == before
    assert model.training
    assert not model.layer.training


def test_random_numbers_are_as_before() -> None:
    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Any:
            random.random(), np.random.rand(), torch.rand(1)
            return self.layer(x)

    model = Drawing()
    before = state()
    assert ms.hessian_trace(model, X).total > 0
    assert state() == before


def in_threads(models: list[Any], networks: list[Any], calls: int) -> tuple[list[float], list[str]]:
    """The traces that four threads find, each model's in turn, and what went wrong."""
    errors: list[str] = []
    start = threading.Barrier(4)

    def work(thread: int) -> list[tuple[int, float]]:
        start.wait()
        found = []
        for i in range(calls):
            k = (thread + i) % len(models)
            try:
                if i % 3 == 2:
                    found.append((k, ms.hessian_trace(networks[k], X).total))
                elif i % 3 == 1:
                    found.append((k, ms.hessian_diagonal(models[k], X).total))
                    estimators.hutchinson_trace(models[k], (X, Y), probes=2)
                else:
                    found.append((k, ms.hessian_trace(models[k], X).total))
            except Exception as error:
                errors.append(repr(error))
        return found

    with ThreadPoolExecutor(4) as pool:
        results = [pair for found in pool.map(work, range(4)) for pair in found]
    totals = [ms.hessian_trace(model, X).total for model in models]
    return [value / totals[k] for k, value in results], errors


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("calls", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_four_threads(count: int, calls: int) -> None:
    """On one model, and on different ones: every number is right, and every state as before."""
    models = [mlp(seed).train() for seed in range(count)]
    weights = [[p.detach().clone() for p in model.parameters()] for model in models]
    networks = [ms.read(model, X) for model in models]
    before = state()
    ratios, errors = in_threads(models, networks, calls)
    assert errors == []
    assert len(ratios) == 4 * calls
    assert max(abs(ratio - 1) for ratio in ratios) < 1e-6
    assert state() == before
    for model, kept in zip(models, weights, strict=True):
        assert all(module.training for module in model.modules())
        assert all(map(torch.equal, model.parameters(), kept))


def test_a_thread_that_trains_does_not_matter_to_what_was_read() -> None:
    model = mlp().train()
    network = ms.read(model, X)
    expected = ms.hessian_trace(network, X).total
    model.train()
    assert ms.hessian_trace(network, X).total == expected


LOOKING: dict[str, Callable[[nn.Module, ms.Diagonal], Any]] = {
    "minimum_sharpness": lambda model, d: ms.minimum_sharpness(model, d).value,
    "noise": lambda model, d: ms.minimum_sharpness(model, d, noise="max").value,
    "flattest": lambda model, d: ms.hessian_trace(ms.flattest(model, d), X).total,
    "rescale": lambda model, d: ms.hessian_trace(ms.rescale(model, {"0.weight": 2.0}), X).total,
    "saliency": lambda model, d: float(d.saliency(model)["0.weight"].sum()),
    "allocate_bits": lambda model, d: ms.allocate_bits(model, d, budget=4.0).increase,
    "normalized_sharpness": lambda model, d: ms.measures.normalized_sharpness(model, d).value,
    "margin_sensitivity": lambda model, d: ms.margin_sensitivity(model, X, scope="element").value,
    "relative_sensitivity": lambda model, d: ms.relative_sensitivity(model, X).value,
    "predicted_accuracy": lambda model, d: ms.predicted_accuracy(model, X, sigma=0.1).agreement,
    "full": lambda model, d: ms.minimum_sharpness(model, X, scope="full").value,
    "activations": lambda model, d: ms.hessian_trace(model, X, of="activations").total,
    "pacgen": lambda model, d: ms.measures.pacgen(model, (X, Y), diagonal=d).value,
    "relative_flatness": lambda model, d: ms.measures.relative_flatness(model, X).value,
    "noise_robustness": lambda model, d: ms.noise_robustness(model, (X, Y), trials=2).levels[0].agreement.mean,
}


class Watched(nn.Sequential):
    """A model that tells who looks at its parameters without the lock."""

    watching = False
    unguarded = 0

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """As always; copies are their owner's own."""
        self.unguarded += self.watching and not LOCK.held
        return super().named_parameters(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        return nn.Sequential(*(copy.deepcopy(part, memo) for part in self))


@pytest.mark.parametrize("name", LOOKING)
def test_nobody_looks_at_a_model_without_the_lock(name: str) -> None:
    """While another thread reads a model, its parameters are tensors without values."""
    model = Watched(*mlp())
    diagonal = ms.hessian_diagonal(model, X)
    expected = LOOKING[name](nn.Sequential(*model), diagonal)
    model.watching = True
    assert LOOKING[name](model, diagonal) == pytest.approx(expected)
    assert model.unguarded == 0


def test_modes_are_one_threads_at_a_time() -> None:
    """A thread that wants a model in eval mode waits for the one that has it so."""
    model, seen = mlp().train(), []
    with eval_mode(model):
        other = threading.Thread(target=lambda: seen.append(ms.read(model, X)))
        other.start()
        other.join(0.3)
        assert other.is_alive()
        assert not model.training
    other.join()
    assert len(seen) == 1
    assert model.training


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_finds_the_lock_open() -> None:
    """Whoever held it before."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with LOCK:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        with LOCK:
            os._exit(7)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


class Caching(nn.Module):
    """Keeps in eval mode what it makes of a parameter, as LeViT of timm does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.shift = nn.Linear(4, 3), nn.Parameter(torch.randn(2, 3))
        self.cache: dict[str, torch.Tensor] = {}

    def train(self, mode: bool = True) -> "Caching":
        super().train(mode)
        if mode:
            self.cache = {}
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training and "shift" not in self.cache:
            self.cache["shift"] = self.shift.detach().sum(0)
        shift = self.shift.sum(0) if self.training else self.cache["shift"]
        out: torch.Tensor = self.layer(x) * shift
        return out


def test_what_a_module_keeps_of_its_parameters_is_made_anew() -> None:
    torch.manual_seed(0)
    model, x = Caching().eval(), torch.randn(5, 4)
    fresh = ms.hessian_trace(Caching().eval(), x, curvature="ggn").by_parameter.keys()
    model(x)
    with torch.no_grad():
        model.shift.mul_(2)
    kept = model.cache
    assert ms.hessian_trace(model, x, curvature="ggn").by_parameter.keys() == fresh
    assert model.cache is kept
    assert kept.keys() == {"shift"}
    anew = ms.read(model, x)
    assert torch.allclose(ms.rescale(model, ms.symmetries(anew, x).random(0))(x), model.train()(x))
