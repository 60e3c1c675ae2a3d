"""The study on the page of results."""

from collections.abc import Iterator

from ...text import count, markdown_cell
from ..commands import unless_default
from ..experiment import Results
from .analysis import STANDS
from .networks import LIMIT, NETWORKS, RESCALINGS, TARGET, TRAIN

INTRODUCTION = """\
Small vision transformers on digits, patches as tokens, their hyperparameters drawn at random, all stopped at one
training loss. The gap is the accuracy on the training set minus that on the test set. Drift is the largest relative
change of a measure under random elements of the whole group (factors up to 100 per layer, matrices with condition
numbers up to 100 in every head), the median over the networks: what is not rounding says how far the measure can be
moved without changing the function. Tau is Kendall's tau-b, with 95 % bootstrap intervals over the networks; partial
taus are given the training loss, which is all but the same for all, and given the number of weights. Curvature is the
Gauss-Newton matrix's."""


def words(results: Results) -> Iterator[str]:
    """How many networks, how they ended, and what stands."""
    rows, analysis = results.rows, results.analysis
    settings = results.settings or {}
    gaps = sorted(float(row["gap"]) for row in analysis.compared)
    sizes = sorted(int(row["weights"]) for row in analysis.compared)
    if gaps:
        yield (
            f"{len(rows)} networks of {count(sizes[0])} to {count(sizes[-1])} weights on {count(settings['train'])} "
            f"images; {len(gaps)} reached the training loss {settings['target']:g} and are compared. Gaps from "
            f"{gaps[0]:.3f} to {gaps[-1]:.3f}."
        )
    standing = [s for s in analysis.standings if s.stands]
    kept = ", ".join(markdown_cell(s.measure) for s in standing) or "none"
    yield f"No element of the whole group moves (drift below {STANDS:g}): {kept}."
    told = [s.measure for s in standing if s.gap.kendall.low > 0]
    wrong = [s.measure for s in standing if s.gap.kendall.high < 0]
    above, below = (", ".join(map(markdown_cell, names)) or "none" for names in (told, wrong))
    yield f"Of those, the interval of tau with the gap lies above zero for: {above}; below zero for: {below}."


def command(results: Results) -> str:
    """The command that makes these results."""
    settings = results.settings or {}
    parts = ["minsharp reproduce vits"]
    for name, default in (
        ("networks", NETWORKS), ("train", TRAIN), ("target", TARGET), ("limit", LIMIT), ("rescalings", RESCALINGS),
    ):  # fmt: skip
        value = len(results.rows) if name == "networks" else settings[name]
        parts += unless_default([value], [default], f"--{name}")
    parts += unless_default([settings["seed"]], [0], "--seed")
    return " ".join(parts)
