"""``minsharp bits``: how many bits each tensor gets."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..curvature.hessian import hessian_diagonal
from ..errors import InputError
from ..extras import required
from ..files import check_writable, write_atomically, write_text
from ..measures.bits import BitAllocation, allocate_bits
from ..measures.robustness import NoiseLevel, noise_robustness
from ..results.curvature import Diagonal
from ..text import count, number
from ..text.terminal import rich_table
from . import options
from .factories import ModelChoice
from .output import command, console, note, plain, print_json
from .sources import DataChoice
from .task import Task, prepare

Choices = Annotated[str, typer.Option("--bits", metavar="LIST", help="The choices, with commas between them.")]
Budget = Annotated[float | None, typer.Option("--budget", metavar="BITS", help="Mean bits per weight. (default: 4)")]
Size = Annotated[
    int | None, typer.Option("--size", metavar="BYTES", help="Bytes for all weights, instead of --budget.")
]
RoundingOption = Annotated[options.Rounding, typer.Option("--noise", help="One scale per tensor, or per channel.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE.json", help="Also write the bits by parameter name, as JSON.")
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE.svg", help="Also draw accuracy against size, beside uniform bits (.svg, .png)."
    ),
]


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
    as_json: options.Json = False,
) -> None:
    """Give each tensor the number of bits that costs the least loss at a given mean number of bits, or bytes.

    Example:

        minsharp bits model.pt2 --data digits --bits 2,3,4,8 --budget 4 --out bits.json
    """
    if out is not None:
        check_writable(out, (".json",))
    if plot is not None:
        check_writable(plot, (".svg", ".png"))
    numbers = _numbers(choices)
    choice = ModelChoice(model, arguments or (), weights, weights_key, outputs, class_axis, fold)
    source = DataChoice(data, samples, batch_size, data_dir, images or ())
    task = prepare(choice, source, loss, curvature, parameters, tolerance=tolerance, seed=seed)
    diagonal = hessian_diagonal(task.network, task.data.batches, task.loss, **task.options)
    chosen: Any = {"bits": numbers, "noise": str(noise)}
    result = allocate_bits(task.network, diagonal, budget=_budget(budget, size), size=size, **chosen)
    if as_json:
        print_json({**task.settings, **result.to_dict()})
    else:
        _print(result)
    if out is not None:
        write_text(out, json.dumps(plain(result.to_dict()), indent=2) + "\n")
        note(f"wrote {out}")
    if plot is not None:
        _draw(plot, task, diagonal, chosen)
        note(f"wrote {plot}")


def _budget(budget: float | None, size: int | None) -> float | None:
    """Four bits per weight where nothing is said."""
    return 4.0 if budget is None and size is None else budget


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--bits {text}: expected numbers with commas between them, as in --bits 2,3,4,8") from None


def _print(result: BitAllocation) -> None:
    title = f"{number(result.mean_bits, 4)} bits per weight, {count(result.size)} bytes"
    rows = [[n, str(b), count(result.sizes[n]), number(result.by_parameter[n], 4)] for n, b in result.bits.items()]
    total = ["total", number(result.mean_bits, 4), count(sum(result.sizes.values())), number(result.increase, 4)]
    columns = ["parameter", "bits", "weights", "predicted increase of the loss"]
    console().print(rich_table(title, columns, rows, total=total))
    for b, increase in result.uniform.items():
        console().print(f"{b} bits throughout: predicted increase {number(increase, 4)}", markup=False)


def _draw(path: Path, task: Task, diagonal: Diagonal, chosen: Any) -> None:
    """Accuracy (agreement, without labels) against bytes: allocated at budgets between the choices, and uniform."""
    required("matplotlib", "drawing figures")
    from matplotlib.figure import Figure

    low, high = min(chosen["bits"]), max(chosen["bits"])
    budgets = [low + (high - low) * k / 12 for k in range(13)]
    found = [allocate_bits(task.network, diagonal, budget=b, **chosen) for b in budgets]
    weights = sum(found[0].sizes.values())
    uniform = sorted(set(chosen["bits"]))
    names = list(found[0].bits)
    run: Any = {"noise": chosen["noise"], "parameters": names}
    assigned: list[Any] = [dict(each.bits) for each in found] + list(uniform)
    levels = noise_robustness(task.network, task.data.batches, task.loss, bits=assigned, **run).levels
    shares = [_share(level) for level in levels]
    figure = Figure(layout="constrained")
    axis = figure.subplots()
    axis.plot([each.size for each in found], shares[: len(found)], marker="o", label="allocated")
    axis.plot([b * weights / 8 for b in uniform], shares[len(found) :], marker="s", linestyle="--", label="uniform")
    share = "agreement" if levels[0].accuracy is None else "accuracy"
    axis.set(xlabel=f"bytes for weights, rounded with noise '{chosen['noise']}'", ylabel=f"{share} on the data given")
    axis.legend()
    ending = path.suffix.lower().removeprefix(".")
    write_atomically(path, lambda temporary: figure.savefig(temporary, format=ending))


def _share(level: NoiseLevel) -> float:
    return (level.agreement if level.accuracy is None else level.accuracy).mean
