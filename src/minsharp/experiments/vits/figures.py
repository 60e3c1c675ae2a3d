"""Every measure's drift beside its tau, and some measures against the gap."""

from collections.abc import Iterator, Sequence
from typing import Any

from ...colours import BLUE, GREY, VERMILION
from ..drawing import panels
from ..experiment import Results
from ..plan import ResultRow
from ..plots import Point, Scatter
from .analysis import STANDS, Standing, finite

SHOWN = (
    "trace",
    "minimum sharpness",
    "minimum sharpness (full)",
    "geodesic sharpness",
    "ASAM (normalized logits)",
    "relative minimum sharpness (full)",
    "Fisher-Rao norm",
    "margin sensitivity (element)",
)
_FLOOR, _CEILING = 1e-17, 1e12


def figures(results: Results) -> Iterator[tuple[str, Any]]:
    """The measures, and the networks."""
    yield "measures", _measures(results.analysis.standings, len(results.analysis.compared))
    yield "scatter", _scatter(results)


def _measures(standings: Sequence[Standing], networks: int) -> Any:
    """Drift on the left, tau with its interval on the right, a line for each measure."""
    figure, axes = panels(1, 2, 9.5, 0.24 * len(standings) + 1.3, share_y=True)
    left, right = axes[0]
    for place, s in enumerate(standings):
        colour = BLUE if s.stands else VERMILION
        if s.drift == s.drift:
            left.plot(min(max(s.drift, _FLOOR), _CEILING), place, "o", color=colour, markersize=5)
        tau = s.gap.kendall
        if tau.low == tau.low:
            right.plot([tau.low, tau.high], [place, place], color=colour, linewidth=1.6)
        right.plot(tau.value, place, "o", color=colour, markersize=5)
    left.axvline(STANDS, color=GREY, linewidth=0.8, linestyle="--")
    left.set(xscale="log", xlim=(_FLOOR / 3, 3 * _CEILING), title="largest relative change under the whole group")
    left.set_yticks(range(len(standings)), [s.measure for s in standings], fontsize=8)
    right.axvline(0, color=GREY, linewidth=0.8)
    right.set(xlim=(-1.05, 1.05), title="Kendall's τ with the generalisation gap")
    left.set_ylim(len(standings) - 0.5, -0.5)
    for axis in (left, right):
        axis.title.set_fontsize(9.5)
    figure.suptitle(f"{networks} vision transformers at one training loss; blue: no element of the group moves it")
    return figure


def _scatter(results: Results) -> Any:
    """A panel for each of some measures: value against gap, coloured by the number of weights."""
    own, found = results.analysis.compared, {s.measure: s for s in results.analysis.standings}
    names = [name for name in SHOWN if name in found] or list(found)[:8]
    down = (len(names) + 3) // 4
    figure, axes = panels(down, 4, 11.0, 2.5 * down + 0.5, share_y=True)
    points = None
    for axis, name in zip(axes.flat, names, strict=False):
        rows = [row for row in own if finite(row, name)]
        x, gap, size = ([float(row[column]) for row in rows] for column in (name, "gap", "weights"))
        points = axis.scatter(x, gap, c=size, cmap="viridis", s=18)
        axis.set_title(f"{name}\nτ = {found[name].gap.kendall.value:.2f}", fontsize=8.5)
        axis.tick_params(labelsize=7.5)
        if x and min(x) > 0 and max(x) > 5 * min(x):
            axis.set_xscale("log")
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for line in axes:
        line[0].set_ylabel("generalisation gap\n(accuracy, train minus test)", fontsize=8)
    if points is not None:
        figure.colorbar(points, ax=axes, label="weights", fraction=0.025, pad=0.01)
    return figure


def plots(results: Results) -> Iterator[Scatter]:
    """Every measure against the gap, for the HTML report."""
    own: Sequence[ResultRow] = results.analysis.compared
    most = max((row["weights"] for row in own), default=1)
    for s in results.analysis.standings:
        rows = [row for row in own if finite(row, s.measure)]
        points = tuple(
            Point(float(r[s.measure]), r["gap"], f"network {r['network']}", r["weights"] / most) for r in rows
        )
        yield Scatter(
            f"{s.measure[0].upper()}{s.measure[1:]} against the generalisation gap",
            s.measure,
            "generalisation gap",
            points,
            f"{len(rows)} vision transformers at one training loss. Kendall's tau is {s.gap.kendall.value:.2f}.",
            "number of weights, of the most",
            all(point.x > 0 for point in points),
        )
