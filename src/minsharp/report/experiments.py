"""What results say: tables and summaries computed from the rows of a `results.csv` and nothing else."""

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ..experiments import published
from ..experiments.approximations import EXACT
from ..experiments.cells import TIMING, Row
from ..experiments.labels import LOSS
from ..experiments.statistics import STATISTICS, TITLES, Correlation, correlations
from ..extras import required
from ..files import write_bytes, write_text
from .rows import Kind, computed_from, kind, read_rows, read_settings
from .tables import Table, number

_NOT_MEASURES = {
    *("preset", "protocol", "model", "ratio", "seed", "epochs", "steps", "reached"),
    *("train accuracy", "test accuracy", "gap", "test loss", "errors"),
}


def measures(rows: Sequence[Row]) -> list[str]:
    """The columns that hold measures."""
    return [name for name in rows[0] if name not in _NOT_MEASURES and not name.endswith(TIMING)]


def compared(rows: Sequence[Row]) -> list[Row]:
    """The networks that go into correlations: at equal loss, only those that got there."""
    return [row for row in rows if row["protocol"] != "loss" or row["reached"]]


def label_correlations(rows: Sequence[Row]) -> list[Correlation]:
    """Every measure against the gap."""
    return correlations(compared(rows), measures(rows))


def correlation_table(found: Sequence[Correlation], model: str) -> Table:
    """The measures of one model, best tau first, each with the published number below ours where there is one."""
    own = sorted((c for c in found if c.model == model), key=lambda c: _descending(c.kendall.value))
    rows = []
    for c in own:
        cells = []
        for name in STATISTICS:
            known = published.correlation(model, c.measure, name)
            cells.append(f"{getattr(c, name)}" + ("" if known is None else f" ({known:.2f})"))
        rows.append((c.measure, *cells, number(c.with_loss, 2)))
    networks = max((c.networks for c in own), default=0)
    like = published.SIBLINGS.get(model)
    beside = f"published, for {like}, in brackets" if like else "published in brackets"
    head = ("measure", *(TITLES[name] for name in STATISTICS), "tau with the loss")
    return Table(f"{model}: correlation with the gap over {networks} networks ({beside})", head, tuple(rows))


def _descending(value: float) -> float:
    return float("inf") if value != value else -value


def ratio_table(rows: Sequence[Row], model: str) -> Table:
    """Means over the seeds for every ratio, with the published ones."""
    known = published.MEANS.get(published.SIBLINGS.get(model, model), {})
    columns = ("train accuracy", "test accuracy", "gap", LOSS, "minimum sharpness")
    present = [c for c in columns if c in rows[0]]
    own = [row for row in rows if row["model"] == model]
    lines = []
    for ratio in sorted({row["ratio"] for row in own}):
        at = [row for row in own if row["ratio"] == ratio]
        cells = []
        for column in present:
            beside = known.get(column, {}).get(ratio)
            mean = fmean(float(row[column]) for row in at)
            cells.append(number(mean) + ("" if beside is None else f" ({beside:g})"))
        reached = sum(bool(row["reached"]) for row in at)
        lines.append((f"{ratio:g}", str(len(at)), *cells, f"{reached} of {len(at)}"))
    head = ("ratio", "networks", *present, "reached")
    return Table(f"{model}: means over the networks of each ratio (published in brackets)", head, tuple(lines))


def trace_table(rows: Sequence[Row]) -> Table:
    """Median seconds and the largest differences, beside the published seconds, which are means."""
    lines = []
    for (model, n), own in _groups(rows, "model", "samples"):
        typical = {c: median(row[f"{c} seconds"] for row in own) for c in ("trace", "diagonal", "baseline")}
        slow = published.SECONDS.get((model, "baseline"), {}).get(n)
        fast = published.SECONDS.get((model, "proposal"), {}).get(n)
        lines.append(
            (
                model,
                str(n),
                str(len(own)),
                *(f"{max(row[f'{c} relative difference'] for row in own):.1e}" for c in ("trace", "diagonal")),
                *(number(seconds) for seconds in typical.values()),
                number(typical["baseline"] / typical["trace"]),
                *(number(fast), number(slow), number(published.speed_up(model, n))),
            )
        )
    head = (
        *("network", "n", "seeds", "trace: worst difference", "diagonal: worst difference"),
        *("trace, s", "diagonal, s", "baseline, s", "speed-up"),
        *("paper's method, s", "paper's baseline, s", "paper's speed-up"),
    )
    title = f"Tr[H] and DIAG[H] against double backpropagation, medians over seeds, {_data(rows)}"
    return Table(title, head, tuple(lines))


def approximation_table(rows: Sequence[Row]) -> Table:
    """Mean errors and seconds of the exact method and, for each approximation, of its most probes."""
    lines = []
    for (model, n), own in _groups(rows, "model", "samples"):
        for method in dict.fromkeys(row["method"] for row in own):
            most = max(row["probes"] for row in own if row["method"] == method)
            at = [row for row in own if row["method"] == method and row["probes"] == most]
            means = [fmean(row[c] for row in at) for c in ("error", "relative error", "seconds")]
            probes = "" if method == EXACT else str(most)
            lines.append((model, method, str(n), probes, *(number(m) for m in means)))
    head = ("network", "method", "n", "probes", "error", "relative error", "seconds")
    title = f"DIAG[H]: error in the Euclidean norm against time, means over seeds, {_data(rows)}"
    return Table(title, head, tuple(lines), text=2)


def _data(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(str(row["data"]) for row in rows))


def _groups(rows: Sequence[Row], *names: str) -> list[tuple[tuple[Any, ...], list[Row]]]:
    keys = dict.fromkeys(tuple(row[name] for name in names) for row in rows)
    return [(key, [row for row in rows if tuple(row[name] for name in names) == key]) for key in keys]


def models(rows: Sequence[Row]) -> list[str]:
    """The models of a table, in its order."""
    return list(dict.fromkeys(str(row["model"]) for row in rows))


def tables(rows: Sequence[Row]) -> list[Table]:
    """Everything worth a table."""

    def labels(rows: Sequence[Row]) -> list[Table]:
        found = label_correlations(rows)
        return [t for m in models(rows) for t in (ratio_table(rows, m), correlation_table(found, m))]

    makers: Mapping[Kind, Callable[[Sequence[Row]], list[Table]]] = {
        "labels": labels,
        "trace": lambda rows: [trace_table(rows)],
        "approximations": lambda rows: [approximation_table(rows)],
    }
    return makers[kind(rows)](rows)


def summary(rows: Sequence[Row], settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Settings, versions, seeds, and what was computed from the rows."""
    result: dict[str, Any] = {
        "experiment": kind(rows),
        "settings": settings,
        "versions": {name: version(name) for name in ("minsharp", "torch", "numpy", "scipy")},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "models": models(rows),
        "seeds": sorted({row["seed"] for row in rows}),
        "rows": len(rows),
    }
    if result["experiment"] == "labels":
        found = label_correlations(rows)
        result["networks compared"] = len(compared(rows))
        result["correlations"] = [c.to_dict() for c in found]
        result["ranking"] = {
            model: {
                name: [c.measure for c in ranked(found, model, name)]  # best first, those without a value left out
                for name in ("kendall", "partial")
            }
            for model in models(rows)
        }
    else:
        result["tables"] = [{"title": t.title, "head": t.head, "rows": t.rows} for t in tables(rows)]
    return result


def ranked(found: Sequence[Correlation], model: str, statistic: str) -> list[Correlation]:
    """The measures of a model that have the statistic, highest first."""
    own = [c for c in found if c.model == model and getattr(c, statistic).value == getattr(c, statistic).value]
    return sorted(own, key=lambda c: -float(getattr(c, statistic).value))


def write_outputs(out: str | Path) -> list[Path]:
    """Make summary and figures of a folder again, from its `results.csv`; all are made before any is written."""
    required("matplotlib", "drawing figures")
    from .figures import drawn

    out = Path(out)
    rows, settings = read_rows(out / "results.csv"), out / "settings.json"
    known = read_settings(settings) if settings.exists() else None
    with computed_from(out):
        figures = drawn(rows)
        text = json.dumps(summary(rows, known), indent=2, allow_nan=False) + "\n"
    written = [write_text(out / "summary.json", text)]
    return [*written, *(write_bytes(out / name, content) for name, content in figures.items())]
