"""What is computed from the networks once: every measure against the gap."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..plan import TIMING, ResultRow
from ..statistics import Correlation, correlations

_NOT_MEASURES = {
    *("preset", "protocol", "model", "ratio", "seed", "epochs", "steps", "reached"),
    *("train accuracy", "test accuracy", "gap", "test loss", "errors"),
}


@dataclass(frozen=True)
class Analysis:
    """The measures, the networks that are compared by them, and the correlations over those."""

    measures: tuple[str, ...]
    compared: tuple[ResultRow, ...]
    correlations: tuple[Correlation, ...]


def analyse(rows: Sequence[ResultRow]) -> Analysis:
    """Every measure against the gap; at equal loss, over the networks that got there."""
    measures = tuple(name for name in rows[0] if name not in _NOT_MEASURES and not name.endswith(TIMING))
    compared = tuple(row for row in rows if row["protocol"] != "loss" or row["reached"])
    return Analysis(measures, compared, tuple(correlations(compared, measures)))
