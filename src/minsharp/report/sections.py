"""What each section of the report shows, computed from results; how it looks is the templates' business."""

import math
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, TypeVar

from torch.linalg import cond, svdvals

from ..experiments import Results, Scatter, Table
from ..measures.minimum import MinimumSharpness
from ..measures.verify import Verification
from ..network.symmetry import FullSymmetries, Transformation
from ..results.curvature import Diagonal, Trace
from ..results.gram import Grams
from ..version import __version__
from .charts import TIMES, bars, number, ranges, scatter

KINDS = {"hessian": "Hessian", "ggn": "Gauss-Newton matrix", "jacobian": "squared Jacobian", "margin": "margin"}
SCOPES = {
    "layer": "one factor per tensor",
    "neuron": "one factor per neuron",
    "full": "one factor per tensor and a matrix per frame",
}
SHOWN = 40
"""Rows in a chart, the largest; the tables hold all."""

Row = TypeVar("Row", bound=tuple[Any, ...])
Content = dict[str, Any]
Curvature = Trace | Diagonal | Grams


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


def quantity_of(result: MinimumSharpness) -> str:
    """What is made as small as it can be."""
    return "Trace" if result.noise == "absolute" else f"Effect of noise {result.noise!r}"


def _plus_minus(error: float | None) -> str:
    return f"± {number(error, 2)}; " if error else ""


def numbers(results: Sequence[MinimumSharpness], curvature: Curvature | None) -> Content:
    """The trace, the minimum in each scope, and how much flatter that is."""
    first, best = results[0], best_of(results)
    what, error = quantity_of(first), _error_of(first, curvature)
    remark = f"of the {kind_of(first)}, as the network is: any rescaling changes it"
    tiles = [Tile(what, number(first.trace), _plus_minus(error) + remark)]
    for result in results:
        remark = f"{SCOPES[result.scope]}; {_gap(result)}"
        name = f"Minimum sharpness, {result.scope}"
        tiles.append(Tile(name, number(result.value), _plus_minus(result.standard_error) + remark))
    if best.value > 0 and math.isfinite(best.trace / best.value):
        ratio = f"{number(best.trace / best.value, 3)}{TIMES}"
        tiles.append(Tile("Flatter by", ratio, "the same outputs, other weights"))
    return {
        "tiles": tiles,
        "loss": first.loss,
        "samples": f"{first.samples:,}",
        "estimated": bool(error) or any(result.standard_error for result in results),
        "inexact": sum(not exact for exact in first.exact.values()),
        "parameters": len(first.exact),
        "kind": kind_of(first),
    }


def _error_of(result: MinimumSharpness, curvature: Curvature | None) -> float | None:
    """The standard error of the trace, if this curvature is what the minimum was made of."""
    if curvature is None or curvature.kind != result.curvature or quantity_of(result) != "Trace":
        return None
    return curvature.standard_error if math.isclose(curvature.total, result.trace, rel_tol=1e-9) else None


def _gap(result: MinimumSharpness) -> str:
    if not result.attained:
        return "an infimum, approached but not attained"
    if result.value <= 0 or result.lower_bound <= 0:
        return "exactly zero" if result.value == 0 else "not certified"
    return f"certified to {max(1 - result.lower_bound / result.value, 1e-16):.0e}"


def layers(results: Sequence[MinimumSharpness], curvature: Curvature | None) -> list[Content]:
    """Each parameter's share of the trace, before and after, in each scope."""
    return [_layers_of(result, curvature) for result in results]


def _layers_of(result: MinimumSharpness, curvature: Curvature | None) -> Content:
    rows = [(name, result.before[name], after) for name, after in result.by_parameter.items()]
    caption = f"{quantity_of(result)} of each parameter, scope {result.scope}"
    error = _error_of(result, curvature)
    errors = dict(curvature.standard_errors) if error and curvature is not None else {}
    cells = [(name, *_error(errors, name, number(a, 6)), number(b, 6), _times(a, b)) for name, a, b in rows]
    errors |= {"total": error} if error else {}
    after = number(sum(b for *_, b in rows), 6)
    total = ("total", *_error(errors, "total", number(result.trace, 6)), after, "")
    head = ("parameter", "as it is", *(("±",) if errors else ()), "flattest", "change")
    return {
        "heading": _heading(result),
        "chart": bars(caption, largest(rows, lambda row: max(row[1:])), ("as it is", "flattest")),
        "table": Table(caption, head, (*cells, total)),
        "shown": min(SHOWN, len(rows)),
        "count": len(rows),
    }


def largest(rows: Sequence[Row], size: Callable[[Row], float]) -> list[Row]:
    """As many rows as a chart shows, those of the largest size, in the order in which they came."""
    kept = sorted(range(len(rows)), key=lambda i: -size(rows[i]))[:SHOWN]
    return [rows[i] for i in sorted(kept)]


def _error(errors: Mapping[str, float], name: str, value: str) -> tuple[str, ...]:
    """A cell, and one for its standard error if there are any."""
    return (value, number(errors[name], 2)) if errors else (value,)


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
        "chart": ranges(f"Range of the factors, scope {result.scope}", largest(rows, _reach)),
        "shown": min(SHOWN, len(rows)),
        "count": len(rows),
        "table": Table(f"Factors of each parameter, scope {result.scope}", head, tuple(cells)),
        "frames": _frames(change) if isinstance(change, Transformation) else None,
        "unframed": _unframed(result.symmetries),
        "pinned": Table("Pinned", ("parameter", "pinned by"), tuple(result.pinned.items()), text=2),
    }


def _reach(row: tuple[str, float, float, float]) -> float:
    """How far from one the factors of a row go, by their logarithms."""
    return max(abs(math.log(value)) if 0 < value < math.inf else math.inf for value in row[1:])


def _frames(change: Transformation) -> Table:
    """The places for a matrix: their sizes, how far the matrix is from a rotation, and what it acts on."""
    found = zip(change.frames, change.matrices, strict=True)
    rows = [(f.name, f"{f.size} x {f.size}", number(float(cond(A)), 3), ", ".join(f.parameters)) for f, A in found]
    return Table("Frames", ("frame", "size", "condition number", "acts on"), tuple(rows), text=4)


def _unframed(group: Any) -> Table | None:
    """Why other parameters have no matrix."""
    if not isinstance(group, FullSymmetries) or not group.unframed:
        return None
    return Table("Without a frame", ("parameter", "why"), tuple(group.unframed.items()), text=2)


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
    estimated = any(result.standard_error for result in results)
    rows = tuple((f"scope {r.scope}", *_bounded(r, estimated)) for r in results)
    error = ("standard error",) if estimated else ()
    bounds = Table("Minimum and lower bound", ("minimum", "value", *error, "lower bound"), rows)
    told = tuple((f"scope {r.scope}", str(r.status)) for r in results)
    return {
        "bounds": bounds,
        "statuses": Table("What was reached", ("minimum", "status"), told, text=2),
        "checks": checks,
    }


def _bounded(result: MinimumSharpness, estimated: bool) -> tuple[str, ...]:
    error = (number(result.standard_error, 2),) if estimated else ()
    return (number(result.value, 12), *error, number(result.lower_bound, 12))


def settings(result: MinimumSharpness | None, given: Mapping[str, object] | None) -> Content:
    """What was measured and how, and with which versions."""
    measured: dict[str, object] = (
        {}
        if result is None
        else {
            "loss": result.loss,
            "samples": f"{result.samples:,}",
            "curvature": kind_of(result),
            **({} if result.noise == "absolute" else {"noise": result.noise, "biases": result.biases}),
            "parameters measured": len(result.by_parameter),
        }
    )
    rows = tuple((name, str(value)) for name, value in {**measured, **(given or {})}.items())
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
