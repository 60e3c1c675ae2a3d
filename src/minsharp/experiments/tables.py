"""Tables of results, for the terminal and for Markdown, and what they are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..text import printable
from .plan import Row


@dataclass(frozen=True)
class Table:
    """A title, a head, and rows of text; all columns but the first `text` are numbers."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text: int = 1

    def markdown(self) -> str:
        """The table without its title."""
        rule = ["---" if i < self.text else "---:" for i in range(len(self.head))]
        return "\n".join("| " + " | ".join(map(marked, line)) + " |" for line in (self.head, rule, *self.rows))

    def __str__(self) -> str:
        lines = [[printable(cell) for cell in line] for line in (self.head, *self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]

        def put(line: Sequence[str]) -> str:
            cells = [
                cell.ljust(width) if i < self.text else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            return "  ".join(cells).rstrip()

        body = [put(line) for line in lines]
        return "\n".join([printable(self.title), "", body[0], "-" * max(map(len, body)), *body[1:]])


def marked(text: object) -> str:
    """Text that stays one cell of a Markdown table, and only text."""
    return escape(printable(text), quote=False).replace("|", "&#124;").replace("`", "&#96;")


def number(value: float | None, digits: int = 3) -> str:
    """A number to so many significant digits, or a dash where there is none.

    >>> number(582.38), number(0.0213), number(None)
    ('582', '0.0213', '-')
    """
    if value is None or value != value:
        return "-"
    return f"{value:.{digits}g}" if not 10**digits <= abs(value) < 1e7 else f"{value:,.0f}"


def groups(rows: Sequence[Row], *names: str) -> list[tuple[tuple[Any, ...], list[Row]]]:
    """The rows by what they hold in some columns, in the order of the rows.

    >>> groups([{"n": 1, "x": 2}, {"n": 1, "x": 3}], "n")
    [((1,), [{'n': 1, 'x': 2}, {'n': 1, 'x': 3}])]
    """
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return list(found.items())
