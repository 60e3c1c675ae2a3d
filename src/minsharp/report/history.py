"""The section on a history: what a monitor measured while a network trained."""

from collections.abc import Mapping, Sequence
from itertools import repeat
from math import isnan, nan
from typing import Any

from ..errors import InputError
from ..experiments import Table
from ..measures.monitor import Monitor
from .charts import Curve, Reading, number, plain_curves

History = Monitor | Mapping[str, Sequence[float]]
ERROR, SECONDS, STEP = "/standard_error", "/seconds", "step"


def told(given: History) -> list[dict[str, Any]]:
    """A plot of every measure over the steps, and a table of all of them."""
    columns = given.frame() if isinstance(given, Monitor) else {name: list(values) for name, values in given.items()}
    lengths = {len(values) for values in columns.values()}
    if STEP not in columns or len(lengths) != 1:
        raise InputError(
            f"history={list(columns)}: expected a Monitor, or its frame(), columns of one length and 'step'"
        )
    names = [name for name in columns if name != STEP and not name.endswith((ERROR, SECONDS))]
    return [_of(name, columns) for name in names if columns[STEP]]


def _of(name: str, columns: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    title = name.removeprefix("minsharp/").replace("_", " ")
    errors = columns.get(name + ERROR) or repeat(0.0)
    rows = list(zip(columns[STEP], columns[name], errors, strict=False))
    readings = tuple(Reading(step, value, 0.0 if isnan(error) else error) for step, value, error in rows)
    spent = columns.get(name + SECONDS, ())
    cells = tuple((f"{step:g}", _cell(value, 6), _cell(error or nan, 2)) for step, value, error in rows)
    return {
        "title": title.capitalize(),
        "chart": plain_curves(title.capitalize(), "step", title, [Curve(title, readings)]),
        "table": Table(f"{title.capitalize()} over the steps", ("step", title, "standard error"), cells),
        "seconds": number(sum(s for s in spent if not isnan(s)), 3) if spent else "",
    }


def _cell(value: float, digits: int) -> str:
    return "-" if isnan(value) else number(value, digits)
