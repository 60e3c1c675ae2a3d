"""All settings at once, for the head of the page: every measure in every setting, as a figure and as a table."""

from collections.abc import Sequence
from typing import Any

from ..drawing import panels
from ..experiment import Results
from ..statistics import Correlation, Interval, named
from ..tables import Table
from .section import setting

CAPTION = (
    "Kendall's tau of every measure with the generalisation gap, and partial tau given the training loss, one column "
    "for each setting"
)
_PANELS = {"kendall": "Kendall's τ with the gap", "partial": "partial τ given the training loss"}


def settings(results: Sequence[Results]) -> dict[str, tuple[Results, str]]:
    """Every network of every run, by preset, protocol and network."""
    return {f"{setting(r)}, {model}": (r, model) for r in results for model in r.models}


def measures(results: Sequence[Results]) -> list[str]:
    """The measures of all runs, that with the largest mean tau first."""
    means: dict[str, list[float]] = {}
    for r in results:
        for c in r.analysis.correlations:
            means.setdefault(c.measure, []).append(0.0 if _undefined(c.kendall) else c.kendall.value)
    return sorted(means, key=lambda name: -sum(means[name]) / len(means[name]))


def table(results: Sequence[Results]) -> Table:
    """Tau and partial tau; an asterisk where the interval lies above zero."""
    columns = settings(results)
    rows = tuple(
        (name, *(_cell(named(r.analysis.correlations, model, name)) for r, model in columns.values()))
        for name in measures(results)
    )
    title = "Kendall's tau with the gap / partial tau given the training loss; † where the 95 % interval is above zero"
    return Table(title, ("measure", *columns), rows)


def figure(results: Sequence[Results]) -> Any:
    """The same in colours."""
    columns, rows = settings(results), measures(results)
    drawn, axes = panels(1, 2, 2.6 + 1.15 * len(columns), 2.1 + 0.34 * len(rows), share_y=True)
    image = None
    for axis, (statistic, title) in zip(axes.flat, _PANELS.items(), strict=True):
        found = [
            [_interval(named(r.analysis.correlations, model, name), statistic) for r, model in columns.values()]
            for name in rows
        ]
        image = axis.imshow([[i.value for i in line] for line in found], cmap="BrBG", vmin=-1, vmax=1, aspect="auto")
        for y, line in enumerate(found):
            for x, interval in enumerate(line):
                _write(axis, x, y, interval)
        axis.set_title(title)
        axis.set_xticks(range(len(columns)), list(columns), rotation=40, ha="right", fontsize=7.5)
        axis.set_yticks(range(len(rows)), rows)
        axis.grid(visible=False)
    drawn.colorbar(image, ax=axes, fraction=0.02, pad=0.01)
    return drawn


def _write(axis: Any, x: int, y: int, interval: Interval) -> None:
    """The number in its cell; bold where the interval lies above zero."""
    if not _undefined(interval):
        weight = "bold" if interval.low > 0 else "normal"
        colour = "white" if abs(interval.value) > 0.6 else "black"
        axis.text(x, y, f"{interval.value:.2f}", ha="center", va="center", color=colour, fontsize=7.5, weight=weight)


def _cell(correlation: Correlation | None) -> str:
    return " / ".join(_marked(_interval(correlation, statistic)) for statistic in _PANELS)


def _marked(interval: Interval) -> str:
    return "-" if _undefined(interval) else f"{interval.value:.2f}{'†' if interval.low > 0 else ''}"


def _interval(correlation: Correlation | None, statistic: str) -> Interval:
    nothing = float("nan")
    return Interval(nothing, nothing, nothing) if correlation is None else getattr(correlation, statistic)


def _undefined(interval: Interval) -> bool:
    return interval.value != interval.value
