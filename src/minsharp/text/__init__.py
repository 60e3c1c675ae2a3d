"""Everything that is shown as text passes here: names (`names`), numbers (`numbers`) and tables (`tables`)."""

from .names import csv_cell, printable, printable_lines
from .numbers import count, decimals, duration, interval, magnitude, number, percent, plus_minus, rounded, times
from .tables import Rows, aligned, markdown_cell, markdown_table, plain_table

__all__ = [
    "Rows",
    "aligned",
    "count",
    "csv_cell",
    "decimals",
    "duration",
    "interval",
    "magnitude",
    "markdown_cell",
    "markdown_table",
    "number",
    "percent",
    "plain_table",
    "plus_minus",
    "printable",
    "printable_lines",
    "rounded",
    "times",
]
