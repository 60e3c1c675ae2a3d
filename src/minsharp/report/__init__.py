"""Results for people to look at."""

from .charts import Point, Scatter
from .html import write_report

__all__ = ["Point", "Scatter", "write_report"]
