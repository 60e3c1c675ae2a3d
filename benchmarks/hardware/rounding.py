"""Equivalent networks, their weights rounded to nearest: which images of the test set stay right."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import hypot
from typing import Any

import numpy as np

from benchmarks.report import Table
from minsharp.measures.noise import Noise

from .bench import VARIANTS, Bench, error_of, packed, right, rounded, shown, unpacked

BITS = (8, 6, 5, 4, 3)
NOISES: tuple[Noise, ...] = ("max", "max-per-channel")
NETWORKS = ("resnet20", "resnet56", "depthwise")
MATCHED = ("matched, Hessian", "matched, margin")
RIVALS = tuple(v for v in VARIANTS if v not in MATCHED)
SCALE: dict[Noise, str] = {"max": "one scale per tensor", "max-per-channel": "one scale per channel"}
WANTED: tuple[tuple[Noise, int, float], ...] = (
    ("max", 4, 1.5),
    ("max", 3, 10.0),
)  # points above the original, ResNet-20
ENOUGH = 8  # cells of ten


@dataclass(frozen=True)
class Outcome:
    """How many of so many images are right; and which, one for each that is: (n,), if that was kept."""

    share: float
    samples: int
    which: Any = None

    @staticmethod
    def of(held: str | float, samples: int) -> "Outcome":
        """From what a cell holds."""
        if isinstance(held, float):
            return Outcome(held, samples)
        which = unpacked(held, samples)
        return Outcome(float(which.mean()), samples, which)

    @property
    def error(self) -> float:
        """The standard error of the share."""
        return error_of(self.share, self.samples)

    def minus(self, other: "Outcome") -> tuple[float, float]:
        """How many points more are right, and the error of that: image by image, or of independent images."""
        if self.which is None or other.which is None:
            return 100 * (self.share - other.share), 100 * hypot(self.error, other.error)
        d = self.which - other.which
        return 100 * float(d.mean()), 100 * float(d.std(ddof=1)) / len(d) ** 0.5


Cells = Mapping[tuple[Noise, str, int], Outcome]  # by noise, variant and bits


def measured(bench: Bench, name: str) -> Cells:
    """All cells of a network."""
    found: dict[tuple[Noise, str, int], Outcome] = {}
    for noise in NOISES:
        for variant in VARIANTS:

            def work(noise: Noise = noise, variant: str = variant) -> Any:
                model, data = bench.variant(name, variant, noise), bench.test(name)
                return {b: packed(right(model, data, rounded(model, b, noise))) for b in BITS}

            samples = bench.samples(name)
            texts = bench.cell(f"rounding/{samples}/{name}-{noise}-{variant}", work)
            found |= {(noise, variant, b): Outcome.of(texts[str(b)], samples) for b in BITS}
    return found


def known(bench: Bench) -> dict[str, Cells]:
    """The networks of which all cells are there."""
    names: list[str] = bench.options.networks
    return {name: cells for name in names for cells in bench.whole(name, partial(measured, bench, name))}


def best(cells: Cells, noise: Noise, bits: int) -> Outcome:
    """The one with the largest accuracy of all variants."""
    return max((cells[noise, v, bits] for v in VARIANTS), key=lambda outcome: outcome.share)


def near(cells: Cells, variant: str, noise: Noise, bits: int) -> bool:
    """Whether a variant is the best, or within one standard error of the best."""
    top = best(cells, noise, bits)
    return cells[noise, variant, bits].share >= top.share - top.error


def signed(pair: tuple[float, float]) -> str:
    return f"{pair[0]:+.2f} ± {pair[1]:.2f}"


def accuracy_table(name: str, noise: Noise, cells: Cells) -> Table:
    """Every variant, and the paired differences that matter."""
    samples = cells[noise, "original", BITS[0]].samples
    rows = [
        (
            v,
            *(shown(cells[noise, v, b].share, samples) + ("*" if near(cells, v, noise, b) else "") for b in BITS),
        )
        for v in VARIANTS
    ]
    for variant in MATCHED:
        pairs = [cells[noise, variant, b].minus(cells[noise, "original", b]) for b in BITS]
        rows.append((f"{variant}: gain", *map(signed, pairs)))
    return Table(
        f"{name}, {SCALE[noise]}",
        f"Accuracy in percent of {samples:,} test images, the weights rounded to nearest. A star: the best, or within "
        "one standard error of it. The gain is over the original; its error is that of paired images where cells hold "
        "them, else of independent samples, which is larger.",
        ("", *(f"{b} bits" for b in BITS)),
        rows,
    )


def verdict_table(found: Mapping[str, Cells]) -> Table:
    """In how many cells each variant is near the best; where the matched ones are not."""
    rows = []
    for v in VARIANTS:
        counts = [sum(near(cells, v, k, b) for k in NOISES for b in BITS) for cells in found.values()]
        means = [
            f"{100 * np.mean([best(cells, k, b).share - cells[k, v, b].share for k in NOISES for b in BITS]):.2f}"
            for cells in found.values()
        ]
        rows.append((v, *(f"{c} ({m})" for c, m in zip(counts, means, strict=True))))
    either = [sum(any(near(cells, v, k, b) for v in MATCHED) for k in NOISES for b in BITS) for cells in found.values()]
    rows.append(("matched, either", *map(str, either)))
    note = (
        "Of the ten cells of each network (five numbers of bits, two kinds of scale): in how many a variant is the "
        "best or within one standard error of it, and in brackets how many points below the best it is on average."
    )
    return Table("Which equivalent network", "\n\n".join([note, *verdicts(found)]), ("", *found), rows)


def verdicts(found: Mapping[str, Cells]) -> Iterator[str]:
    """What was wanted, and where the matched objective loses."""
    for name, cells in found.items():
        for variant in MATCHED:
            yield f"**{name}, {variant}.** {_losses(cells, variant)}"
    for noise, bits, points in WANTED if "resnet20" in found else ():
        cells = found["resnet20"]
        gains = [cells[noise, v, bits].minus(cells[noise, "original", bits]) for v in MATCHED]
        text = ", ".join(f"{signed(g)} ({v})" for g, v in zip(gains, MATCHED, strict=True))
        met = "met" if gains[0][0] >= points else "not met"
        yield f"Wanted of ResNet-20 with {bits} bits per tensor: +{points} points. Measured: {text}: {met}."


def _losses(cells: Cells, variant: str) -> str:
    """Where a variant is more than a standard error below the best of the rivals, and by how much."""
    lost = []
    for noise in NOISES:
        for b in BITS:
            if near(cells, variant, noise, b):
                continue
            top = max(VARIANTS, key=lambda v: cells[noise, v, b].share)
            gap = cells[noise, variant, b].minus(cells[noise, top, b])
            lost.append(f"{signed(gap)} against {top} at {b} bits, {SCALE[noise].removeprefix('one scale ')}")
    near_best = len(NOISES) * len(BITS) - len(lost)
    met = "what was wanted" if near_best >= ENOUGH else f"{ENOUGH} were wanted"
    return f"Near the best in {near_best} of 10 cells ({met}). It loses: {'; '.join(lost) or 'nowhere'}."


def tables(bench: Bench) -> Iterator[Table]:
    """The verdict, then network by network."""
    found = known(bench)
    if found:
        yield verdict_table(found)
    for name, cells in found.items():
        for noise in NOISES:
            yield accuracy_table(name, noise, cells)
