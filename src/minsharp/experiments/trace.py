"""Experiments A and D: Tr[H] and DIAG[H] against double backpropagation, one parameter at a time."""

import time
from collections.abc import Callable, Sequence
from functools import cache
from statistics import median
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..curvature.hessian import hessian_diagonal, hessian_trace
from ..data import NAMES, TRAINING_IMAGES, Dataset, load
from ..errors import InputError
from ..models import build
from ..network.reader import read
from ..reference.estimators import baseline_diagonal
from ..results.curvature import Diagonal
from .cells import Configuration, Experiment, Row, grid

MODELS = ("SmallMLP", "SmallCNN")
SAMPLES = (10, 100, 1000)
SEEDS = 10
REPEATS = 5

T = TypeVar("T")


def experiment(
    data: str = "digits",
    *,
    models: Sequence[str] = MODELS,
    samples: Sequence[int] = SAMPLES,
    seeds: Sequence[int] = range(SEEDS),
    device: str = "cpu",
) -> Experiment:
    """One cell per network, number of samples and seed."""
    check(data, models, samples)
    cells = grid(model=models, samples=samples, seed=seeds)
    return Experiment("trace", work, {"data": data, "device": device}, cells)


def check(data: str, models: Sequence[str], samples: Sequence[int]) -> None:
    """Refuse what no cell could do."""
    if data not in NAMES:
        raise InputError(f"data={data!r}: expected one of {', '.join(NAMES)}")
    for name in models:
        if name not in MODELS:
            raise InputError(f"no model {name!r} in this experiment: expected some of {', '.join(MODELS)}")
    for n in samples:
        if n < 1:
            raise InputError(f"samples={n}: expected at least 1")
        if n > TRAINING_IMAGES[data]:
            raise InputError(f"samples={n}: {data} has {TRAINING_IMAGES[data]} training images")


@cache
def _data(name: str, data_dir: str | None) -> Dataset:
    return load(name, data_dir)


def draw(configuration: Configuration, data_dir: str | None) -> tuple[nn.Module, Tensor, Tensor]:
    """The archive's recipe: seed, build the network, then draw the samples."""
    data = _data(configuration["data"], data_dir)
    n, device = configuration["samples"], configuration["device"]
    torch.manual_seed(configuration["seed"])
    model = build(configuration["model"], data.name)
    chosen = torch.randperm(len(data.train_x))[:n]
    return model.to(device), data.train_x[chosen].to(device), data.train_y[chosen].to(device)


def timed(call: Callable[[], T], repeats: int = 1) -> tuple[T, float]:
    """The result, and the median of the seconds."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    return result, median(seconds)


def work(configuration: Configuration, data_dir: str | None = None) -> list[Row]:
    """Trace and diagonal of a network as it was initialised, both ways; ours after one call to warm up."""
    model, x, y = draw(configuration, data_dir)
    network = read(model, x)
    hessian_diagonal(network, x)
    ours, trace_seconds = timed(lambda: hessian_trace(network, x), REPEATS)
    diagonal, diagonal_seconds = timed(lambda: hessian_diagonal(network, x), REPEATS)
    baseline, baseline_seconds = timed(lambda: baseline_diagonal(model, (x, y)))
    expected = flat(baseline)
    return [
        {
            "data": configuration["data"],
            "model": configuration["model"],
            "samples": configuration["samples"],
            "seed": configuration["seed"],
            "trace": ours.total,
            "baseline trace": baseline.total,
            "trace relative difference": abs(ours.total / baseline.total - 1),
            "diagonal relative difference": float((flat(diagonal) - expected).norm() / expected.norm()),
            "trace seconds": trace_seconds,
            "diagonal seconds": diagonal_seconds,
            "baseline seconds": baseline_seconds,
        }
    ]


def flat(diagonal: Diagonal) -> Tensor:
    """All entries of a diagonal in one vector, on the CPU."""
    return torch.cat([d.detach().double().cpu().flatten() for d in diagonal.by_parameter.values()])
