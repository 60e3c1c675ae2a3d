"""Tables, for the terminal and for markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table as RichTable

DURATIONS = ((86400 * 365, "years"), (86400, "days"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"))


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    size, unit = next((d for d in DURATIONS if seconds >= d[0]), DURATIONS[-1])
    return f"{digits(seconds / size)} {unit}"


def digits(value: float) -> str:
    """Three significant digits, never in scientific notation."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def times(ratio: float) -> str:
    """A ratio."""
    return f"{digits(ratio)}x"


@dataclass(frozen=True)
class Table:
    """A heading, a paragraph on how its numbers came about, and rows of text."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table with its heading and paragraph."""
        lines = [self.columns, ["---"] + ["---:"] * (len(self.columns) - 1), *self.rows]
        return f"## {self.title}\n\n{self.note}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def rich(self) -> RichTable:
        """The table for the terminal."""
        table = RichTable(title=self.title, title_justify="left", box=box.SIMPLE_HEAD)
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="right" if i else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table
