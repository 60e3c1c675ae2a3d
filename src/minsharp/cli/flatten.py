"""``minsharp flatten``: the weights of the flattest equivalent network."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..files import check_writable
from ..io.weights import save_weights
from ..measures.minimum import MinimumSharpness, minimum_sharpness
from ..measures.verify import Verification, verify
from ..network.rescale import rescale
from ..text import number
from . import options
from .factories import ModelChoice
from .output import FailureError, command, console, note, print_json
from .sharpness import print_checks, summary
from .sources import DataChoice
from .task import Task, prepare

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
    as_json: options.Json = False,
) -> None:
    """Write the weights of the flattest network with the same outputs, and print the verification.

    If a claim does not hold, nothing is written, and the exit code is 1.

    Example:

        minsharp flatten model.pt2 --data digits --out flat.safetensors --power-of-two

        minsharp flatten model.pt2 --data digits --out flat.safetensors --noise max-per-channel
    """
    check_writable(out, (".safetensors",))
    choice = ModelChoice(model, arguments or (), weights, weights_key, outputs, class_axis, fold)
    source = DataChoice(data, samples, batch_size, data_dir, images or ())
    task = prepare(choice, source, loss, curvature, parameters, tolerance=tolerance, seed=seed)
    result = _minimum(task, scope, power_of_two, noise, biases)
    flat = rescale(task.network, result.scales, exact=power_of_two)
    verification = verify(task.network, task.data.batches, result, task.loss)
    if verification.holds:
        save_weights(flat, out)
    if as_json:
        told = {"power_of_two": power_of_two, "noise": str(noise), "biases": result.biases}
        document = {**task.settings, **told, "out": str(out) if verification.holds else None}
        print_json({**document, "minimum_sharpness": summary(result), "verification": verification.to_dict()})
    else:
        _print(result, verification)
    if not verification.holds:
        raise FailureError(f"the verification fails: '{out}' is not written")
    note(f"wrote {out}")


def _minimum(
    task: Task, scope: options.Scope, power_of_two: bool, noise: options.Noise, biases: options.Biases | None
) -> MinimumSharpness:
    chosen: Any = {"scope": str(scope), "noise": str(noise), "power_of_two": power_of_two}
    chosen["biases"] = None if biases is None else str(biases)
    return minimum_sharpness(task.network, task.data.batches, task.loss, **chosen, **task.options)


def _print(result: MinimumSharpness, verification: Verification) -> None:
    what = "Trace" if result.noise == "absolute" else f"Sharpness under noise {result.noise!r}"
    text = f"{what} {number(result.trace, 5)} -> {number(result.value, 5)} with the same outputs, scope {result.scope}"
    console().print(text, markup=False)
    console().print(result.status, markup=False)
    print_checks({result.scope: verification})
