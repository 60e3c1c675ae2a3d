"""Results as a run left them, checked: a file that was cut, edited or made up is refused by what is wrong with it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from ..errors import InputError, MinsharpError
from ..files import read_json
from ..text import printable
from .experiment import Experiment, Results
from .plan import ResultRow
from .registry import EXPERIMENTS
from .store import MOST_SETTINGS, SETTINGS, TABLE, read_csv

_MOST_COLUMNS, _MOST_MODELS = 200, 50


def read_results(folder: str | Path, experiment: Experiment | None = None) -> Results:
    """The results in a folder, of the experiment that its settings name; or of the one given."""
    folder = Path(folder)
    rows = read_csv(folder / TABLE)
    settings = _read_settings(folder / SETTINGS)
    if experiment is None:
        experiment = _told_by_settings(folder, settings) or _told_by_columns(rows)
    return Results(experiment, _checked_rows(folder / TABLE, rows, experiment), settings, folder)


def _read_settings(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    found = read_json(path, MOST_SETTINGS)
    if not isinstance(found, dict):
        raise InputError(f"'{path}' is damaged: it holds a {type(found).__name__}, expected settings by name")
    return found


def _told_by_settings(folder: Path, settings: Mapping[str, Any] | None) -> Experiment | None:
    """The experiment that the settings name. A name in a file is looked up, and never imported."""
    name = (settings or {}).get("experiment")
    if name is None:
        return None
    if isinstance(name, str) and name in EXPERIMENTS:
        return EXPERIMENTS[name]
    raise InputError(
        f"the results in '{folder}' are of the experiment {printable(name)[:60]!r}, which is not known here: expected "
        f"one of {', '.join(EXPERIMENTS)}. Import the module that registers it first"
    )


def _told_by_columns(rows: Sequence[ResultRow]) -> Experiment:
    """For a table without settings: the experiment all of whose columns are there, with most of them."""
    columns = set(rows[0]) if rows else set()
    fit = [e for e in EXPERIMENTS.values() if e.columns.needed and columns.issuperset(e.columns.needed)]
    if not fit:
        found = ", ".join(sorted(columns))[:300] or "none"
        raise InputError(
            f"no results of `minsharp reproduce`: the columns are {found}, and no {SETTINGS} says which experiment "
            "they are of"
        )
    return max(fit, key=lambda e: len(e.columns.needed))


def _checked_rows(path: Path, rows: Sequence[ResultRow], experiment: Experiment) -> list[ResultRow]:
    """The rows, each cell of the kind that its column has."""
    if not rows:
        raise InputError(f"'{path}' is no result of `minsharp reproduce`: it has no rows")
    missing = [name for name in experiment.columns.needed if name not in rows[0]]
    if missing:
        raise InputError(f"'{path}' is damaged: it has no column {', '.join(map(repr, missing))}")
    models = {row.get("model") for row in rows}
    for what, size, most in (
        ("rows", len(rows), experiment.most_rows),
        ("columns", len(rows[0]), _MOST_COLUMNS),
        ("networks", len(models), _MOST_MODELS),
    ):
        if size > most:
            raise InputError(
                f"'{path}' is no result of `minsharp reproduce`: {size:,} {what}, expected at most {most:,}"
            )
    return [
        {printable(name)[:100]: _checked(experiment, path, line, name, cell) for name, cell in row.items()}
        for line, row in enumerate(rows, 2)
    ]


def _checked(experiment: Experiment, path: Path, line: int, name: str, cell: Any) -> Any:
    columns = experiment.columns
    if name in columns.text or name in columns.other_text:
        return "" if cell != cell else printable(cell)[:300]
    number = isinstance(cell, int | float) and (abs(cell) < 1 << 63 or isinstance(cell, float))
    if not number or (name in columns.orders and not isfinite(cell)):
        raise InputError(f"'{path}' is damaged: row {line} has {str(cell)[:60]!r} for {name!r}, expected a number")
    return cell


@contextmanager
def computed_from(place: str | Path) -> Iterator[None]:
    """Whatever goes wrong in a computation on a folder's files lies in them: say so, and which folder."""
    try:
        yield
    except (MinsharpError, OSError):
        raise
    except Exception as error:
        raise InputError(f"the results in '{place}' are damaged: {type(error).__name__}: {error}") from error
