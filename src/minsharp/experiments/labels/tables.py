"""Means for every ratio, and the measures ranked: for the terminal, the page and `summary.json`."""

from statistics import fmean
from typing import Any

from .. import published
from ..experiment import Results
from ..statistics import STATISTICS, TITLES, ranked
from ..tables import Table, number
from .analysis import Analysis
from .networks import LOSS


def tables(results: Results) -> list[Table]:
    """Two for each network."""
    return [
        table
        for model in results.models
        for table in (_ratio_table(results, model), _correlation_table(results.analysis, model))
    ]


def _ratio_table(results: Results, model: str) -> Table:
    """Means over the seeds for every ratio, with the published ones."""
    known = published.MEANS.get(published.SIBLINGS.get(model, model), {})
    columns = ("train accuracy", "test accuracy", "gap", LOSS, "minimum sharpness")
    present = [c for c in columns if c in results.rows[0]]
    own = [row for row in results.rows if row["model"] == model]
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


def _correlation_table(analysis: Analysis, model: str) -> Table:
    """The measures of one model, best tau first, each with the published number beside ours where there is one."""
    own = sorted((c for c in analysis.correlations if c.model == model), key=lambda c: _descending(c.kendall.value))
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


def summary(results: Results) -> dict[str, Any]:
    """The correlations, and the names of the measures by tau and by partial tau, best first."""
    found = results.analysis.correlations
    return {
        "networks compared": len(results.analysis.compared),
        "correlations": [c.to_dict() for c in found],
        "ranking": {
            model: {name: [c.measure for c in ranked(found, model, name)] for name in ("kendall", "partial")}
            for model in results.models
        },
    }
