"""One picture of what minsharp is for: a fooled trace, an estimate with its error, a network that bears rounding."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..colours import BLUE, GREY, VERMILION
from ..files import write_atomically
from ..measures.minimum import MinimumSharpness


class Estimates(NamedTuple):
    """Values with standard errors, by the name of the method; and the exact value."""

    values: Mapping[str, tuple[float, float]]
    exact: float


def draw_overview(
    same: Sequence[MinimumSharpness], estimates: Estimates, rounded: Mapping[str, Mapping[int, float]], path: Path
) -> Path:
    """``same``: one network in several rescaled forms; ``rounded``: accuracy by bits."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.7), layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.15, 0.85, 1))
    _draw_fooled(left, same)
    _draw_estimates(middle, estimates)
    _draw_rounded(right, rounded)
    for axis in (left, middle, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    return write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=150, format="png"))


def _draw_fooled(axis: Any, same: Sequence[MinimumSharpness]) -> None:
    places = range(len(same))
    axis.plot(places, [r.trace for r in same], "o", color=VERMILION, markersize=9, label="trace of the Hessian")
    axis.plot(places, [r.value for r in same], "D", color=BLUE, markersize=7, label="minimum sharpness")
    axis.set_yscale("log")
    axis.set_xticks(list(places), ["as trained", *(f"rescaled {i}" for i in places if i)], rotation=25, ha="right")
    axis.set_title("One function, six sets of weights")
    axis.legend(frameon=False)


def _draw_estimates(axis: Any, estimates: Estimates) -> None:
    """Two standard errors to either side."""
    axis.axhline(estimates.exact, color=GREY, linestyle="--", label="exact, entry by entry")
    for place, (value, error) in enumerate(estimates.values.values()):
        colour = BLUE if place else VERMILION
        axis.errorbar([place], [value], yerr=[2 * error], fmt="o", color=colour, capsize=6, markersize=8)
    axis.set_xticks(range(len(estimates.values)), list(estimates.values))
    axis.set_xlim(-0.6, len(estimates.values) - 0.4)
    axis.set_title("Trace of a transformer, ± 2 s.e.")
    axis.legend(frameon=False)


def _draw_rounded(axis: Any, rounded: Mapping[str, Mapping[int, float]]) -> None:
    for (name, found), colour, mark in zip(rounded.items(), (VERMILION, BLUE), "os", strict=False):
        bits, accuracies = map(str, found), [100 * share for share in found.values()]
        axis.plot(list(bits), accuracies, color=colour, marker=mark, label=name)
    axis.set_title("Networks with rounded weights")
    axis.set_xlabel("bits for each weight")
    axis.set_ylabel("test accuracy (%)")
    axis.legend(frameon=False)
