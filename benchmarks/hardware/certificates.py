"""The program of the matched objective: how far it lowers it, its certificate, and its time."""

from collections.abc import Iterator
from functools import partial
from time import perf_counter
from typing import Any

import minsharp as ms
from benchmarks.report import Table
from minsharp.text import count, decimals, magnitude, number, percent

from .bench import Bench
from .rounding import NETWORKS, NOISES

CURVATURES = ("hessian", "margin")


def measured(bench: Bench, name: str, curvature: Any, noise: Any) -> dict[str, Any]:
    """Once the network is read and the diagonal known."""
    network, diagonal = bench.read(name), bench.diagonal(name, curvature)
    start = perf_counter()
    result = ms.minimum_sharpness(network, diagonal, scope="neuron", noise=noise)
    seconds = perf_counter() - start
    gap = 1 - result.lower_bound / result.value
    return {"before": result.trace, "after": result.value, "gap": gap, "unknowns": result.unknowns, "s": seconds}


def tables(bench: Bench) -> Iterator[Table]:
    """All networks, curvatures and noises."""
    rows = []
    for name in NETWORKS:
        for curvature in CURVATURES:
            for noise in ("relative", *NOISES):
                key = f"certificates/{bench.options.calibration}/{name}-{curvature}-{noise}"
                f = bench.cell(key, partial(measured, bench, name, curvature, noise))
                numbers = (number(f["before"], 4), number(f["after"], 4), percent(1 - f["after"] / f["before"], 1))
                rows.append(
                    (name, curvature, noise, count(f["unknowns"]), *numbers, magnitude(f["gap"]), decimals(f["s"]))
                )
    yield Table(
        "Certificates",
        f"BatchNorm folded, curvature from {bench.options.calibration} images. The noise times curvature that the "
        "network has as it is and at the minimum over all factors per neuron; the gap is 1 - lower bound / value. "
        "Seconds of wall time for group, program and certificate, the diagonal known.",
        ("network", "curvature", "noise", "free factors", "as it is", "minimum", "lower by", "gap", "seconds"),
        rows,
    )
