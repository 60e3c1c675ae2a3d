"""``minsharp compare``: every measure, and how far rescaling moves it."""

from pathlib import Path
from typing import Annotated

import typer

from ...files import check_writable
from .. import options
from ..choices import DataChoice, ModelChoice
from ..names import MEASURES, beginning
from ..output import command

Measures = Annotated[
    list[str] | None,
    typer.Option(
        "--measures",
        "--measure",
        metavar="NAME",
        help="Only this one, as in minimum-sharpness-neuron; may be repeated.",
        autocompletion=lambda incomplete: beginning(incomplete, MEASURES),
    ),
]
Rescalings = Annotated[
    int, typer.Option("--rescalings", min=0, metavar="N", help="Random rescalings to see the drift under.")
]
ScopeOption = Annotated[
    options.Scope,
    typer.Option("--scope", help="Of the rescalings: layers, neurons, or full: layers, and matrices too."),
]
CsvFile = Annotated[Path | None, typer.Option("--csv", metavar="FILE.csv", help="Also write the table as CSV.")]


options.in_panel(options.MEASURED, Measures, Rescalings, ScopeOption)
options.in_panel(options.RESULTS, CsvFile)


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
    fold: options.Fold = False,
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
    from ..compare import compared
    from ..spoken import options_of_command
    from ..task import prepare

    choice = ModelChoice(model, arguments or (), weights, weights_key, outputs, class_axis, fold)
    source = DataChoice(data, samples, batch_size, data_dir, images or ())
    task = prepare(choice, source, loss, curvature, tolerance=tolerance, seed=seed)
    told = options_of_command(compare)
    compared(task, measures or None, rescalings, scope, csv=csv, as_json=as_json, options=told)
