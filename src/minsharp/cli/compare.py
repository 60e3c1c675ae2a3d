"""Every measure, and how far rescaling moves it: what ``minsharp compare`` does."""

from collections.abc import Mapping
from pathlib import Path

from ..errors import InputError
from ..files import write_text
from ..measures.compare import Comparison, Measurement
from ..measures.compare import compare as compare_measures
from ..measures.registry import MEASURES
from ..text import count, number
from ..text.terminal import rich_table
from .names import named, word
from .options import Scope
from .output import console, note, print_json, watched
from .spoken import Option, spoken
from .task import Task


def compared(
    task: Task,
    measures: list[str] | None,
    rescalings: int,
    scope: Scope,
    *,
    csv: Path | None,
    as_json: bool,
    options: Mapping[str, Option],
) -> None:
    """Take the measures, print them, and write the table where that is asked for."""
    wanted = None if measures is None else [_measure(name) for name in measures]
    found = compare_measures(
        task.network,
        task.data.batches,
        task.loss,
        measures=wanted,
        rescalings=rescalings,
        scope=str(scope),  # type: ignore[arg-type]
        curvature=task.curvature,
        progress=watched(),
        **task.estimate,
    )
    if csv is not None:
        write_text(csv, found.to_csv())
        note(f"wrote {csv}")
    if as_json:
        print_json({**task.settings, **found.to_dict()})
    else:
        _print(found, options)


def _measure(text: str) -> str:
    """The name of a measure, as it is or written as one word."""
    name = named(text, list(MEASURES))
    if name not in MEASURES:
        raise InputError(f"--measures {text}: expected some of {', '.join(map(word, MEASURES))}")
    return name


def _print(found: Comparison, options: Mapping[str, Option]) -> None:
    title = f"Measures of sharpness over {count(found.samples)} samples"
    columns = ["measure", "value", "±", "drift", "invariant under", "seconds", ""]
    console().print(rich_table(title, columns, [_cells(row, options) for row in found.rows]))


def _cells(row: Measurement, options: Mapping[str, Option]) -> list[str]:
    numbers = [number(row.value, 5), number(row.standard_error, 2), number(row.drift, 2)]
    reason = " ".join(spoken(str(row.error or ""), options).split())
    return [row.name, *numbers, row.invariance, number(row.seconds, 2), reason]
