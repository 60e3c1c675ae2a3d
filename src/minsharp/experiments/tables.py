"""Tables of results, for the terminal and for Markdown, and what they are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..text import markdown_cell, markdown_table, plain_table, printable
from .plan import ResultRow


@dataclass(frozen=True)
class Table:
    """A title, a head, and rows of text; all columns but the first `text` are numbers."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text: int = 1

    def markdown(self) -> str:
        """The table without its title."""
        head, *rows = [[markdown_cell(cell) for cell in line] for line in (self.head, *self.rows)]
        return markdown_table(head, rows, text=self.text)

    def __str__(self) -> str:
        return f"{printable(self.title)}\n\n{plain_table(self.head, self.rows, text=self.text)}"


def groups(rows: Sequence[ResultRow], *names: str) -> list[tuple[tuple[Any, ...], list[ResultRow]]]:
    """The rows by what they hold in some columns, in the order of the rows.

    >>> groups([{"n": 1, "x": 2}, {"n": 1, "x": 3}], "n")
    [((1,), [{'n': 1, 'x': 2}, {'n': 1, 'x': 3}])]
    """
    found: dict[tuple[Any, ...], list[ResultRow]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return list(found.items())
