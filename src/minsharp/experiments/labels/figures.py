"""Every measure against the gap, and the measures ranked with their intervals."""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any

from ...colours import BLUE, GREY, VERMILION
from .. import published
from ..drawing import one_legend, panels
from ..experiment import Results
from ..plan import ResultRow
from ..plots import Point, Scatter
from ..statistics import Correlation, named, ranked


def figures(results: Results) -> Iterator[tuple[str, Any]]:
    """A scatter plot for each network, and the ranking."""
    for model in results.models:
        yield f"scatter-{model}", _scatter(results, model)
    yield "ranking", _ranking(results)


def _protocol(results: Results) -> str:
    return "trained to one loss" if results.rows[0]["protocol"] == "loss" else "trained for fixed epochs"


def _scatter(results: Results, model: str) -> Any:
    """Each measure against the gap, coloured by the ratio of permuted labels."""
    own = [row for row in results.analysis.compared if row["model"] == model]
    names = results.analysis.measures
    across = min(4, len(names))
    down = ceil(len(names) / across)
    figure, axes = panels(down, across, 2.7 * across + 0.6, 2.45 * down + 0.5, share_y=True)
    points = None
    for i, (axis, name) in enumerate(zip(axes.flat, names, strict=False)):
        points = _scatter_panel(axis, own, name)
        correlation = named(results.analysis.correlations, model, name)
        axis.set_title(f"{name}\nτ = {_tau(correlation)}", fontsize=8.5)
        axis.tick_params(labelsize=7.5)
        if i % across == 0:
            axis.set_ylabel("generalisation gap\n(accuracy, train minus test)", fontsize=8)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    if points is not None:
        figure.colorbar(points, ax=axes, label="fraction of training labels permuted", fraction=0.025, pad=0.01)
    figure.suptitle(f"{model} on {results.rows[0]['preset']}, {_protocol(results)}: {len(own)} networks")
    return figure


def _scatter_panel(axis: Any, own: Sequence[ResultRow], name: str) -> Any:
    from matplotlib.ticker import NullFormatter

    x, gap, ratio = ([row[column] for row in own] for column in (name, "gap", "ratio"))
    points = axis.scatter(x, gap, c=ratio, cmap="viridis", vmin=0, vmax=1, s=16)
    positive = [v for v in x if v == v and v > 0]
    if len(positive) == len(x) and positive and max(positive) > 30 * min(positive):
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter(NullFormatter())
    else:
        axis.ticklabel_format(axis="x", style="sci", scilimits=(-2, 4))
        axis.locator_params(axis="x", nbins=5)
    return points


def _tau(correlation: Correlation | None) -> str:
    tau = float("nan") if correlation is None else correlation.kendall.value
    return "-" if tau != tau else f"{tau:.2f}"


def _ranking(results: Results) -> Any:
    """The measures ranked by tau and by partial tau, with bootstrap intervals."""
    names, analysis = results.models, results.analysis
    height = 0.28 * len(analysis.measures) + 0.9
    figure, axes = panels(len(names), 2, 10, height * len(names) + 0.6)
    titles = {"kendall": "Kendall's τ with the gap", "partial": "partial τ given the training loss"}
    for line, model in zip(axes, names, strict=True):
        for axis, (statistic, title), colour in zip(line, titles.items(), (BLUE, VERMILION), strict=True):
            _ranking_panel(axis, ranked(analysis.correlations, model, statistic), statistic, colour)
            axis.set_title(f"{model}: {title}")
            axis.set_xlim(-1.05, 1.05)
            axis.axvline(0, color=GREY, linewidth=0.8)
    one_legend(figure, axes)
    what = f"{results.rows[0]['preset']}, {_protocol(results)}, {len(analysis.compared)} networks"
    figure.suptitle(f"{what}; lines: 95 % bootstrap intervals")
    return figure


def _ranking_panel(axis: Any, own: Sequence[Correlation], statistic: str, colour: str) -> None:
    diamond = {"markerfacecolor": "white", "markeredgecolor": "black", "markersize": 5}
    for place, c in enumerate(own):
        interval = getattr(c, statistic)
        if interval.low == interval.low:
            axis.plot([interval.low, interval.high], [place, place], color=colour, linewidth=1.6)
        axis.plot(interval.value, place, "o", color=colour, markersize=5, label="measured" if place == 0 else None)
        known = published.correlation(c.model, c.measure, statistic)
        if known is not None:
            axis.plot(known, place, "D", zorder=3, **diamond)
    axis.plot([], [], "D", label="published", **diamond)
    axis.set_yticks(range(len(own)), [c.measure for c in own])
    axis.set_ylim(max(len(own), 1) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)


def plots(results: Results) -> Iterator[Scatter]:
    """Every measure of every network against the gap, for the HTML report."""
    several = len(results.models) > 1
    for correlation in results.analysis.correlations:
        model, name = correlation.model, correlation.measure
        own = [row for row in results.analysis.compared if row["model"] == model]
        yield Scatter(
            title=f"{name[0].upper()}{name[1:]} against the generalisation gap{f', {model}' if several else ''}",
            x_label=name,
            y_label="generalisation gap",
            points=tuple(Point(_number(r[name]), r["gap"], f"{r['ratio']:.0%} permuted", r["ratio"]) for r in own),
            note=f"{model}: {len(own)} networks with partly permuted labels. Kendall's tau is {_tau(correlation)}.",
            shade_label="fraction of labels permuted",
            log_x=all(_number(r[name]) > 0 for r in own),
        )


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
