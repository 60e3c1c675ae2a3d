"""``minsharp flatten``: the weights of the flattest equivalent network."""

from pathlib import Path
from typing import Annotated

import typer

from ...files import check_writable
from .. import options
from ..choices import DataChoice, ModelChoice
from ..output import command

Out = Annotated[
    Path, typer.Option("--out", metavar="FILE.safetensors", help="Where the weights go.", show_default=False)
]
ScopeOption = Annotated[
    options.Scope, typer.Option("--scope", help="One factor per layer, or per neuron; or matrices too.")
]
PowerOfTwo = Annotated[
    bool, typer.Option("--power-of-two", help="Round the factors to powers of two: the outputs keep every bit.")
]
NoiseOption = Annotated[
    options.Noise,
    typer.Option(
        "--noise", help="The noise to bear: of one size, or growing with a tensor's (or channel's) weights: quantizers."
    ),
]
BiasesOption = Annotated[
    options.Biases | None,
    typer.Option(
        "--biases",
        help="Whether the hardware keeps biases exact. (default: exact under noise that grows with the largest weight)",
        show_default=False,
    ),
]


options.in_panel(options.MEASURED, ScopeOption, PowerOfTwo, NoiseOption)
options.in_panel(options.RESULTS, Out)


@command
def flatten(
    model: options.Model,
    data: options.Data,
    out: Out,
    arguments: options.Arguments = None,
    weights: options.Weights = None,
    weights_key: options.WeightsKey = None,
    outputs: options.Outputs = None,
    class_axis: options.ClassAxis = None,
    images: options.Images = None,
    fold: options.Fold = False,
    scope: ScopeOption = options.Scope.NEURON,
    power_of_two: PowerOfTwo = False,
    noise: NoiseOption = options.Noise.ABSOLUTE,
    biases: BiasesOption = None,
    loss: options.LossOption = options.Loss.CROSS_ENTROPY,
    curvature: options.CurvatureOption = options.Curvature.HESSIAN,
    tolerance: options.Tolerance = 0.0,
    seed: options.Seed = 0,
    parameters: options.Parameters = None,
    samples: options.Samples = None,
    batch_size: options.BatchSize = None,
    data_dir: options.DataDir = None,
    report: options.ReportFile = None,
    as_json: options.Json = False,
) -> None:
    """Write the weights of the flattest network with the same outputs, and print the verification.

    If a claim does not hold, no weights are written, and the exit code is 1.

    Example:

        minsharp flatten model.pt2 --data digits --out flat.safetensors --power-of-two

        minsharp flatten model.pt2 --data digits --out flat.safetensors --noise max-per-channel
    """
    check_writable(out, (".safetensors",))
    if report is not None:
        check_writable(report, (".html", ".htm"))
    from ..flatten import flattened
    from ..task import prepare

    choice = ModelChoice(model, arguments or (), weights, weights_key, outputs, class_axis, fold)
    source = DataChoice(data, samples, batch_size, data_dir, images or ())
    task = prepare(choice, source, loss, curvature, parameters, tolerance=tolerance, seed=seed)
    flattened(task, out, scope, power_of_two=power_of_two, noise=noise, biases=biases, report=report, as_json=as_json)
