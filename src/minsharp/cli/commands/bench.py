"""``minsharp bench``: how long the exact answer takes on this machine, beside what it cannot do without."""

from typing import Annotated

import typer

from ...errors import InputError
from .. import options
from ..choices import DataChoice, ModelChoice
from ..output import command


@command
def bench(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="As for measure. Without it: three networks of the paper, untrained."),
    ] = None,
    data: Annotated[str | None, typer.Option("--data", metavar="DATA", help="As for measure.")] = None,
    arguments: options.Arguments = None,
    weights: options.Weights = None,
    weights_key: options.WeightsKey = None,
    outputs: options.Outputs = None,
    class_axis: options.ClassAxis = None,
    images: options.Images = None,
    loss: options.LossOption = options.Loss.CROSS_ENTROPY,
    samples: options.Samples = None,
    data_dir: options.DataDir = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, metavar="N", help="Rounds; the median is shown.")] = 5,
    as_json: options.Json = False,
) -> None:
    """Time the exact trace and diagonal on this machine, beside bare backprops and an estimate of 1 %.

    The bare K-1 backward passes are the least that any exact method with this factor has to do; Hutchinson's estimator
    takes random Hessian-vector products until its standard error is 1 %.

    Example:

        minsharp bench
        minsharp bench model.pt2 --data digits --samples 500
    """
    choice = None if model is None else ModelChoice(model, arguments or (), weights, weights_key, outputs, class_axis)
    source = None if data is None else DataChoice(data, samples, None, data_dir, images or ())
    if choice is None and (source or weights or arguments or images):
        raise InputError(
            "--data, --weights, --arg and --image belong to a model: minsharp bench model.pt2 --data digits"
        )
    from ..bench import timed

    timed(choice, source, str(loss), samples, repeat, as_json=as_json)
