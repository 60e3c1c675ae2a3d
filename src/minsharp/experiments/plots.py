"""Scatter plots as numbers and words: what an experiment hands to the HTML report, which draws them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One point of a scatter plot; ``shade`` from 0 to 1 colours it."""

    x: float
    y: float
    label: str = ""
    shade: float | None = None


@dataclass(frozen=True)
class Scatter:
    """A scatter plot of an experiment: its points, and what to say of them."""

    title: str
    x_label: str
    y_label: str
    points: tuple[Point, ...]
    note: str = ""
    shade_label: str = ""
    log_x: bool = False
