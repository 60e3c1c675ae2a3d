"""What goes to stdout (results), what to stderr (everything else), and in which form."""

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..text import printable


class FailureError(Exception):
    """The command did its work, and what it measured says no: exit code 1."""


def complain(error: object, code: int) -> int:
    """Print ``error: ...`` on stderr; the exit code, unchanged."""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    print(f"error: {printable(text)}", file=sys.stderr)
    return code


def note(text: str) -> None:
    """A line for the person who waits, on stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def watched() -> bool:
    """Whether somebody sees stderr: then there are progress bars."""
    return sys.stderr.isatty()


def plain(value: Any) -> Any:
    """The same in what JSON can say: no NaN, no infinity (null in their place), text keys."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(plain(value), indent=2, allow_nan=False))


def console() -> Console:
    """Where results are printed: as wide as they need to be where nobody looks at a terminal."""
    terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout, width=None if terminal else 200, highlight=False, no_color=not terminal, soft_wrap=not terminal
    )


def table(title: str, columns: list[str], rows: list[list[str]], total: bool = False) -> Table:
    """A table whose first column is text and the others numbers; ``total`` sets the last row apart."""
    result = Table(title=Text(printable(title)), title_justify="left", box=_simple(), pad_edge=False, show_edge=False)
    for i, column in enumerate(columns):
        result.add_column(Text(column), justify="left" if i == 0 else "right", overflow="fold")
    for i, row in enumerate(rows):
        if total and i == len(rows) - 1:
            result.add_section()
        result.add_row(*(Text(printable(cell)) for cell in row))
    return result


def _simple() -> Any:
    from rich.box import SIMPLE_HEAD

    return SIMPLE_HEAD


def number(value: float | None, digits: int = 5) -> str:
    """A number as people read it."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.{digits}g}"
