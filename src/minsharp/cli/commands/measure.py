"""``minsharp measure``: the trace and the minimum sharpness of a network."""

from pathlib import Path
from typing import Annotated

import typer

from ...errors import InputError
from ...files import check_writable
from .. import options, team
from ..choices import DataChoice, ModelChoice
from ..output import command

ScopeOption = Annotated[
    options.Scope | None,
    typer.Option("--scope", help="One factor per layer, or per neuron: both unless given. Or full: matrices too."),
]
Check = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Measure every claim afresh, which takes longer than measuring; exit with 1 if one does not hold.",
    ),
]
SaveFile = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Also keep the curvature: .json or .safetensors, for minsharp merge."),
]


options.in_panel(options.MEASURED, ScopeOption)
options.in_panel(options.RESULTS, Check, SaveFile)


@command
def measure(
    model: options.Model,
    data: options.Data,
    arguments: options.Arguments = None,
    weights: options.Weights = None,
    weights_key: options.WeightsKey = None,
    outputs: options.Outputs = None,
    class_axis: options.ClassAxis = None,
    images: options.Images = None,
    fold: options.Fold = False,
    scope: ScopeOption = None,
    loss: options.LossOption = options.Loss.CROSS_ENTROPY,
    curvature: options.CurvatureOption = options.Curvature.HESSIAN,
    tolerance: options.Tolerance = 0.0,
    seed: options.Seed = 0,
    parameters: options.Parameters = None,
    samples: options.Samples = None,
    batch_size: options.BatchSize = None,
    data_dir: options.DataDir = None,
    check: Check = False,
    report: options.ReportFile = None,
    save: SaveFile = None,
    as_json: options.Json = False,
) -> None:
    """Measure the trace of the Hessian and the minimum sharpness, with its certificate.

    Example:

        minsharp measure model.pt2 --data digits --report sharpness.html

        minsharp measure timm:create_model --arg model_name=resnet18 --arg num_classes=10 --weights best.pth
        --data photos/train --image resize=256 --image crop=224 --samples 500
    """
    _check_files(report, save, check)
    from ..measure import measured
    from ..task import prepare

    choice = ModelChoice(model, arguments or (), weights, weights_key, outputs, class_axis, fold)
    source = DataChoice(data, samples, batch_size, data_dir, images or ())
    task = prepare(choice, source, loss, curvature, parameters, tolerance=tolerance, seed=seed)
    measured(task, scope, check=check, report=report, save=save, as_json=as_json)


def _check_files(report: Path | None, save: Path | None, check: bool) -> None:
    """Refuse at once what could not be written in the end."""
    if report is not None:
        check_writable(report, (".html", ".htm"))
    if save is not None:
        check_writable(save, (".json", ".safetensors"))
    if (check or report is not None) and team.launched():
        raise InputError("--verify and --report run on one process: leave them out, or call minsharp without torchrun")
