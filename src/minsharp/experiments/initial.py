"""What the experiments on networks as they are initialised share: the networks, the samples, the clock."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from statistics import median
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..data import TRAINING_IMAGES, Dataset, load
from ..errors import InputError
from ..models import build
from ..results.curvature import Diagonal
from ..text import markdown_cell
from .commands import seeds_option, unless_default
from .experiment import Results
from .plan import Configuration

MODELS = ("SmallMLP", "SmallCNN")
SAMPLES = (10, 100, 1000)
SEEDS = 10
REPEATS = 5
"""Calls of ours, of which the median time is taken."""

T = TypeVar("T")


def check(data: str, models: Sequence[str], samples: Sequence[int]) -> None:
    """Refuse what no cell could do."""
    if data not in TRAINING_IMAGES:
        raise InputError(f"data={data!r}: expected one of {', '.join(TRAINING_IMAGES)}")
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


def flat(diagonal: Diagonal) -> Tensor:
    """All entries of a diagonal in one vector, on the CPU."""
    return torch.cat([d.detach().double().cpu().flatten() for d in diagonal.by_parameter.values()])


def data_of(results: Results) -> str:
    """The names of the data sets in a table."""
    return ", ".join(dict.fromkeys(str(row["data"]) for row in results.rows))


def heading(results: Results) -> str:
    """The data set, on the page."""
    return markdown_cell(data_of(results))


def options(results: Results) -> Iterator[str]:
    """The options of the command that makes these results."""
    settings = results.settings or {}
    yield f"--data {settings['data']}"
    yield from unless_default(results.models, MODELS, "--models")
    yield from unless_default(sorted({row["samples"] for row in results.rows}), SAMPLES, "--samples")
    yield from seeds_option(results.seeds, SEEDS)
