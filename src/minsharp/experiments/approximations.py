"""Experiment C: the error of two approximations of DIAG[H] against the time they take, and the exact one beside them.

The reference is the exact diagonal in double precision, so that the error of ours in single precision is that of
rounding.
"""

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import torch

from ..colours import BLUE, GREEN, ORANGE
from ..curvature.hessian import hessian_diagonal
from ..errors import InputError
from ..network.reader import read
from ..reference.estimators import tsuzuku_arxiv_diagonal, tsuzuku_icml_diagonal
from ..text import rounded
from .commands import unless_default
from .drawing import log_log, one_legend, panels
from .experiment import Columns, Experiment, Results, Section
from .initial import MODELS, REPEATS, SAMPLES, SEEDS, check, data_of, draw, flat, heading, options, timed
from .plan import TIMING, Configuration, Plan, ResultRow, grid
from .registry import register
from .tables import Table, groups

EXACT = "exact (ours)"
METHODS = {"Tsuzuku et al., arXiv": tsuzuku_arxiv_diagonal, "Tsuzuku et al., ICML": tsuzuku_icml_diagonal}
PROBES = (1, 3, 10, 30, 100, 300)
COLUMNS = Columns(
    orders=("samples", "seed", "probes"),
    numbers=("error", "relative error", TIMING),
    text=("data", "model", "method"),
)


def plan(
    data: str = "digits",
    *,
    models: Sequence[str] = MODELS,
    samples: Sequence[int] = SAMPLES,
    seeds: Sequence[int] = range(SEEDS),
    probes: Sequence[int] = PROBES,
    device: str = "cpu",
) -> Plan:
    """One cell per network, number of samples and seed; a row per method and number of probes."""
    check(data, models, samples)
    if not probes or min(probes) < 1:
        raise InputError(f"probes={list(probes)}: expected numbers of at least 1")
    settings = {"data": data, "probes": list(probes), "device": device}
    return Plan(settings, grid(model=models, samples=samples, seed=seeds))


def work(configuration: Configuration, data_dir: str | None = None) -> list[ResultRow]:
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
) -> ResultRow:
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


def tables(results: Results) -> list[Table]:
    """Mean errors and seconds of the exact method and, for each approximation, of its most probes."""
    lines = []
    for (model, n, method), own in _by_method(results):
        most = max(row["probes"] for row in own)
        at = [row for row in own if row["probes"] == most]
        means = [fmean(row[c] for row in at) for c in ("error", "relative error", "seconds")]
        probes = "" if method == EXACT else str(most)
        lines.append((model, method, str(n), probes, *(rounded(m) for m in means)))
    head = ("network", "method", "n", "probes", "error", "relative error", "seconds")
    title = f"DIAG[H]: error in the Euclidean norm against time, means over seeds, {data_of(results)}"
    return [Table(title, head, tuple(lines), text=2)]


def _by_method(results: Results) -> Iterator[tuple[tuple[str, int, str], Sequence[ResultRow]]]:
    for (model, n), own in groups(results.rows, "model", "samples"):
        for (method,), at in groups(own, "method"):
            yield (model, n, method), at


def figures(results: Results) -> Iterator[tuple[str, Any]]:
    """Error against time for a growing number of probes; the exact method is one point."""
    rows, names = results.rows, results.models
    sizes = sorted({row["samples"] for row in rows})
    methods = list(dict.fromkeys(row["method"] for row in rows if row["method"] != EXACT))
    figure, axes = panels(len(names), len(sizes), 3.4 * len(sizes) + 0.4, 2.9 * len(names) + 0.8)
    for line, model in zip(axes, names, strict=True):
        for axis, n in zip(line, sizes, strict=True):
            _panel(axis, [row for row in rows if row["model"] == model and row["samples"] == n], methods)
            axis.set_title(f"{model}, n = {n}")
            if model == names[-1]:
                axis.set_xlabel("time, seconds")
        line[0].set_ylabel("error ‖DIAG[H] - approximation‖₂")
    one_legend(figure, axes)
    probes = sorted({row["probes"] for row in rows if row["method"] != EXACT})
    figure.suptitle(f"DIAG[H] on {rows[0]['data']}: error against time, {probes[0]} to {probes[-1]} probes")
    yield "approximations", figure


def _panel(axis: Any, own: Sequence[ResultRow], methods: Sequence[str]) -> None:
    """One network and number of samples: every cell as a dot, the means over seeds as a line."""
    for method, colour, marker in zip(methods, (ORANGE, GREEN), "s^", strict=False):
        at = [row for row in own if row["method"] == method]
        axis.plot([r["seconds"] for r in at], [r["error"] for r in at], ".", color=colour, alpha=0.3, ms=4)
        probes = sorted({row["probes"] for row in at})
        means = [[fmean(row[c] for row in at if row["probes"] == k) for k in probes] for c in ("seconds", "error")]
        axis.plot(*means, marker=marker, color=colour, markersize=5, label=f"{method} (mean)")
    at = [row for row in own if row["method"] == EXACT]
    star = [fmean(row[c] for row in at) for c in ("seconds", "error")]
    axis.plot(*star, "*", color=BLUE, markersize=13, label="minsharp, exact")
    log_log(axis)


def command(results: Results) -> str:
    """The command that makes these results."""
    settings = results.settings or {}
    probes = unless_default(settings.get("probes", []), PROBES, "--probes")
    device = unless_default([settings["device"]], ["cpu"], "--device")
    return " ".join(["minsharp reproduce approximations", *options(results), *probes, *device])


APPROXIMATIONS = register(
    Experiment(
        "approximations",
        work,
        plan,
        COLUMNS,
        tables,
        Section(
            "The approximations of DIAG[H] (experiment C)",
            """\
Two approximations of DIAG[H] by Tsuzuku, Sato and Sugiyama, with a growing number of random probes, against the exact
diagonal. The error is the Euclidean norm of the difference to the exact diagonal in double precision; the star is the
exact method in single precision.""",
            heading,
            command=command,
        ),
        figures=figures,
    )
)
