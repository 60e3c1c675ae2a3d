"""The figures that an experiment draws, as PNG and SVG files in one style."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..experiments import Experiment, Results
from ..extras import required
from ..files import write_bytes

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
_METADATA: dict[str, Any] = {"png": {"Software": None}, "svg": {"Date": None}}
"""Nothing that differs from one run to the next."""


def draw(results: Results, out: Path) -> list[Path]:
    """All figures of an experiment, as files in a folder; all are made before any is written."""
    return [write_bytes(out / name, content) for name, content in drawn(results).items()]


def drawn(results: Results) -> dict[str, bytes]:
    """All figures of an experiment, by the names of their files. No window is opened, whatever the user's backend."""
    with _style():
        return {
            f"{_file_name(name)}.{ending}": _saved(figure, ending)
            for name, figure in results.experiment.figures(results)
            for ending in _METADATA
        }


def overall(experiment: Experiment, results: Sequence[Results]) -> bytes | None:
    """The figure of all folders of an experiment as PNG, where it has one."""
    if experiment.section.figure is None:
        return None
    with _style():
        return _saved(experiment.section.figure(results), "png")


def _style() -> Any:
    return required("matplotlib", "drawing figures").rc_context(_STYLE)


def _saved(figure: Any, ending: str) -> bytes:
    _plain_powers(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, bbox_inches="tight", metadata=_METADATA[ending], format=ending)
    return buffer.getvalue()


def _plain_powers(figure: Any) -> None:
    """Numbers along logarithmic axes as text: matplotlib's own are formulas, and no formula is set here."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    plain = FuncFormatter(lambda value, _: f"{value:g}")
    some = FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                low, high = sorted(axis.get_view_interval())
                few = sum(low <= place <= high for place in axis.get_majorticklocs()) < 2
                axis.set_major_formatter(plain)
                axis.set_minor_formatter(some if few else NullFormatter())


def _file_name(name: str) -> str:
    """A name of a file in the folder, whatever a network is called."""
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[:80]
