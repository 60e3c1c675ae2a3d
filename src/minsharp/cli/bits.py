"""How many bits each tensor gets: what ``minsharp bits`` does."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..curvature.hessian import hessian_diagonal
from ..errors import MinsharpError
from ..extras import required
from ..files import write_atomically, write_text
from ..measures.bits import BitAllocation, allocated, checked_limit
from ..measures.minimum import minimum_sharpness
from ..measures.prices import Asked, Prices, prices
from ..measures.robustness import NoiseLevel, noise_robustness
from ..results.curvature import Diagonal
from ..text import count, number
from ..text.terminal import rich_table
from .output import console, note, plain, print_json, watched
from .reporting import rounded, versions, write
from .spoken import Option, spoken
from .task import Task


def give(
    task: Task,
    asked: Mapping[str, Any],
    budget: float | None,
    size: int | None,
    *,
    out: Path | None,
    plot: Path | None,
    report: Path | None,
    as_json: bool,
    options: Mapping[str, Option],
) -> None:
    """Give each tensor its bits, print them, and write and draw what is asked for."""
    whole, diagonal = Asked(**asked, curvature=task.curvature, parameters=task.parameters), None
    whole.check()
    checked_limit(whole.choices, budget, size)
    if whole.costs != "measured":
        diagonal = hessian_diagonal(task.network, task.data.batches, task.loss, **task.options)
    whole = replace(whole, diagonal=diagonal)
    costs = prices(task.network, task.data.batches, task.loss, whole, progress=watched(), **task.estimate)
    result = allocated(costs, budget, size)
    told = {**result.to_dict(), "warning": spoken(result.warning, options)}
    if as_json:
        print_json({**task.settings, **told})
    else:
        _print(result, told["warning"])
    if out is not None:
        write_text(out, json.dumps(plain(told), indent=2) + "\n")
        note(f"wrote {out}")
    if plot is not None:
        _draw(plot, task, costs)
        note(f"wrote {plot}")
    if report is not None:
        _report(report, task, diagonal, result, options)


def _report(
    path: Path, task: Task, diagonal: Diagonal | None, result: BitAllocation, options: Mapping[str, Option]
) -> None:
    """The bits, and what rounding does to the network and, where there is one, to the flattest equivalent."""
    tried = [*map(int, result.uniform), dict(result.bits)]
    networks, minimum = {"as it is": task.network}, []
    try:
        if diagonal is None:  # nothing else needs it
            diagonal = hessian_diagonal(task.network, task.data.batches, task.loss, **task.options)
        minimum = [minimum_sharpness(task.network, diagonal, scope="neuron", noise=result.noise)]
        networks = versions(task, minimum[0].scales)
    except MinsharpError as error:
        note(f"the report goes without the flattest network: {spoken(str(error), options)}")
    write(path, task, minimum=minimum, bits=result, **rounded(task, networks, tried, result.noise))


def _print(result: BitAllocation, warning: str) -> None:
    title = f"{number(result.mean_bits, 4)} bits per weight, {count(result.size)} bytes"
    rows = [[n, result.shown(n), count(result.sizes[n]), number(result.by_parameter[n], 4)] for n in result.bits]
    total = ["total", number(result.mean_bits, 4), count(sum(result.sizes.values())), number(result.increase, 4)]
    columns = ["parameter", "bits", "weights", f"predicted {result.predicted}"]
    console().print(rich_table(title, columns, rows, total=total))
    for b, increase in result.uniform.items():
        console().print(f"{b} bits throughout: predicted {result.predicted} {number(increase, 4)}", markup=False)
    if warning:
        console().print(warning, markup=False)


def _draw(path: Path, task: Task, costs: Prices) -> None:
    """Accuracy (agreement, without labels) against bytes: allocated at budgets between the choices, and uniform."""
    required("matplotlib", "drawing figures")
    from matplotlib.figure import Figure

    uniform, names, noise = costs.choices, list(costs.sizes), costs.noise
    low, high, weights = uniform[0], uniform[-1], sum(costs.sizes.values())
    found = [allocated(costs, low + (high - low) * k / 12) for k in range(13)]
    run: Any = {"noise": noise, "parameters": names, "progress": watched()}
    assigned: list[Any] = [dict(each.bits) for each in found] + uniform
    levels = noise_robustness(task.network, task.data.batches, task.loss, bits=assigned, **run).levels
    shares = [_share(level) for level in levels]
    figure = Figure(layout="constrained")
    axis = figure.subplots()
    axis.plot([each.size for each in found], shares[: len(found)], marker="o", label="allocated")
    axis.plot([b * weights / 8 for b in uniform], shares[len(found) :], marker="s", linestyle="--", label="uniform")
    share = "agreement" if levels[0].accuracy is None else "accuracy"
    axis.set(xlabel=f"bytes for weights, rounded with noise '{noise}'", ylabel=f"{share} on the data given")
    axis.legend()
    ending = path.suffix.lower().removeprefix(".")
    write_atomically(path, lambda temporary: figure.savefig(temporary, format=ending))


def _share(level: NoiseLevel) -> float:
    return (level.agreement if level.accuracy is None else level.accuracy).mean
