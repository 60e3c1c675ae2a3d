"""Equivalent networks, their weights rounded to nearest: which images of the test set stay right."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Literal, get_args

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
PLACES = tuple(product(NOISES, BITS))
Reading = Literal["unpaired", "paired"]
READINGS: tuple[Reading, ...] = get_args(Reading)
MARKS: dict[str, Reading] = {"*": "unpaired", "†": "paired"}


@dataclass(frozen=True)
class Outcome:
    """Which of the images are right: zeros and ones, (n,)."""

    which: Any

    @property
    def samples(self) -> int:
        """How many images there are."""
        return len(self.which)

    @property
    def share(self) -> float:
        """Of those that are right."""
        return float(self.which.mean())

    @property
    def error(self) -> float:
        """The standard error of the share."""
        return error_of(self.share, self.samples)

    def minus(self, other: "Outcome") -> tuple[float, float]:
        """How many points more are right, and the standard error of that, image by image."""
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
            found |= {(noise, variant, b): Outcome(unpacked(texts[str(b)], samples)) for b in BITS}
    return found


def known(bench: Bench) -> dict[str, Cells]:
    """The networks of which all cells are there."""
    names: list[str] = bench.options.networks
    return {name: cells for name in names for cells in bench.whole(name, partial(measured, bench, name))}


def best(cells: Cells, noise: Noise, bits: int) -> Outcome:
    """The one with the largest accuracy of all variants."""
    return max((cells[noise, v, bits] for v in VARIANTS), key=lambda outcome: outcome.share)


def near(cells: Cells, variant: str, noise: Noise, bits: int, reading: Reading = "unpaired") -> bool:
    """Whether a variant is the best, or within one standard error of the best: of that share, or of the difference."""
    top, own = best(cells, noise, bits), cells[noise, variant, bits]
    if reading == "unpaired":
        return own.share >= top.share - top.error
    behind, error = top.minus(own)
    return behind <= error


def count(cells: Cells, variant: str, reading: Reading) -> int:
    """In how many of the ten cells of a network a variant is the best or near it."""
    return sum(near(cells, variant, noise, b, reading) for noise, b in PLACES)


def signed(pair: tuple[float, float]) -> str:
    return f"{pair[0]:+.2f} ± {pair[1]:.2f}"


def accuracy_table(name: str, noise: Noise, cells: Cells) -> Table:
    """Every variant, and the paired differences that matter."""
    samples = cells[noise, "original", BITS[0]].samples
    rows = [
        (v, *(shown(cells[noise, v, b].share, samples) + _marks(cells, v, noise, b) for b in BITS)) for v in VARIANTS
    ]
    for variant in MATCHED:
        pairs = [cells[noise, variant, b].minus(cells[noise, "original", b]) for b in BITS]
        rows.append((f"{variant}: gain", *map(signed, pairs)))
    return Table(
        f"{name}, {SCALE[noise]}",
        f"Accuracy in percent of {samples:,} test images, the weights rounded to nearest. A star: the best, or within "
        "one standard error of its share (unpaired). A dagger: the best, or behind it by no more than one standard "
        "error of the difference, image by image (paired). The gain is over the original, its error paired.",
        ("", *(f"{b} bits" for b in BITS)),
        rows,
    )


def _marks(cells: Cells, variant: str, noise: Noise, bits: int) -> str:
    return "".join(mark for mark, r in MARKS.items() if near(cells, variant, noise, bits, r))


def verdict_table(found: Mapping[str, Cells]) -> Table:
    """In how many cells each variant is near the best; where the matched ones are not."""
    rows = []
    for v in VARIANTS:
        counts = [" / ".join(str(count(cells, v, r)) for r in READINGS) for cells in found.values()]
        means = [
            f"{100 * np.mean([best(cells, k, b).share - cells[k, v, b].share for k, b in PLACES]):.2f}"
            for cells in found.values()
        ]
        rows.append((v, *(f"{c} ({m})" for c, m in zip(counts, means, strict=True))))
    rows.append(("matched, either", *(" / ".join(_either(cells, r) for r in READINGS) for cells in found.values())))
    note = (
        "Of the ten cells of each network (five numbers of bits, two kinds of scale): in how many a variant is the "
        "best or within one standard error of it, and in brackets how many points below the best it is on average. Two "
        "readings, the first before the slash: *unpaired*, the standard error of the best share, as of one set of test "
        "images drawn anew; *paired*, that of the difference on the very same images, which is smaller where two "
        "networks are right about the same ones, and so the harder one."
    )
    text = "\n\n".join([note, *verdicts(found)])
    return Table("Which equivalent network", text, ("unpaired / paired", *found), rows)


def _either(cells: Cells, reading: Reading) -> str:
    return str(sum(any(near(cells, v, k, b, reading) for v in MATCHED) for k, b in PLACES))


def verdicts(found: Mapping[str, Cells]) -> Iterator[str]:
    """What was wanted, and where the matched objective loses."""
    wanted = f"near the best in at least {ENOUGH} of 10 cells of each network"
    yield f"Wanted of the matched objective: {wanted}. {_missed(found)}"
    for name, cells in found.items():
        for variant in MATCHED:
            yield f"**{name}, {variant}.** {_losses(cells, variant)}"
    for noise, bits, points in WANTED if "resnet20" in found else ():
        cells = found["resnet20"]
        gains = [cells[noise, v, bits].minus(cells[noise, "original", bits]) for v in MATCHED]
        text = ", ".join(f"{signed(g)} ({v})" for g, v in zip(gains, MATCHED, strict=True))
        met = "met" if gains[0][0] >= points else "not met"
        yield f"Wanted of ResNet-20 with {bits} bits per tensor: +{points} points. Measured: {text}: {met}."


def _missed(found: Mapping[str, Cells]) -> str:
    """Where it is not, by either reading."""
    told = []
    for reading, variant in product(READINGS, MATCHED):
        few = {name: n for name, cells in found.items() if (n := count(cells, variant, reading)) < ENOUGH}
        each = ", ".join(f"{name} ({n})" for name, n in few.items())
        told.append(f"{variant}, {reading}: {f'**missed** by {each}' if few else 'met'}")
    return "; ".join(told) + "."


def _losses(cells: Cells, variant: str) -> str:
    """Where a variant is more than a standard error below the best of all, and by how much."""
    lost: dict[str, list[str]] = {"in both readings": [], "unpaired only": [], "paired only": []}
    for noise, b in PLACES:
        unpaired, paired = (near(cells, variant, noise, b, r) for r in READINGS)
        if unpaired and paired:
            continue
        top = max(VARIANTS, key=lambda v: cells[noise, v, b].share)
        gap = cells[noise, variant, b].minus(cells[noise, top, b])
        reading = "paired only" if unpaired else "unpaired only" if paired else "in both readings"
        lost[reading].append(f"{signed(gap)} against {top} at {b} bits, {SCALE[noise].removeprefix('one scale ')}")
    counts = ", ".join(f"{count(cells, variant, r)} {r}" for r in READINGS)
    told = " ".join(f"It loses {reading}: {'; '.join(each)}." for reading, each in lost.items() if each)
    return f"Near the best in so many of 10 cells: {counts}. {told or 'It loses nowhere.'}"


def tables(bench: Bench) -> Iterator[Table]:
    """The verdict, then network by network."""
    found = known(bench)
    if found:
        yield verdict_table(found)
    for name, cells in found.items():
        for noise in NOISES:
            yield accuracy_table(name, noise, cells)
