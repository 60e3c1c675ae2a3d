"""Are the error bars of estimates as long as they say? Hundreds of estimates of traces that are known exactly.

    python -m benchmarks.calibration

prints a table, writes it into docs/estimates.md and draws docs/figures/calibration.svg. Each network is measured
exactly once, then again and again with a tolerance, under one seed after the other. Results are kept in
benchmarks/calibration-results, one small file for each network, written every few estimates: the same command goes on
where it stopped, and a complete set is only shown. --only takes one network, --estimates another number of them, --out
another folder; what is not complete is written nowhere else.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any, Literal

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

import minsharp as ms
from minsharp.colours import BLUE, GREY, VERMILION
from minsharp.data import load
from minsharp.files import write_text
from minsharp.text import percent

from .decoder import Decoder
from .report import ESTIMATES as PAGE
from .report import Table, within
from .smooth import dense

HERE = Path(__file__).parent
RESULTS, FIGURE = HERE / "calibration-results", HERE.parent / "docs" / "figures" / "calibration.svg"
ESTIMATES, TOLERANCE, AT_ONCE = 300, 0.02, 20
LEVELS = (1, 2)
"""Standard errors."""

Data = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Entry:
    """A network, for how many epochs it is trained, on how much of what, and which curvature of it is measured."""

    build: Callable[[], nn.Module]
    data: Callable[[int], Data]
    epochs: int
    samples: int
    curvature: Literal["hessian", "ggn"] = "hessian"
    class_axis: int = 1


def mlp() -> nn.Module:
    """Digits, three layers."""
    return nn.Sequential(*(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))


def bent() -> nn.Module:
    """Digits, three layers, nothing about them piecewise linear."""
    return nn.Sequential(*(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 10)))


def cnn() -> nn.Module:
    """Digits, two convolutions."""
    layers = (nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))


def gpt() -> nn.Module:
    """Words, two blocks."""
    return Decoder(32, 16, 2, 8)


def digits(n: int) -> Data:
    """Images 8 x 8 of ten digits."""
    held = load("digits")
    return held.train_x[:n], held.train_y[:n]


def scaled(n: int) -> Data:
    """The same, each image as bright as chance has it: one in a hundred ten times as bright as is usual."""
    x, y = digits(n)
    return x * torch.randn(n, generator=torch.Generator().manual_seed(0)).exp().view(-1, 1, 1, 1), y


def walks(n: int) -> Data:
    """(n, 8) words, and the words that follow: each of 32 is followed by one of three."""
    generator = torch.Generator().manual_seed(0)
    follow = torch.randint(32, (32, 3), generator=generator)
    text = torch.randint(32, (n, 1), generator=generator)
    for _ in range(8):
        chosen = torch.randint(3, (n, 1), generator=generator)
        text = torch.cat([text, follow[text[:, -1]].gather(1, chosen)], 1)
    return text[:, :-1], text[:, 1:]


ENTRIES: Mapping[str, Entry] = {
    "MLP": Entry(mlp, digits, 0, 1000),
    "MLP, trained": Entry(mlp, digits, 15, 1000),
    "MLP, images of any brightness": Entry(mlp, scaled, 0, 1000),
    "CNN": Entry(cnn, digits, 0, 500),
    "CNN, trained": Entry(cnn, digits, 15, 500),
    "GPT": Entry(gpt, walks, 0, 48, "ggn", -1),
    "GPT, trained": Entry(gpt, walks, 40, 48, "ggn", -1),
    "tanh, trained, true Hessian": Entry(bent, digits, 15, 200),
}


def trained(entry: Entry) -> tuple[nn.Module, Data]:
    """The network in double precision, and its data; the same every time."""
    x, y = entry.data(entry.samples)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = entry.build()
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(entry.epochs):
            for part in torch.randperm(len(x)).split(32):
                optimizer.zero_grad()
                F.cross_entropy(model(x[part]).flatten(0, -2), y[part].flatten()).backward()
                optimizer.step()
    return model.double().eval(), (x.double() if x.is_floating_point() else x, y)


def exact(model: nn.Module, data: Data, entry: Entry) -> float:
    """The trace without an estimate; that of a Hessian which is not exact otherwise, entry by entry by autograd."""
    network = ms.read(model, data[0], class_axis=entry.class_axis)
    if entry.curvature == "ggn" or all(network.exactness.values()):
        return ms.hessian_trace(network, data, curvature=entry.curvature).total
    return dense(network, data)


def place(name: str, folder: Path = RESULTS) -> Path:
    """The file of a network's results."""
    return folder / f"{name.lower().replace(', ', '-').replace(' ', '-')}.json"


def measured(name: str, estimates: int, folder: Path) -> dict[str, Any]:
    """What is known of a network, with so many estimates, [total, standard error] each."""
    path = place(name, folder)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"estimates": []}
    if len(found["estimates"]) >= estimates:
        return {**found, "estimates": found["estimates"][:estimates]}
    entry = ENTRIES[name]
    model, data = trained(entry)
    network = ms.read(model, data[0], class_axis=entry.class_axis)
    if "exact" not in found:
        found["exact"] = exact(model, data, entry)
    while len(found["estimates"]) < estimates:
        start = len(found["estimates"])
        for seed in range(start, min(start + AT_ONCE, estimates)):
            made = ms.hessian_trace(network, data, curvature=entry.curvature, tolerance=TOLERANCE, seed=seed)
            found["estimates"].append([float(f"{value:.9g}") for value in (made.total, made.standard_error)])
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(found) + "\n")
        print(f"{name}: {len(found['estimates'])} estimates", flush=True)
    return found


def normal(level: float) -> float:
    """The share of normal errors that are no larger than so many standard errors."""
    return 2 * NormalDist().cdf(level) - 1


def room(level: float, count: int) -> float:
    """Two standard deviations of that share among so many."""
    p = normal(level)
    return 2 * sqrt(p * (1 - p) / count)


@dataclass(frozen=True)
class Score:
    """Errors in standard errors."""

    errors: Sequence[float]
    bias: float
    """The mean error, in standard errors of that mean."""
    relative: float
    """The mean standard error, relative to the trace."""

    def inside(self, level: float) -> float:
        """The share of estimates that are no further off than so many standard errors."""
        return fmean(abs(z) <= level for z in self.errors)

    @property
    def sound(self) -> bool:
        """Whether everything is where chance alone would have it, nineteen times of twenty each."""
        return abs(self.bias) <= 2 and all(abs(self.inside(k) - normal(k)) <= room(k, len(self.errors)) for k in LEVELS)


def score(found: Mapping[str, Any]) -> Score:
    """What the estimates of a network say of their errors."""
    off = [total - found["exact"] for total, _ in found["estimates"]]
    errors = [error for _, error in found["estimates"]]
    bias = fmean(off) * sqrt(len(off)) / stdev(off)
    return Score([o / e for o, e in zip(off, errors, strict=True)], bias, fmean(errors) / abs(found["exact"]))


def table(scores: Mapping[str, Score]) -> Table:
    """A line for each network."""
    count = len(next(iter(scores.values())).errors)
    limits = [f"{percent(normal(k), 1)} ± {percent(room(k, count), 1)}" for k in LEVELS]
    note = (
        f"{count} estimates each, tolerance={TOLERANCE:g}. Normal errors would be within one standard error in "
        f"{limits[0]} of the cases, within two in {limits[1]} (two standard deviations of {count} draws). Bias: the "
        "mean error in standard errors of the mean, between -2 and 2 in nineteen cases of twenty."
    )
    lines = [
        [
            name,
            percent(found.relative, 2),
            percent(found.inside(1), 1),
            percent(found.inside(2), 1),
            f"{found.bias:+.2f}",
            f"{stdev(found.errors):.2f}",
            "yes" if found.sound else "NO",
        ]
        for name, found in scores.items()
    ]
    columns = [
        "network",
        "standard error",
        "within one",
        "within two",
        "bias",
        "spread of error / standard error",
        "as said",
    ]
    return Table("Calibration", note, columns, lines)


def draw(scores: Mapping[str, Score], path: Path) -> None:
    """For each number of standard errors, the share of estimates that is no further off, beside normal errors."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    levels = [k / 40 for k in range(121)]
    columns = 4
    rows = -(-len(scores) // columns)
    with rc_context({"svg.hashsalt": "calibration", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure((2.6 * columns, 2.5 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
        for panel, (name, found) in zip(panels, scores.items(), strict=False):
            count = len(found.errors)
            lower, upper = ([normal(k) + side * room(k, count) for k in levels] for side in (-1, 1))
            panel.fill_between(levels, lower, upper, color=GREY, alpha=0.25, linewidth=0)
            panel.plot(levels, [found.inside(k) for k in levels], color=BLUE)
            for k in LEVELS:
                panel.axvline(k, color=VERMILION, linewidth=0.6, linestyle=":")
            panel.set_title(name, fontsize=9)
            panel.spines[["top", "right"]].set_visible(False)
        for panel in panels[len(scores) :]:
            panel.set_visible(False)
        figure.supxlabel("standard errors", fontsize=9)
        figure.supylabel("share of estimates that are within", fontsize=9)
        figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    """Measure what is missing, print, write, draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration", description=__doc__)
    parser.add_argument("--only", action="append", choices=ENTRIES, metavar="NETWORK", help="; ".join(ENTRIES))
    parser.add_argument("--estimates", type=int, default=ESTIMATES)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the results")
    options = parser.parse_args()
    scores = {name: score(measured(name, options.estimates, options.out)) for name in options.only or ENTRIES}
    found = table(scores)
    console = Console(width=150)
    console.print(found.rich())
    console.print(found.note)
    if set(scores) == set(ENTRIES) and options.out == RESULTS and options.estimates == ESTIMATES:
        within(PAGE, "benchmarks.calibration", found.body())
        draw(scores, FIGURE)
        console.print(f"Drawn: {FIGURE.name}")


if __name__ == "__main__":
    main()
