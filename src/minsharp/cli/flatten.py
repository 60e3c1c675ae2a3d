"""``minsharp flatten``: the weights of the flattest equivalent network."""

from pathlib import Path
from typing import Annotated

import typer
from torch import Tensor, nn

from .. import files
from ..measures.minimum import MinimumSharpness, minimum_sharpness
from ..measures.verify import Verification, verify
from ..network.rescale import rescale
from ..text import printable
from . import options
from .measure import print_checks, summary
from .output import FailureError, command, console, note, number, print_json
from .task import prepare


@command
def flatten(
    model: options.Model,
    data: options.Data,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE.safetensors", help="Where the weights go.", show_default=False)
    ],
    weights: options.Weights = None,
    scope: Annotated[options.Scope, typer.Option("--scope", help="One factor per layer, or per neuron.")] = (
        options.Scope.NEURON
    ),
    power_of_two: Annotated[
        bool, typer.Option("--power-of-two", help="Round the factors to powers of two: the outputs keep every bit.")
    ] = False,
    loss: options.LossOption = options.Loss.CROSS_ENTROPY,
    curvature: options.CurvatureOption = options.Curvature.HESSIAN,
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
    """
    files.check_writable(out, (".safetensors",))
    task = prepare(
        model=model,
        data=data,
        weights=weights,
        data_dir=data_dir,
        samples=samples,
        batch_size=batch_size,
        loss=loss,
        curvature=curvature,
        parameters=parameters,
    )
    result = minimum_sharpness(
        task.network,
        task.data.batches,
        task.loss,
        scope=str(scope),  # type: ignore[arg-type]
        power_of_two=power_of_two,
        **task.options,
    )
    flat = rescale(task.network, result.scales, exact=power_of_two)
    verification = verify(task.network, task.data.batches, result, task.loss)
    if verification.holds:
        files.write_atomically(out, lambda path: _save(flat, path))
    if as_json:
        document = {**task.settings, "power_of_two": power_of_two, "out": str(out) if verification.holds else None}
        print_json({**document, "minimum_sharpness": summary(result), "verification": verification.to_dict()})
    else:
        _print(result, verification)
    if not verification.holds:
        raise FailureError(f"the verification fails: '{out}' is not written")
    note(f"wrote {out}")


def _print(result: MinimumSharpness, verification: Verification) -> None:
    text = f"Trace {number(result.trace)} -> {number(result.value)} with the same outputs, scope {result.scope}"
    console().print(text, markup=False)
    console().print(printable(result.status), markup=False)
    print_checks({result.scope: verification})


def _save(module: nn.Module, path: Path) -> None:
    """The state dict, each tensor once under the first of its names."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    first: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        first.setdefault(id(tensor), (name, tensor))
    try:
        save_file({name: tensor.detach().contiguous().clone() for name, tensor in first.values()}, path)
    except SafetensorError as error:
        raise OSError(str(error)) from None
