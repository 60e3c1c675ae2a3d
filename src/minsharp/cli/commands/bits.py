"""``minsharp bits``: how many bits each tensor or channel gets."""

from pathlib import Path
from typing import Annotated

import typer

from ...errors import InputError
from ...files import check_writable
from .. import options
from ..choices import DataChoice, ModelChoice
from ..output import command

Choices = Annotated[str, typer.Option("--bits", metavar="LIST", help="The choices, with commas between them.")]
Budget = Annotated[float | None, typer.Option("--budget", metavar="BITS", help="Mean bits per weight. (default: 4)")]
Size = Annotated[
    int | None, typer.Option("--size", metavar="BYTES", help="Bytes for all weights, instead of --budget.")
]
RoundingOption = Annotated[options.Rounding, typer.Option("--noise", help="One scale per tensor, or per channel.")]
PerOption = Annotated[options.Per, typer.Option("--per", help="What gets bits of its own.")]
CostsOption = Annotated[
    options.Costs | None,
    typer.Option(
        "--costs",
        help="What the increase of the loss is predicted from: curvature, rounding each tensor alone, or both. "
        "(default: both with labels and bits for tensors, else curvature)",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE.json", help="Also write the bits by parameter name, as JSON.")
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE.svg", help="Also draw accuracy against size, beside uniform bits (.svg, .png)."
    ),
]


options.in_panel(options.MEASURED, Choices, Budget, Size, RoundingOption, PerOption, CostsOption)
options.in_panel(options.RESULTS, Out, Plot)


@command
def bits(
    model: options.Model,
    data: options.Data,
    arguments: options.Arguments = None,
    weights: options.Weights = None,
    weights_key: options.WeightsKey = None,
    outputs: options.Outputs = None,
    class_axis: options.ClassAxis = None,
    images: options.Images = None,
    fold: options.Fold = False,
    choices: Choices = "2,3,4,8",
    budget: Budget = None,
    size: Size = None,
    noise: RoundingOption = options.Rounding.MAX,
    per: PerOption = options.Per.TENSOR,
    costs: CostsOption = None,
    loss: options.LossOption = options.Loss.CROSS_ENTROPY,
    curvature: options.CurvatureOption = options.Curvature.HESSIAN,
    tolerance: options.Tolerance = 0.0,
    seed: options.Seed = 0,
    parameters: options.Parameters = None,
    samples: options.Samples = None,
    batch_size: options.BatchSize = None,
    data_dir: options.DataDir = None,
    out: Out = None,
    plot: Plot = None,
    report: options.ReportFile = None,
    as_json: options.Json = False,
) -> None:
    """Give each tensor or channel the number of bits that costs the least loss at a given mean of bits, or bytes.

    Example:

        minsharp bits model.pt2 --data digits --bits 2,3,4,8 --budget 4 --out bits.json
    """
    if out is not None:
        check_writable(out, (".json",))
    if plot is not None:
        check_writable(plot, (".svg", ".png"))
    if report is not None:
        check_writable(report, (".html", ".htm"))
    numbers = _numbers(choices)
    from ..bits import give
    from ..spoken import options_of_command
    from ..task import prepare

    choice = ModelChoice(model, arguments or (), weights, weights_key, outputs, class_axis, fold)
    source = DataChoice(data, samples, batch_size, data_dir, images or ())
    task = prepare(choice, source, loss, curvature, parameters, tolerance=tolerance, seed=seed)
    asked = {"bits": numbers, "noise": str(noise), "per": str(per), "costs": costs and str(costs)}
    give(
        task, asked, budget, size, out=out, plot=plot, report=report, as_json=as_json, options=options_of_command(bits)
    )


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--bits {text}: expected numbers with commas between them, as in --bits 2,3,4,8") from None
