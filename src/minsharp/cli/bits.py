"""How many bits each tensor gets: what ``minsharp bits`` does."""

import json
from pathlib import Path
from typing import Any

from ..curvature.hessian import hessian_diagonal
from ..extras import required
from ..files import write_atomically, write_text
from ..measures.bits import BitAllocation, allocate_bits
from ..measures.minimum import minimum_sharpness
from ..measures.robustness import NoiseLevel, noise_robustness
from ..results.curvature import Diagonal
from ..text import count, number
from ..text.terminal import rich_table
from . import options
from .output import console, note, plain, print_json, watched
from .reporting import rounded, versions, write
from .task import Task


def allocated(
    task: Task,
    numbers: list[int],
    budget: float | None,
    size: int | None,
    noise: options.Rounding,
    per: options.Per,
    *,
    out: Path | None,
    plot: Path | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """Give each tensor its bits, print them, and write and draw what is asked for."""
    diagonal = hessian_diagonal(task.network, task.data.batches, task.loss, **task.options)
    chosen: Any = {"bits": numbers, "noise": str(noise), "per": str(per)}
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
    if report is not None:
        minimum = minimum_sharpness(task.network, diagonal, scope="neuron", noise=chosen["noise"])
        tried = [*numbers, dict(result.bits)]
        noisy = rounded(task, versions(task, minimum.scales), tried, chosen["noise"])
        write(report, task, minimum=minimum, bits=result, **noisy)


def _budget(budget: float | None, size: int | None) -> float | None:
    """Four bits per weight where nothing is said."""
    return 4.0 if budget is None and size is None else budget


def _print(result: BitAllocation) -> None:
    title = f"{number(result.mean_bits, 4)} bits per weight, {count(result.size)} bytes"
    rows = [[n, result.shown(n), count(result.sizes[n]), number(result.by_parameter[n], 4)] for n in result.bits]
    total = ["total", number(result.mean_bits, 4), count(sum(result.sizes.values())), number(result.increase, 4)]
    columns = ["parameter", "bits", "weights", f"predicted {result.predicted}"]
    console().print(rich_table(title, columns, rows, total=total))
    for b, increase in result.uniform.items():
        console().print(f"{b} bits throughout: predicted {result.predicted} {number(increase, 4)}", markup=False)


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
    run: Any = {"noise": chosen["noise"], "parameters": names, "progress": watched()}
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
