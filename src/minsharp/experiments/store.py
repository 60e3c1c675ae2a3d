"""The folder of a run: `settings.json` (what its cells share), `cells/` (a file per finished cell), `results.csv`.

Whatever moment a run is killed at, the folder holds whole files only, and the same run goes on from there.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import check_writable, drafts, make_folder, read_json, read_text, reason_of, write_text
from ..text import csv_cell
from .plan import Configuration, ResultRow

TABLE, SETTINGS, CELLS = "results.csv", "settings.json", "cells"
MOST_SETTINGS, _MOST_CELL, _MOST_TABLE = 1 << 20, 16 << 20, 64 << 20
"""Bytes that settings, a cell and a table may have: far more than they do."""


def prepare(out: Path, record: Configuration, cells: Sequence[Configuration], force: bool) -> Path:
    """Make the folder of the cells, or make sure that they were made for the same settings."""
    path, folder = out / SETTINGS, make_folder(out / CELLS)
    for place in (path, out / TABLE, *(folder / cell_name(cell) for cell in cells)):
        check_writable(place)
    if force:
        _empty(out, folder)
    elif path.exists() or _cells(folder):
        _check_settings(path, record)
    for draft in (*drafts(out), *drafts(folder)):  # of a run that was killed
        draft.unlink(missing_ok=True)
    write_text(path, json.dumps(record, indent=2) + "\n")
    return folder


def _empty(out: Path, folder: Path) -> None:
    """Throw away what was computed, first what was made of the cells: at no moment do results stand without them."""
    made = [*out.glob("*.png"), *out.glob("*.svg"), out / "summary.json", out / TABLE]
    try:
        for path in (*made, *_cells(folder)):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot remove '{error.filename}': {reason_of(error)}") from None


def _check_settings(path: Path, record: Configuration) -> None:
    """Refuse to add to results of unknown, or of other, settings."""
    advice = "Pass another folder, --out, or --force to throw its results away and run everything again"
    try:
        known = read_json(path, MOST_SETTINGS)
    except InputError as error:
        raise InputError(f"the settings of the results in '{path.parent}' are not known: {error}. {advice}") from None
    differences = list(_differences(known, record))
    if differences:
        lines = ";\n".join(f"  {line}" for line in differences)
        raise InputError(f"{path.parent} was made with other settings:\n{lines}.\n{advice}")


def _cells(folder: Path) -> list[Path]:
    """The files of cells; what is hidden is a draft."""
    return [path for path in folder.glob("*.json") if not path.name.startswith(".")]


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Every setting that differs, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            where = f"{name}.{key}" if name else key
            yield from _differences(old.get(key, "(not there)"), new.get(key, "(not there)"), where)
    elif old != new:
        yield f"{name or 'all'}: {str(old)[:200]} in the folder, {str(new)[:200]} asked for"


def cell_name(cell: Configuration) -> str:
    """The name of a cell's file."""
    return "_".join(f"{key}-{value}" for key, value in cell.items()) + ".json"


def write_cell(folder: Path, cell: Configuration, rows: Sequence[ResultRow]) -> None:
    """Keep a finished cell."""
    write_text(folder / cell_name(cell), json.dumps({"cell": cell, "rows": rows}) + "\n")


def read_cell(path: Path) -> dict[str, Any] | None:
    """A finished cell, or nothing where there is none, or a file that a dying disk left in pieces."""
    try:
        found = read_json(path, _MOST_CELL)
    except InputError:
        return None
    return found if _is_cell(found) and cell_name(found["cell"]) == path.name else None


def _is_cell(found: Any) -> bool:
    """Whether it has the form that `write_cell` gives it."""
    if not isinstance(found, dict) or not _is_flat(found.get("cell")):
        return False
    rows = found.get("rows")
    return isinstance(rows, list) and all(map(_is_flat, rows))


def _is_flat(found: Any) -> bool:
    return isinstance(found, dict) and all(v is None or isinstance(v, str | int | float) for v in found.values())


def finished(folder: Path) -> list[ResultRow]:
    """The rows of all finished cells, in an order that depends on nothing but the cells."""
    cells = [cell for cell in map(read_cell, _cells(folder)) if cell is not None]
    cells.sort(key=lambda cell: [(isinstance(value, str), value) for value in cell["cell"].values()])
    return [row for cell in cells for row in cell["rows"]]


def write_csv(path: Path, rows: Sequence[ResultRow]) -> None:
    """The rows as a table; what a row does not have, or is no finite number, is left empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(csv_cell, columns))
    writer.writerows([csv_cell(_plain(row.get(column))) for column in columns] for row in rows)
    write_text(path, text.getvalue())


def _plain(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not isfinite(value)) else value


def read_csv(path: str | Path) -> list[ResultRow]:
    """The rows of a table, numbers as numbers, what is empty as NaN."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist: expected a folder that `minsharp reproduce` wrote")
    text = io.StringIO(read_text(path, _MOST_TABLE), newline="")
    try:
        head, *lines = list(csv.reader(text, strict=True)) or [[]]
    except csv.Error as error:
        raise InputError(f"'{path}' is damaged: {error}") from None
    for number, line in enumerate(lines, 2):
        if len(line) != len(head):
            raise InputError(f"'{path}' is damaged: row {number} has {len(line)} cells, expected {len(head)}")
    if len(set(head)) != len(head):
        raise InputError(f"'{path}' is damaged: two columns have one name")
    return [dict(zip(head, map(_parsed, line), strict=True)) for line in lines]


def _parsed(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    with suppress(ValueError):
        return int(text)
    try:
        return float(text) if text else float("nan")
    except ValueError:
        return text
