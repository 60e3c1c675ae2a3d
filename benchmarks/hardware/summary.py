"""What the page on hardware says in numbers: a part of it, between two marks, that this command writes anew."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from minsharp.files import write_text
from minsharp.measures.noise import Noise
from minsharp.text import markdown_table

from . import assignments, predictions, pruning, rounding
from .bench import VARIANTS, Bench
from .rounding import Cells

BEGIN, END = "<!-- made by python -m benchmarks.hardware -->", "<!-- end -->"
LOW = (4, 3)
TRUSTED = 0.02


def lines(bench: Bench) -> Iterator[str]:
    """A table of the low numbers of bits, and a sentence on each of the other measurements."""
    found = rounding.known(bench)
    rows = [
        (name, rounding.SCALE[noise], str(b), *(f"{100 * cells[noise, v, b].share:.1f}" for v in VARIANTS))
        for (name, cells), noise, b in product(found.items(), rounding.NOISES, LOW)
    ]
    if rows:
        yield markdown_table(("network", "scales", "bits", *VARIANTS), rows, text=2)
    told = [*(_variants(found) if found else ()), *_others(bench)]
    yield "\n".join(f"- {sentence}" for sentence in told)


def _variants(found: Mapping[str, Cells]) -> Iterator[str]:
    """Which equivalent network is best, and where it does not matter."""
    counts = {v: sum(near(cells, v) for cells in found.values()) for v in VARIANTS}
    told = ", ".join(f"{v} {count}" for v, count in sorted(counts.items(), key=lambda pair: -pair[1]))
    yield f"Best, or within a standard error of it, in so many of the {10 * len(found)} cells from 8 to 3 bits: {told}."
    most = max(_spread(cells, noise) for cells, noise in product(found.values(), rounding.NOISES))
    yield f"With 8 bits the best and the worst of the six are at most {most:.2f} points apart: there is nothing to win."


def _others(bench: Bench) -> Iterator[str]:
    """A sentence on each of the other parts that are whole."""
    for part, sentence in (("predicted", _predicted), ("bits", _bits), ("pruning", _pruning)):
        yield from bench.whole(part, partial(sentence, bench))


def _predicted(bench: Bench) -> str:
    """How far off."""
    points = list(predictions.points(bench))
    few = [p for p in points if p.drop <= TRUSTED]
    above = [p for p in points if p.predicted > 0.5]
    return (
        f"Predicted accuracy is off by at most {100 * max(p.off for p in few):.1f} points where it says that at most "
        f"{100 * TRUSTED:.0f} points are lost, and by up to {100 * max(p.off for p in above):.0f} where it says that "
        "more than half of the predictions are right: it is too high where much is lost."
    )


def near(cells: Cells, variant: str) -> int:
    """In how many of the ten cells of a network a variant is the best or near it."""
    return sum(rounding.near(cells, variant, noise, b) for noise, b in product(rounding.NOISES, rounding.BITS))


def _spread(cells: Cells, noise: Noise) -> float:
    shares = [cells[noise, v, 8].share for v in VARIANTS]
    return 100 * (max(shares) - min(shares))


def _bits(bench: Bench) -> str:
    """Ranks, and what bits from two on cost."""
    costs = assignments.costs(bench, "allocate_bits, Hessian", bench.options.calibration)
    sets = [f for f in assignments.FEWEST for _ in bench.whole("bits", partial(assignments.increases, bench, f))]
    ranks = [f"{assignments.rank(bench, costs, f):.3f} from {f} bits" for f in sets]
    (four,) = (c for c in assignments.allocation(bench, "max", assignments.STATES[0]) if c["budget"] == 4)
    uniform, two, three = (100 * four[key] for key in ("uniform", "tensor 2", "tensor 3"))
    return (
        f"The predicted increase ranks {assignments.TRIALS} random assignments of bits like the measured one (Spearman "
        f"{', '.join(ranks)} on). At a mean of 4 bits ResNet-20 has {uniform:.1f} % with the same bits for all, "
        f"{three:.1f} % allocated from 3 bits on, and {two:.1f} % if 2 bits may be chosen. "
        f"{_alone(bench)}{_channels(bench)}"
    )


def _alone(bench: Bench) -> str:
    """What ranks better, and allocates no better."""
    found = assignments.rounded_one_by_one(bench, bench.options.calibration)
    ranks = [f"{assignments.rank(bench, found, fewest):.3f}" for fewest in assignments.FEWEST]
    each = {c["budget"]: c for c in bench.cell(assignments.alone_key(bench), lambda: assignments.rounded_alone(bench))}
    shares = [f"{100 * each[budget]['2']:.1f}" for budget in assignments.BUDGETS]
    return (
        "Rounding each tensor alone and adding up what that does to the outputs ranks them better "
        f"({', '.join(ranks)}), but allocating by its losses is not better throughout: {', '.join(shares)} % at "
        f"{', '.join(map(str, assignments.BUDGETS))} bits in the mean, from 2 on. "
    )


def _channels(bench: Bench) -> str:
    """Bits of channels beside bits of tensors."""
    cases = {
        f"{rounding.SCALE[noise]}, {state}, {each['budget']} bits, from {least}": _gain(each, least)
        for noise, state in product(rounding.NOISES, assignments.STATES)
        for each in assignments.allocation(bench, noise, state)
        for least in assignments.LEAST
        if f"channel {least}" in each
    }
    low, high = (of(cases, key=cases.__getitem__) for of in (min, max))
    return (
        f"Bits for each channel leave more than bits for each tensor, the same on average, in {_above(cases)} of "
        f"{len(cases)} cases: {cases[high]:+.1f} points at best ({high}), {cases[low]:+.1f} at worst ({low}), "
        f"{median(cases.values()):+.1f} in the middle."
    )


def _gain(shares: Mapping[str, Any], least: int) -> float:
    """In points, of channels over tensors."""
    return 100 * (float(shares[f"channel {least}"]) - float(shares[f"tensor {least}"]))


def _above(gains: Mapping[str, float]) -> int:
    return sum(gain > 0 for gain in gains.values())


def _pruning(bench: Bench) -> str:
    """The best of each method at a half."""
    half = {
        (state, method): 100 * max(share for _, amount, share in pruning.cell(bench, state, method) if amount == 0.5)
        for state, method in product(pruning.STATES, pruning.METHODS)
    }
    before, after = (half[state, "magnitude"] for state in pruning.STATES)
    saliency = [f"{half[pruning.STATES[0], m]:.1f} % by {m}" for m in pruning.METHODS if m != "magnitude"]
    return (
        f"Pruning half of ResNet-20 by magnitude leaves {before:.1f} % of the test images right, and {after:.1f} % "
        f"after a random rescaling that changes nothing else; {' and '.join(saliency)} before and after."
    )


def write(bench: Bench, page: Path) -> None:
    """Put it between the marks."""
    text = page.read_text()
    head, rest = text.split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    write_text(page, "\n\n".join([head + BEGIN, *lines(bench), END + tail]))
