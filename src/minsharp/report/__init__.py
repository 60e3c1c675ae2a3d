"""Results for people to look at."""

from ..experiments.plots import Point, Scatter
from .html import write_report
from .outputs import write_outputs
from .reproduction import write_page

__all__ = ["Point", "Scatter", "write_outputs", "write_page", "write_report"]
