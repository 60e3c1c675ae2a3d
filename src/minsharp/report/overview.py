"""One picture of what minsharp is for: the trace can be fooled, and the flattest network bears more absolute noise."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..colours import BLUE, GREEN, VERMILION
from ..files import write_atomically
from ..measures.minimum import MinimumSharpness
from ..measures.robustness import NoiseRobustness


def draw_overview(same: Sequence[MinimumSharpness], noisy: Mapping[str, NoiseRobustness], path: Path) -> Path:
    """``same``: results for one network in several rescaled forms; ``noisy``: its forms under absolute noise."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.7), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    places = range(len(same))
    left.plot(places, [r.trace for r in same], "o", color=VERMILION, markersize=9, label="trace of the Hessian")
    left.plot(places, [r.value for r in same], "D", color=BLUE, markersize=7, label="minimum sharpness")
    left.set_yscale("log")
    left.set_xticks(list(places), ["as trained", *(f"rescaled {i}" for i in places if i)], rotation=25, ha="right")
    left.set_title("One function, six sets of weights")
    left.set_ylabel("sharpness")
    left.legend(frameon=False)
    for (name, levels), colour, mark in zip(noisy.items(), (VERMILION, BLUE, GREEN), "os^", strict=False):
        known = [(level.sigma, level.accuracy) for level in levels.levels if level.accuracy is not None]
        right.errorbar(
            [sigma for sigma, _ in known],
            [100 * accuracy.mean for _, accuracy in known],
            yerr=[100 * accuracy.standard_error for _, accuracy in known],
            color=colour,
            marker=mark,
            capsize=3,
            label=name,
        )
    right.set_title("The same networks under noise on their weights")
    right.set_xlabel("standard deviation of the noise")
    right.set_ylabel("test accuracy (%)")
    right.legend(frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    return write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=150, format="png"))
