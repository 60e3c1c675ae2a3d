"""Accuracy under noise as it is predicted, beside what draws and rounding leave."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import minsharp as ms
from benchmarks.report import Table
from minsharp.files import write_atomically
from minsharp.measures.noise import Device

from .bench import DIGITS, Bench

NETWORKS = ("resnet20", "resnet56", "depthwise", *DIGITS)
TRIALS = 5
FEWER = {"resnet20": 1000, "resnet56": 1000}  # test images, where all would take hours
SIZES: dict[Device, tuple[str, tuple[float, ...]]] = {
    "absolute": ("sigmas", (0.003, 0.01, 0.02, 0.03)),
    "relative": ("sigmas", (0.05, 0.1, 0.2, 0.3)),
    "max": ("bits", (6, 5, 4, 3)),
    "max-per-channel": ("bits", (6, 5, 4, 3)),
}
LARGER: dict[Device, float] = {"absolute": 4.0, "relative": 2.0}  # how much more noise the digits take, bearing more
DROPS = (0.01, 0.02, 0.05, 0.1)
COLOURS = dict(zip(NETWORKS, ("#4c72b0", "#8172b3", "#dd8452", "#55a868", "#c44e52"), strict=True))
MARKERS: dict[Device, str] = {"absolute": "o", "relative": "s", "max": "^", "max-per-channel": "v"}
FIGURE = "figures/predicted-accuracy.svg"


@dataclass(frozen=True)
class Point:
    """One network under one noise: accuracies as shares, the measured one with the standard error of its draws."""

    network: str
    noise: Device
    size: str
    samples: int
    clean: float
    predicted: float
    measured: float
    error: float

    @property
    def off(self) -> float:
        return abs(self.predicted - self.measured)

    @property
    def drop(self) -> float:
        """How much of the accuracy noise is predicted to take."""
        return self.clean - self.predicted


def points(bench: Bench) -> Iterator[Point]:
    """All of them; a noise of one network is a cell."""
    for name, noise in product(NETWORKS, SIZES):
        kind, sizes = SIZES[noise]
        factor = LARGER.get(noise, 1) if name in DIGITS else 1
        taken = [size * factor for size in sizes]

        def work(name: str = name, noise: Any = noise, kind: str = kind, taken: Any = taken) -> Any:
            return _measured(bench, name, noise, kind, taken)

        found = bench.cell(f"predicted/{samples(bench, name)}/{name}-{noise}", work)
        for size, row in zip(taken, found["rows"], strict=True):
            text = f"{size} bits" if kind == "bits" else f"sigma {size:g}"
            yield Point(name, noise, text, found["samples"], found["clean"], *row)


def samples(bench: Bench, name: str) -> int:
    """How many test images at most."""
    return min(FEWER.get(name, bench.options.samples), bench.options.samples)


def _measured(bench: Bench, name: str, noise: Any, kind: str, sizes: list[Any]) -> dict[str, Any]:
    model, (x, y) = bench.network(name)[0], (t[: samples(bench, name)] for t in bench.test(name))
    data = list(zip(x.split(50), y.split(50), strict=True))
    options: Any = {kind: sizes}
    levels = ms.noise_robustness(model, data, noise=noise, trials=TRIALS, **options).levels
    (still,) = ms.noise_robustness(model, data, sigmas=[0.0], trials=2).levels
    rows = []
    for size, level in zip(sizes, levels, strict=True):
        one: Any = {kind.removesuffix("s") if kind == "sigmas" else kind: size}
        predicted = ms.predicted_accuracy(model, data, noise=noise, **one)
        assert level.accuracy is not None
        rows.append([predicted.accuracy, level.accuracy.mean, level.accuracy.standard_error])
    assert still.accuracy is not None
    return {"clean": still.accuracy.mean, "samples": len(x), "rows": rows}


def tables(bench: Bench) -> Iterator[Table]:
    """Every point, and how far off the prediction is by how much it predicts to be lost."""
    found = list(points(bench))
    rows = [
        (
            p.network,
            p.noise,
            p.size,
            f"{p.samples:,}",
            *(f"{100 * v:.2f}" for v in (p.clean, p.predicted, p.measured, p.error)),
        )
        for p in found
    ]
    above = [p for p in found if p.predicted > 0.5]
    worst = max(above, key=lambda p: p.off)
    bands = [
        ("more than 50 % is left", above),
        *((f"{100 * d:.0f} % or less is lost", _within(found, d)) for d in DROPS),
    ]
    errors = [
        (text, str(len(of)), f"{100 * max(p.off for p in of):.2f}", f"{100 * sum(p.off for p in of) / len(of):.2f}")
        for text, of in bands
    ]
    yield Table(
        "Predicted accuracy: how far off",
        f"In points. The largest error where more than 50 % is predicted is that of {worst.network} under noise "
        f"'{worst.noise}', {worst.size}: {100 * worst.predicted:.2f} % predicted, {100 * worst.measured:.2f} % left. "
        "The prediction is of first order and knows only one rival, so it is too high where much is lost: trust it for "
        f"small losses.\n\n![Predicted against measured accuracy, one point for each network and noise]({FIGURE})",
        ("where the prediction says that", "points", "largest error", "mean error"),
        errors,
    )
    yield Table(
        "Predicted accuracy: every point",
        f"In percent of the first test images. Measured: the mean of {TRIALS} draws, with its standard error; under "
        "'max' and 'max-per-channel' by rounding to nearest, without chance.",
        ("network", "noise", "size", "images", "without noise", "predicted", "measured", "±"),
        rows,
    )


def _within(found: list[Point], drop: float) -> list[Point]:
    return [p for p in found if p.drop <= drop]


def draw(bench: Bench, folder: Path) -> None:
    """The plot."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.4), layout="constrained")
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], color="#999999", linewidth=1)
    for p in points(bench):
        axis.errorbar(
            p.predicted, p.measured, yerr=p.error, color=COLOURS[p.network], marker=MARKERS[p.noise],
            markersize=6, alpha=0.8, linestyle="none",
        )  # fmt: skip
    for name, colour in COLOURS.items():
        axis.plot([], [], color=colour, marker="o", linestyle="none", label=name)
    for noise, marker in MARKERS.items():
        axis.plot([], [], color="#555555", marker=marker, linestyle="none", label=f"noise '{noise}'")
    axis.set(xlabel="predicted accuracy", ylabel="measured accuracy", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axis.legend(frameon=False, loc="upper left")
    with rc_context({"svg.hashsalt": "minsharp"}):  # the same file each time
        write_atomically(folder / FIGURE, lambda path: figure.savefig(path, format="svg", metadata={"Date": None}))
