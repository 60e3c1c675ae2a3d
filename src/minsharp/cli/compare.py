"""``minsharp compare``: every measure, and how far rescaling moves it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import files
from . import options
from .output import command, console, note, number, print_json, table, watched
from .task import prepare


def _measures(incomplete: str) -> list[str]:
    from ..measures.registry import MEASURES

    return [name for name in MEASURES if name.startswith(incomplete)]


@command
def compare(
    model: options.Model,
    data: options.Data,
    weights: options.Weights = None,
    measures: Annotated[
        list[str] | None,
        typer.Option("--measures", metavar="NAME", help="Only this one; may be repeated.", autocompletion=_measures),
    ] = None,
    rescalings: Annotated[
        int, typer.Option("--rescalings", min=0, metavar="N", help="Random rescalings to see the drift under.")
    ] = 5,
    loss: options.LossOption = options.Loss.CROSS_ENTROPY,
    curvature: options.CurvatureOption = options.Curvature.HESSIAN,
    samples: options.Samples = None,
    batch_size: options.BatchSize = None,
    data_dir: options.DataDir = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE.csv", help="Also write the table as CSV.")] = None,
    as_json: options.Json = False,
) -> None:
    """Compute every measure of sharpness, and how far a random rescaling of the weights moves each of them.

    Example:

        minsharp compare model.pt2 --data digits --samples 500 --csv measures.csv
    """
    from ..measures.compare import compare as compare_measures

    if csv is not None:
        files.check_writable(csv, (".csv",))
    task = prepare(
        model=model,
        data=data,
        weights=weights,
        data_dir=data_dir,
        samples=samples,
        batch_size=batch_size,
        loss=loss,
        curvature=curvature,
    )
    found = compare_measures(
        task.network,
        task.data.batches,
        task.loss,
        measures=measures or None,
        rescalings=rescalings,
        curvature=task.curvature,
        progress=watched(),
    )
    if csv is not None:
        files.write_atomically(csv, lambda path: path.write_text(found.to_csv(), encoding="utf-8"))
        note(f"wrote {csv}")
    if as_json:
        print_json({**task.settings, **found.to_dict()})
    else:
        title = f"Measures of sharpness over {found.samples:,} samples"
        columns = ["measure", "value", "±", "drift", "invariant under", "seconds", ""]
        console().print(table(title, columns, [_cells(row) for row in found.rows]))


def _cells(row: Any) -> list[str]:
    numbers = [number(row.value), number(row.standard_error, 2), number(row.drift, 2)]
    return [row.name, *numbers, row.invariance or "-", number(row.seconds, 2), " ".join(str(row.error or "").split())]
