"""Results for people to look at."""

from ..experiments.plots import Point, Scatter
from .html import write_report

__all__ = ["Point", "Scatter", "write_report"]
