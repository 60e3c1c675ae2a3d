"""Panels, colours and legends that the figures of the experiments share; matplotlib is loaded when one is drawn."""

from typing import Any

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#666666"),
)
"""Okabe and Ito's, which colour-blind readers can tell apart."""


def panels(down: int, across: int, width: float, height: float, *, share_y: bool = False) -> tuple[Any, Any]:
    """A figure of so many inches, and its axes as an array (down, across)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(down, across, sharey=share_y, squeeze=False)


def one_legend(figure: Any, axes: Any, columns: int = 6) -> None:
    """One legend below, with every label once."""
    entries: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def log_log(axis: Any) -> None:
    """Both axes logarithmic."""
    axis.set_xscale("log")
    axis.set_yscale("log")
