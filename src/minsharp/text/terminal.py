"""Tables for a terminal, with rich: imported only where something is printed."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from .names import printable
from .tables import Rows


def rich_table(title: str, head: Sequence[str], rows: Rows, *, total: Sequence[str] | None = None) -> Table:
    """A table whose first column is text and the others numbers; a total is set apart."""
    table = Table(title=Text(printable(title)), title_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, name in enumerate(head):
        table.add_column(Text(name), justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    if total is not None:
        table.add_section()
        table.add_row(*(Text(printable(cell)) for cell in total))
    return table
