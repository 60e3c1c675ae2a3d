"""``minsharp compare``: every measure, and how far rescaling moves it."""

from pathlib import Path
from typing import Annotated

import typer

from ..files import check_writable, write_text
from ..measures.compare import Comparison, Measurement
from ..measures.compare import compare as compare_measures
from ..measures.registry import MEASURES
from ..text import count, number
from ..text.terminal import rich_table
from . import options
from .factories import ModelChoice
from .output import command, console, note, print_json, watched
from .sources import DataChoice
from .task import prepare


def _measures(incomplete: str) -> list[str]:
    return [name for name in MEASURES if name.startswith(incomplete)]


Measures = Annotated[
    list[str] | None,
    typer.Option("--measures", metavar="NAME", help="Only this one; may be repeated.", autocompletion=_measures),
]
Rescalings = Annotated[
    int, typer.Option("--rescalings", min=0, metavar="N", help="Random rescalings to see the drift under.")
]
ScopeOption = Annotated[
    options.Scope,
    typer.Option("--scope", help="Of the rescalings: layers, neurons, or full: layers, and matrices too."),
]
CsvFile = Annotated[Path | None, typer.Option("--csv", metavar="FILE.csv", help="Also write the table as CSV.")]


@command
def compare(
    model: options.Model,
    data: options.Data,
    arguments: options.Arguments = None,
    weights: options.Weights = None,
    weights_key: options.WeightsKey = None,
    outputs: options.Outputs = None,
    class_axis: options.ClassAxis = None,
    images: options.Images = None,
    measures: Measures = None,
    rescalings: Rescalings = 5,
    scope: ScopeOption = options.Scope.LAYER,
    loss: options.LossOption = options.Loss.CROSS_ENTROPY,
    curvature: options.CurvatureOption = options.Curvature.HESSIAN,
    tolerance: options.Tolerance = 0.0,
    seed: options.Seed = 0,
    samples: options.Samples = None,
    batch_size: options.BatchSize = None,
    data_dir: options.DataDir = None,
    csv: CsvFile = None,
    as_json: options.Json = False,
) -> None:
    """Compute every measure of sharpness, and how far a random rescaling of the weights moves each of them.

    Example:

        minsharp compare model.pt2 --data digits --samples 500 --csv measures.csv
    """
    if csv is not None:
        check_writable(csv, (".csv",))
    choice = ModelChoice(model, arguments or (), weights, weights_key, outputs, class_axis)
    source = DataChoice(data, samples, batch_size, data_dir, images or ())
    task = prepare(choice, source, loss, curvature, tolerance=tolerance, seed=seed)
    found = compare_measures(
        task.network,
        task.data.batches,
        task.loss,
        measures=measures or None,
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
        _print(found)


def _print(found: Comparison) -> None:
    title = f"Measures of sharpness over {count(found.samples)} samples"
    columns = ["measure", "value", "±", "drift", "invariant under", "seconds", ""]
    console().print(rich_table(title, columns, [_cells(row) for row in found.rows]))


def _cells(row: Measurement) -> list[str]:
    numbers = [number(row.value, 5), number(row.standard_error, 2), number(row.drift, 2)]
    return [row.name, *numbers, row.invariance, number(row.seconds, 2), " ".join(str(row.error or "").split())]
