"""The rows of a `results.csv`, checked: a file that was cut, edited or made up is refused by what is wrong with it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from ..errors import InputError, MinsharpError
from ..experiments.cells import SETTINGS, TIMING, Row, read_csv
from ..files import read_json
from ..text import printable

Kind = Literal["labels", "trace", "approximations"]

_TEXT = {"preset", "protocol", "model", "data", "method", "errors", "baseline"}
_ORDERS = {"ratio", "seed", "samples", "probes"}
"""Columns by which rows are told apart."""
_NEEDED: dict[Kind, tuple[str, ...]] = {
    "labels": (
        *("preset", "protocol", "model", "ratio", "seed", "reached"),
        *("train accuracy", "test accuracy", "gap", "training loss"),
    ),
    "trace": (
        *("data", "model", "samples", "seed", "trace", "baseline trace"),
        *("trace relative difference", "diagonal relative difference"),
        *(f"{name} {TIMING}" for name in ("trace", "diagonal", "baseline")),
    ),
    "approximations": ("data", "model", "method", "samples", "seed", "probes", "error", "relative error", TIMING),
}
_MOST: dict[Kind, int] = {"labels": 5_000, "trace": 100_000, "approximations": 100_000}
"""Rows: a correlation over n networks compares n² pairs."""
_COLUMNS, _MODELS = 200, 50


def kind(rows: Sequence[Row]) -> Kind:
    """Which experiment a table is of."""
    columns = set(rows[0]) if rows else set()
    if {"ratio", "gap"} <= columns:
        return "labels"
    if "baseline trace" in columns:
        return "trace"
    if {"method", "probes"} <= columns:
        return "approximations"
    raise InputError(f"no results of `minsharp reproduce`: the columns are {', '.join(sorted(columns)) or 'none'}")


def read_rows(path: str | Path) -> list[Row]:
    """The rows of a file, each cell of the kind that its column has."""
    rows = read_csv(path)
    found = kind(rows)
    missing = [name for name in _NEEDED[found] if name not in rows[0]]
    if missing:
        raise InputError(f"'{path}' is damaged: it has no column {', '.join(map(repr, missing))}")
    sizes = (len(rows), len(rows[0]), len({row["model"] for row in rows}))
    for what, size, most in zip(("rows", "columns", "networks"), sizes, (_MOST[found], _COLUMNS, _MODELS), strict=True):
        if size > most:
            raise InputError(
                f"'{path}' is no result of `minsharp reproduce`: {size:,} {what}, expected at most {most:,}"
            )
    return [
        {printable(name)[:100]: _checked(path, line, name, cell) for name, cell in row.items()}
        for line, row in enumerate(rows, 2)
    ]


def _checked(path: str | Path, line: int, name: str, cell: Any) -> Any:
    if name in _TEXT:
        return "" if cell != cell else printable(cell)[:300]
    number = isinstance(cell, int | float) and (abs(cell) < 1 << 63 or isinstance(cell, float))
    if not number or (name in _ORDERS and not isfinite(cell)):
        raise InputError(f"'{path}' is damaged: row {line} has {str(cell)[:60]!r} for {name!r}, expected a number")
    return cell


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a run."""
    found = read_json(path, SETTINGS)
    if not isinstance(found, dict):
        raise InputError(f"'{path}' is damaged: it holds a {type(found).__name__}, expected settings by name")
    return found


@contextmanager
def computed_from(place: str | Path) -> Iterator[None]:
    """Whatever goes wrong in a computation on a folder's files lies in them: say so, and which folder."""
    try:
        yield
    except (MinsharpError, OSError):
        raise
    except Exception as error:
        raise InputError(f"the results in '{place}' are damaged: {type(error).__name__}: {error}") from error
