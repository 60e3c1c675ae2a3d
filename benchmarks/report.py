"""Tables, for the terminal and for markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table as RichTable

from minsharp.text import markdown_table
from minsharp.text.terminal import rich_table


@dataclass(frozen=True)
class Table:
    """A heading, a paragraph on how its numbers came about, and rows of text."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table with its heading and paragraph."""
        return f"## {self.title}\n\n{self.note}\n\n{markdown_table(self.columns, self.rows)}"

    def rich(self) -> RichTable:
        """The table for the terminal."""
        return rich_table(self.title, self.columns, self.rows)
