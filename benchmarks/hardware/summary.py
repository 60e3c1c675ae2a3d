"""What the page on hardware says in numbers: a part of it, between two marks, that this command writes anew."""

from collections.abc import Callable, Iterator, Mapping
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
from .rounding import MATCHED, READINGS, Cells

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
    counts = {v: [sum(rounding.count(cells, v, r) for cells in found.values()) for r in READINGS] for v in VARIANTS}
    told = ", ".join(f"{v} {a} ({b})" for v, (a, b) in sorted(counts.items(), key=lambda pair: pair[1], reverse=True))
    yield (
        f"Best, or within a standard error of it, in so many of the {10 * len(found)} cells from 8 to 3 bits, by the "
        f"error of the best share (and by that of the difference on the same images): {told}. Wanted were "
        f"{rounding.ENOUGH} of 10 of each network: {_of_each(found)}."
    )
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


def _of_each(found: Mapping[str, Cells]) -> str:
    """Network by network, what the matched objective has."""
    counts = {v: [[rounding.count(cells, v, r) for r in READINGS] for cells in found.values()] for v in MATCHED}
    told = []
    for v, pairs in counts.items():
        each = ", ".join(f"{name} {a} ({b})" for name, (a, b) in zip(found, pairs, strict=True))
        told.append(f"{v} has {each}")
    return "; ".join(told)


def _spread(cells: Cells, noise: Noise) -> float:
    shares = [cells[noise, v, 8].share for v in VARIANTS]
    return 100 * (max(shares) - min(shares))


def _bits(bench: Bench) -> str:
    """Ranks, and what bits from two on cost."""
    ranks = {by: _ranks(bench, of) for by, of in assignments.OF_LIBRARY.items()}
    (four,) = (c for c in assignments.allocation(bench, "max", assignments.STATES[0]) if c["budget"] == 4)
    shares = {by: 100 * four[assignments.key("tensor", by, "2, 3, 4, 8")] for by in ("curvature", "both")}
    three = {by: 100 * four[assignments.key("tensor", by, "3 to 8")] for by in ("curvature", "both")}
    return (
        f"The predicted increase ranks {assignments.TRIALS} random assignments of bits (from 3, and from 4 on) like "
        f"the measured one with a Spearman correlation of {ranks['curvature']} by curvature alone, and {ranks['both']} "
        f'with costs="both", labelled data given; {assignments.WANTED} was wanted. At a mean of 4 bits ResNet-20 has '
        f"{100 * four['uniform']:.1f} % with the same bits for all, and from 2, 3, 4 and 8 bits "
        f"{shares['curvature']:.1f} % by curvature alone, {shares['both']:.1f} % by both; from 3 to 8 bits "
        f"{three['curvature']:.1f} and {three['both']:.1f} %. {_channels(bench)}"
    )


def _ranks(bench: Bench, of: Callable[[Bench, int], dict[str, Any]]) -> str:
    """Of both sets."""
    found = of(bench, bench.options.calibration)
    return " and ".join(f"{assignments.rank(bench, found, fewest):.3f}" for fewest in assignments.FEWEST)


def _channels(bench: Bench) -> str:
    """Bits of channels beside bits of tensors."""
    cases = {
        f"{rounding.SCALE[noise]}, {state}, {each['budget']} bits, {choices}": _gain(each, choices)
        for noise, state in product(rounding.NOISES, assignments.STATES)
        for each in assignments.allocation(bench, noise, state)
        for choices in ("2 to 8", "3 to 8")
        if assignments.key("channel", "curvature", choices) in each
    }
    low, high = (of(cases, key=cases.__getitem__) for of in (min, max))
    return (
        "By curvature alone, bits for each channel leave more than bits for each tensor, the same on average, in "
        f"{_above(cases)} of {len(cases)} cases: {cases[high]:+.1f} points at best ({high}), {cases[low]:+.1f} at "
        f"worst ({low}), {median(cases.values()):+.1f} in the middle."
    )


def _gain(shares: Mapping[str, Any], choices: str) -> float:
    """In points, of channels over tensors."""
    channels, tensors = (float(shares[assignments.key(per, "curvature", choices)]) for per in ("channel", "tensor"))
    return 100 * (channels - tensors)


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
