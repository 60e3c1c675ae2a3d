"""Figures of the experiments, as PNG and SVG, in colours that colour-blind readers can tell apart."""

import io
import re
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import fmean, median
from typing import Any

import matplotlib

from ..experiments import published
from ..experiments.approximations import EXACT
from ..experiments.cells import Row
from ..experiments.statistics import Correlation
from ..files import write_bytes
from .experiments import compared, label_correlations, measures, models, ranked
from .rows import kind

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#666666"),
)  # Okabe and Ito
_STYLE: Any = {
    "figure.dpi": 120,
    "savefig.dpi": 120,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "minsharp",
    "text.parse_math": False,  # names are only names
    "text.usetex": False,
}


def draw(rows: Sequence[Row], out: Path) -> list[Path]:
    """All figures of a table of results, as files."""
    return [write_bytes(out / name, content) for name, content in drawn(rows).items()]


def drawn(rows: Sequence[Row]) -> dict[str, bytes]:
    """All figures of a table of results, by the names of their files."""
    from matplotlib import pyplot

    makers = {"labels": _labels, "trace": _trace, "approximations": _approximations}
    found = {}
    with matplotlib.rc_context(_STYLE), _headless():
        for name, figure in makers[kind(rows)](rows):
            for ending in ("png", "svg"):
                buffer = io.BytesIO()
                metadata = {"Date": None} if ending == "svg" else {"Software": None}
                figure.savefig(buffer, bbox_inches="tight", metadata=metadata, format=ending)
                found[f"{_file_name(name)}.{ending}"] = buffer.getvalue()
            pyplot.close(figure)
    return found


def _file_name(name: str) -> str:
    """A name of a file in the folder, whatever a network is called."""
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[:80]


class _headless:  # noqa: N801
    """No window, whatever the user's backend; his own again afterwards."""

    def __enter__(self) -> None:
        from matplotlib import pyplot

        self.before = matplotlib.get_backend()
        pyplot.switch_backend("agg")

    def __exit__(self, *_: object) -> None:
        from matplotlib import pyplot

        pyplot.switch_backend(self.before)


def _labels(rows: Sequence[Row]) -> list[tuple[str, Any]]:
    found = label_correlations(rows)
    scatters = [(f"scatter-{model}", _scatter(rows, found, model)) for model in models(rows)]
    return [*scatters, ("ranking", _forest(rows, found))]


def _protocol(rows: Sequence[Row]) -> str:
    return "trained to one loss" if rows[0]["protocol"] == "loss" else "trained for fixed epochs"


def _scatter(rows: Sequence[Row], found: Sequence[Correlation], model: str) -> Any:
    """Each measure against the gap, coloured by the ratio of permuted labels."""
    from matplotlib import pyplot
    from matplotlib.ticker import NullFormatter

    own = [row for row in compared(rows) if row["model"] == model]
    names = measures(rows)
    across = min(4, len(names))
    down = ceil(len(names) / across)
    figure, axes = pyplot.subplots(
        down, across, figsize=(2.7 * across + 0.6, 2.45 * down + 0.5), sharey=True, squeeze=False, layout="constrained"
    )
    points = None
    for i, (axis, name) in enumerate(zip(axes.flat, names, strict=False)):
        x = [row[name] for row in own]
        points = axis.scatter(
            x, [row["gap"] for row in own], c=[row["ratio"] for row in own], cmap="viridis", vmin=0, vmax=1, s=16
        )
        positive = [v for v in x if v == v and v > 0]
        if len(positive) == len(x) and positive and max(positive) > 30 * min(positive):
            axis.set_xscale("log")
            axis.xaxis.set_minor_formatter(NullFormatter())
        else:
            axis.ticklabel_format(axis="x", style="sci", scilimits=(-2, 4))
            axis.locator_params(axis="x", nbins=5)
        c = next(c for c in found if c.model == model and c.measure == name)
        tau = "-" if c.kendall.value != c.kendall.value else f"{c.kendall.value:.2f}"
        axis.set_title(f"{name}\nτ = {tau}", fontsize=8.5)
        axis.tick_params(labelsize=7.5)
        if i % across == 0:
            axis.set_ylabel("generalisation gap\n(accuracy, train minus test)", fontsize=8)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    if points is not None:
        figure.colorbar(points, ax=axes, label="fraction of training labels permuted", fraction=0.025, pad=0.01)
    figure.suptitle(f"{model} on {rows[0]['preset']}, {_protocol(rows)}: {len(own)} networks")
    return figure


def _forest(rows: Sequence[Row], found: Sequence[Correlation]) -> Any:
    """The measures ranked by tau and by partial tau, with bootstrap intervals."""
    from matplotlib import pyplot

    names = models(rows)
    height = 0.28 * len(measures(rows)) + 0.9
    figure, axes = pyplot.subplots(
        len(names), 2, figsize=(10, height * len(names) + 0.6), squeeze=False, layout="constrained"
    )
    titles = {"kendall": "Kendall's τ with the gap", "partial": "partial τ given the training loss"}
    for line, model in zip(axes, names, strict=True):
        for axis, (statistic, title), colour in zip(line, titles.items(), (BLUE, RED), strict=True):
            _forest_panel(axis, ranked(found, model, statistic), statistic, colour, model)
            axis.set_title(f"{model}: {title}")
            axis.set_xlim(-1.05, 1.05)
            axis.axvline(0, color=GREY, linewidth=0.8)
    _one_legend(figure, axes)
    networks = len(compared(rows))
    figure.suptitle(f"{rows[0]['preset']}, {_protocol(rows)}, {networks} networks; lines: 95 % bootstrap intervals")
    return figure


def _forest_panel(axis: Any, own: Sequence[Correlation], statistic: str, colour: str, model: str) -> None:
    for place, c in enumerate(own):
        interval = getattr(c, statistic)
        if interval.low == interval.low:
            axis.plot([interval.low, interval.high], [place, place], color=colour, linewidth=1.6)
        axis.plot(interval.value, place, "o", color=colour, markersize=5, label="measured" if place == 0 else None)
        known = published.correlation(model, c.measure, statistic)
        if known is not None:
            axis.plot(known, place, "D", markerfacecolor="white", markeredgecolor="black", markersize=5, zorder=3)
    axis.plot([], [], "D", markerfacecolor="white", markeredgecolor="black", markersize=5, label="published")
    axis.set_yticks(range(len(own)), [c.measure for c in own])
    axis.set_ylim(len(own) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)


def _one_legend(figure: Any, axes: Any, columns: int = 6) -> None:
    """One legend below, with every label once."""
    entries: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def _trace(rows: Sequence[Row]) -> list[tuple[str, Any]]:
    return [("traces", _trace_scatter(rows)), ("times", _trace_times(rows))]


def _trace_scatter(rows: Sequence[Row]) -> Any:
    """Both traces of every cell: all points have to lie on the diagonal."""
    from matplotlib import pyplot

    names = models(rows)
    figure, axes = pyplot.subplots(1, len(names), figsize=(4 * len(names), 4.2), squeeze=False, layout="constrained")
    looks = list(zip((BLUE, ORANGE, GREEN, PURPLE, SKY), "osD^v", strict=True))
    sizes = sorted({row["samples"] for row in rows})
    for axis, model in zip(axes[0], names, strict=True):
        own = [row for row in rows if row["model"] == model]
        ends = [f(row[c] for row in own for c in ("trace", "baseline trace")) for f in (min, max)]
        ends = [ends[0] * 0.97, ends[1] * 1.03]
        axis.plot(ends, ends, color=GREY, linewidth=0.8, label="equal")
        for i, n in enumerate(sizes):
            colour, marker = looks[i % len(looks)]
            at = [row for row in own if row["samples"] == n]
            axis.plot(
                [row["baseline trace"] for row in at],
                [row["trace"] for row in at],
                marker,
                color=colour,
                markersize=5,
                alpha=0.8,
                label=f"n = {n}",
            )
        worst = max(row["trace relative difference"] for row in own)
        axis.set_title(f"{model}: {len(own)} cells, worst relative difference {worst:.1e}")
        axis.set_xlabel("Tr[H] by double backpropagation")
        axis.set_aspect("equal", adjustable="datalim")
    axes[0][0].set_ylabel("Tr[H] by minsharp")
    _one_legend(figure, axes)
    figure.suptitle(f"Exactness of the trace on {rows[0]['data']}, float32")
    return figure


def _trace_times(rows: Sequence[Row]) -> Any:
    """Mean seconds against the number of samples, ours and the published ones."""
    from matplotlib import pyplot

    names = models(rows)
    figure, axes = pyplot.subplots(
        1, len(names), figsize=(4.2 * len(names), 4), sharey=True, squeeze=False, layout="constrained"
    )
    looks = {"baseline": (RED, "s"), "diagonal": (SKY, "^"), "trace": (BLUE, "o")}
    titles = {"baseline": "double backpropagation", "diagonal": "minsharp, DIAG[H]", "trace": "minsharp, Tr[H]"}
    for axis, model in zip(axes[0], names, strict=True):
        own = [row for row in rows if row["model"] == model]
        sizes = sorted({row["samples"] for row in own})
        for column, (colour, marker) in looks.items():
            typical = [median(row[f"{column} seconds"] for row in own if row["samples"] == n) for n in sizes]
            axis.plot(sizes, typical, marker=marker, color=colour, label=titles[column])
        for method, colour, marker in (("baseline", RED, "s"), ("proposal", BLUE, "o")):
            known = published.SECONDS[(model, method)]
            axis.plot(
                list(known),
                list(known.values()),
                linestyle="--",
                marker=marker,
                markerfacecolor="white",
                color=colour,
                linewidth=1,
                label=f"paper, {'double backpropagation' if method == 'baseline' else 'Tr[H]'} (GPU, MNIST, mean)",
            )
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("samples n")
        axis.set_title(model)
    axes[0][0].set_ylabel("time, seconds (median over seeds)")
    _one_legend(figure, axes, columns=3)
    figure.suptitle(f"Time on {rows[0]['data']}, one CPU thread" if rows[0].get("data") else "Time")
    return figure


def _approximations(rows: Sequence[Row]) -> list[tuple[str, Any]]:
    """Error against time for a growing number of probes; the exact method is one point."""
    from matplotlib import pyplot

    names, sizes = models(rows), sorted({row["samples"] for row in rows})
    methods = list(dict.fromkeys(row["method"] for row in rows if row["method"] != EXACT))
    figure, axes = pyplot.subplots(
        len(names),
        len(sizes),
        figsize=(3.4 * len(sizes) + 0.4, 2.9 * len(names) + 0.8),
        squeeze=False,
        layout="constrained",
    )
    looks = list(zip(methods, (ORANGE, GREEN), "s^", strict=False))
    for line, model in zip(axes, names, strict=True):
        for axis, n in zip(line, sizes, strict=True):
            own = [row for row in rows if row["model"] == model and row["samples"] == n]
            for method, colour, marker in looks:
                at = [row for row in own if row["method"] == method]
                axis.plot([r["seconds"] for r in at], [r["error"] for r in at], ".", color=colour, alpha=0.3, ms=4)
                probes = sorted({row["probes"] for row in at})
                means = [
                    [fmean(row[c] for row in at if row["probes"] == k) for k in probes] for c in ("seconds", "error")
                ]
                axis.plot(*means, marker=marker, color=colour, markersize=5, label=f"{method} (mean)")
            at = [row for row in own if row["method"] == EXACT]
            axis.plot(
                fmean(row["seconds"] for row in at),
                fmean(row["error"] for row in at),
                "*",
                color=BLUE,
                markersize=13,
                label="minsharp, exact",
            )
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_title(f"{model}, n = {n}")
            if model == names[-1]:
                axis.set_xlabel("time, seconds")
        line[0].set_ylabel("error ‖DIAG[H] - approximation‖₂")
    _one_legend(figure, axes)
    probes = sorted({row["probes"] for row in rows if row["method"] != EXACT})
    figure.suptitle(f"DIAG[H] on {rows[0]['data']}: error against time, {probes[0]} to {probes[-1]} probes")
    return [("approximations", figure)]
