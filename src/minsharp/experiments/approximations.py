"""Experiment C: the error of two approximations of DIAG[H] against the time they take, and the exact one beside them.

The reference is the exact diagonal in double precision, so that the error of ours in single precision is that of
rounding.
"""

import copy
from collections.abc import Sequence
from functools import partial

import torch

from ..curvature.hessian import hessian_diagonal
from ..errors import InputError
from ..network.reader import read
from ..reference.estimators import tsuzuku_arxiv_diagonal, tsuzuku_icml_diagonal
from .cells import Configuration, Experiment, Row, grid
from .trace import MODELS, REPEATS, SAMPLES, SEEDS, check, draw, flat, timed

EXACT = "exact (ours)"
METHODS = {"Tsuzuku et al., arXiv": tsuzuku_arxiv_diagonal, "Tsuzuku et al., ICML": tsuzuku_icml_diagonal}
PROBES = (1, 3, 10, 30, 100, 300)


def experiment(
    data: str = "digits",
    *,
    models: Sequence[str] = MODELS,
    samples: Sequence[int] = SAMPLES,
    seeds: Sequence[int] = range(SEEDS),
    probes: Sequence[int] = PROBES,
    device: str = "cpu",
) -> Experiment:
    """One cell per network, number of samples and seed; a row per method and number of probes."""
    check(data, models, samples)
    if not probes or min(probes) < 1:
        raise InputError(f"probes={list(probes)}: expected numbers of at least 1")
    cells = grid(model=models, samples=samples, seed=seeds)
    return Experiment("approximations", work, {"data": data, "probes": list(probes), "device": device}, cells)


def work(configuration: Configuration, data_dir: str | None = None) -> list[Row]:
    """The error of every method in the Euclidean norm over all entries, absolute and relative."""
    model, x, y = draw(configuration, data_dir)
    double = copy.deepcopy(model).double()
    truth = flat(hessian_diagonal(double, x.double()))
    network = read(model, x)
    hessian_diagonal(network, x)
    exact, seconds = timed(lambda: hessian_diagonal(network, x), REPEATS)
    rows = [_row(configuration, EXACT, 0, flat(exact), truth, seconds)]
    for name, method in METHODS.items():
        for probes in configuration["probes"]:
            found, seconds = timed(partial(method, model, (x, y), probes=probes, seed=configuration["seed"]))
            rows.append(_row(configuration, name, probes, flat(found), truth, seconds))
    return rows


def _row(
    configuration: Configuration, method: str, probes: int, found: torch.Tensor, truth: torch.Tensor, seconds: float
) -> Row:
    error = float((found - truth).norm())
    return {
        "data": configuration["data"],
        "model": configuration["model"],
        "samples": configuration["samples"],
        "seed": configuration["seed"],
        "method": method,
        "probes": probes,
        "error": error,
        "relative error": error / float(truth.norm()),
        "seconds": seconds,
    }
