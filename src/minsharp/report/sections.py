"""What each section of the report shows, computed from results; how it looks is the templates' business."""

import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from torch.linalg import svdvals

from ..experiments import Results, Scatter, Table
from ..measures.minimum import MinimumSharpness
from ..measures.robustness import Measured, NoiseRobustness
from ..measures.verify import Verification
from ..network.symmetry import Transformation
from ..version import __version__
from .charts import TIMES, Curve, Reading, bars, curves, number, ranges, scatter

KINDS = {"hessian": "Hessian", "ggn": "Gauss-Newton matrix", "jacobian": "squared Jacobian", "margin": "margin"}
SCOPES = {
    "layer": "one factor per tensor",
    "neuron": "one factor per neuron",
    "full": "one factor per tensor and a matrix per frame",
}
NOISES = {
    "absolute": "Absolute noise: every weight moves by sigma",
    "relative": "Relative noise: every weight moves by sigma times the root mean square of its tensor",
    "max": "Noise of a tensor's largest weight: every weight moves by sigma times it",
    "max-per-channel": "Noise of a channel's largest weight: every weight moves by sigma times it",
    "pcm": "Phase-change memory: sigma times what programming the weights does",
}
SHOWN = 40
"""Parameters in a chart; the tables hold all."""

Content = dict[str, Any]
Robustness = Mapping[str, NoiseRobustness | Sequence[NoiseRobustness]]


class Tile(NamedTuple):
    """A number in large print."""

    name: str
    value: str
    remark: str


def kind_of(result: MinimumSharpness) -> str:
    """What the trace is of."""
    return KINDS.get(result.curvature, result.curvature)


def best_of(results: Sequence[MinimumSharpness]) -> MinimumSharpness:
    """The scope that goes lowest."""
    return min(results, key=lambda result: result.value)


def _heading(result: MinimumSharpness) -> str:
    return f"Scope {result.scope}: {SCOPES[result.scope]}"


def numbers(results: Sequence[MinimumSharpness]) -> Content:
    """The trace, the minimum in each scope, and how much flatter that is."""
    first, best = results[0], best_of(results)
    remark = f"of the {kind_of(first)}, as the network is: any rescaling changes it"
    tiles = [Tile("Trace", number(first.trace), remark)]
    for result in results:
        remark = f"{SCOPES[result.scope]}; {_gap(result)}"
        tiles.append(Tile(f"Minimum sharpness, {result.scope}", number(result.value), remark))
    if best.value > 0 and math.isfinite(best.trace / best.value):
        ratio = f"{number(best.trace / best.value, 3)}{TIMES}"
        tiles.append(Tile("Flatter by", ratio, "the same outputs, other weights"))
    return {
        "tiles": tiles,
        "loss": first.loss,
        "samples": f"{first.samples:,}",
        "inexact": sum(not exact for exact in first.exact.values()),
        "parameters": len(first.exact),
        "kind": kind_of(first),
    }


def _gap(result: MinimumSharpness) -> str:
    if not result.attained:
        return "an infimum, approached but not attained"
    if result.value <= 0 or result.lower_bound <= 0:
        return "exactly zero" if result.value == 0 else "not certified"
    return f"certified to {max(1 - result.lower_bound / result.value, 1e-16):.0e}"


def layers(results: Sequence[MinimumSharpness]) -> list[Content]:
    """Each parameter's share of the trace, before and after, in each scope."""
    return [_layers_of(result) for result in results]


def _layers_of(result: MinimumSharpness) -> Content:
    rows = [(name, result.before[name], after) for name, after in result.by_parameter.items()]
    caption = f"Trace of each parameter, scope {result.scope}"
    cells = [(name, number(a, 6), number(b, 6), _times(a, b)) for name, a, b in rows]
    total = ("total", number(result.trace, 6), number(sum(b for *_, b in rows), 6), "")
    return {
        "heading": _heading(result),
        "chart": bars(caption, rows[:SHOWN], ("as it is", "flattest")),
        "table": Table(caption, ("parameter", "as it is", "flattest", "change"), (*cells, total)),
        "shown": min(SHOWN, len(rows)),
        "count": len(rows),
    }


def _times(before: float, after: float) -> str:
    return f"{TIMES} {number(after / before, 3)}" if before > 0 else "-"


def scales(results: Sequence[MinimumSharpness]) -> list[Content]:
    """What each parameter is multiplied by in each scope, and what stays as it is."""
    return [_scales_of(result) for result in results]


def _scales_of(result: MinimumSharpness) -> Content:
    change = result.scales
    rows = [(name, *_spread(factor)) for name, factor in change.items() if name in result.by_parameter]
    if isinstance(change, Transformation):  # of a matrix, the singular values
        matrices = zip(change.frames, change.matrices, strict=True)
        rows += [(f"{frame.name}, {frame.size} x {frame.size}", *_spread(svdvals(A))) for frame, A in matrices]
    cells = [(name, *(number(value, 6) for value in spread)) for name, *spread in rows]
    head = ("parameter", "least", "geometric mean", "largest")
    return {
        "heading": _heading(result),
        "matrices": isinstance(change, Transformation) and bool(change.frames),
        "chart": ranges(f"Range of the factors, scope {result.scope}", rows[:SHOWN]),
        "table": Table(f"Factors of each parameter, scope {result.scope}", head, tuple(cells)),
        "pinned": Table("Pinned", ("parameter", "pinned by"), tuple(result.pinned.items()), text=2),
    }


def _spread(factor: Any) -> tuple[float, float, float]:
    """The least, the typical and the largest factor of a parameter."""
    if isinstance(factor, float | int):
        return float(factor), float(factor), float(factor)
    return float(factor.min()), float(factor.double().log().mean().exp()), float(factor.max())


def measures(comparison: Any) -> Content:
    """Every measure with its drift, and those that could not be taken."""
    taken = tuple(_taken(row) for row in comparison.rows if not row.error)
    failed = tuple((row.name, row.error) for row in comparison.rows if row.error)
    return {
        "taken": Table("Measures of sharpness", ("measure", "value", "drift", "invariant per", "time"), taken),
        "failed": Table("Measures that could not be taken", ("measure", "reason"), failed, text=2),
    }


def _taken(row: Any) -> tuple[str, ...]:
    error = "" if row.standard_error is None else f" ± {number(row.standard_error, 2)}"
    return row.name, number(row.value) + error, _drift(row.drift), row.invariance, f"{number(row.seconds, 2)} s"


def _drift(value: float | None) -> str:
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "∞"
    return f"{value:.1%}" if 1e-4 <= value < 10 else f"{value:.1e}"


def noise(robustness: Robustness) -> Iterator[Content]:
    """One plot for each kind of noise."""
    series = {name: [r] if isinstance(r, NoiseRobustness) else list(r) for name, r in robustness.items()}
    for kind, heading in NOISES.items():
        found = {name: r for name, results in series.items() for r in results if r.noise == kind}
        if found:
            yield {"heading": heading, **_noise_of(kind, found)}


def _noise_of(kind: str, found: Mapping[str, NoiseRobustness]) -> Content:
    labelled = all(level.accuracy is not None for r in found.values() for level in r.levels)
    what = "accuracy" if labelled else "agreement"
    lines = [
        Curve(name, tuple(_reading(v.sigma, getattr(v, what)) for v in r.levels if v.sigma is not None))
        for name, r in found.items()
    ]
    title = f"{what.capitalize()} under {kind} noise"
    trials = next(iter(found.values())).trials
    cells = tuple(
        (name, number(v.sigma, 3), _percent(v.accuracy), _percent(v.agreement), _measured(v.loss))
        for name, r in found.items()
        for v in r.levels
    )
    caption = f"{title}: means and standard errors over {trials} trials"
    return {
        "chart": curves(title, f"size of the noise ({kind})", what, lines),
        "table": Table(caption, ("network", "sigma", "accuracy", "agreement", "loss"), cells),
    }


def _reading(sigma: float, measured: Measured | None) -> Reading:
    return Reading(sigma, math.nan) if measured is None else Reading(sigma, measured.mean, measured.standard_error)


def _percent(value: Measured | None) -> str:
    return "-" if value is None else f"{value.mean:.1%} ± {value.standard_error:.1%}"


def _measured(value: Measured | None) -> str:
    return "-" if value is None else f"{number(value.mean)} ± {number(value.standard_error, 2)}"


def experiments(given: Sequence[Scatter | Results]) -> list[Content]:
    """The tables and the scatter plots of experiments, or plots alone."""
    return [_run(e) if isinstance(e, Results) else {"title": "", "tables": [], "plots": [_plot(e)]} for e in given]


def _run(results: Results) -> Content:
    section = results.experiment.section
    plots = [_plot(plot) for plot in results.experiment.plots(results)]
    return {"title": f"{section.title}: {section.heading(results)}", "tables": results.tables, "plots": plots}


def _plot(plot: Scatter) -> Content:
    cells = tuple((p.label or str(i), number(p.x, 6), number(p.y, 6)) for i, p in enumerate(plot.points, 1))
    return {
        "title": plot.title,
        "note": plot.note,
        "chart": scatter(plot),
        "table": Table(plot.title, ("point", plot.x_label, plot.y_label), cells),
    }


def certificates(results: Sequence[MinimumSharpness], checks: Mapping[str, Verification]) -> Content:
    """The bounds, and the claims that were measured afresh."""
    rows = tuple((f"scope {r.scope}", number(r.value, 12), number(r.lower_bound, 12), r.status) for r in results)
    bounds = Table("Minimum and lower bound", ("minimum", "value", "lower bound", "status"), rows)
    return {"bounds": bounds, "checks": checks}


def settings(result: MinimumSharpness, given: Mapping[str, object] | None) -> Content:
    """What was measured and how, and with which versions."""
    named: dict[str, object] = {
        "loss": result.loss,
        "samples": f"{result.samples:,}",
        "curvature": kind_of(result),
        "parameters measured": len(result.by_parameter),
        **(given or {}),
    }
    rows = tuple((name, str(value)) for name, value in named.items())
    return {
        "settings": Table("Settings", ("setting", "value"), rows, text=2),
        "versions": Table("Versions", ("part", "version"), tuple(_versions()), text=2),
    }


def _versions() -> Iterator[tuple[str, str]]:
    yield "minsharp", __version__
    for name in ("torch", "numpy", "scipy"):
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "unknown"
    yield "Python", platform.python_version()
    yield "system", f"{platform.system()} {platform.machine()}"
