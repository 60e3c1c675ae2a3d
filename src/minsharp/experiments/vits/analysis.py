"""What is computed from the networks once: every measure against the gap, and how far the whole group moves it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import median

from ..plan import ResultRow
from ..statistics import Correlation, correlate

DRIFT = "drift of "
STANDS = 1e-6
"""A drift below this is rounding."""


@dataclass(frozen=True)
class Standing:
    """One measure: its drift, and its correlations with the gap and with the test loss."""

    measure: str
    drift: float
    """The median over the networks; of each, the largest over some elements of the whole group."""
    gap: Correlation
    """The partial tau is given the training loss."""
    given_size: Correlation
    """With the gap, the partial tau given the number of weights."""
    test_loss: Correlation

    @property
    def stands(self) -> bool:
        """Whether no element moves it."""
        return self.drift < STANDS


@dataclass(frozen=True)
class Analysis:
    """The networks that are compared, and the measures, highest tau first."""

    compared: tuple[ResultRow, ...]
    standings: tuple[Standing, ...]


def analyse(rows: Sequence[ResultRow]) -> Analysis:
    """Over the networks that got to the training loss."""
    names = [name.removeprefix(DRIFT) for name in rows[0] if name.startswith(DRIFT)]
    compared = tuple(row for row in rows if row["reached"])
    found = [_standing(name, compared) for name in names]
    return Analysis(compared, tuple(sorted(found, key=lambda s: -_or(s.gap.kendall.value, -2.0))))


def _or(value: float, otherwise: float) -> float:
    return otherwise if value != value else value


def _standing(name: str, rows: Sequence[ResultRow]) -> Standing:
    values, gap, test, loss, size = (
        [_number(row[column]) for row in rows] for column in (name, "gap", "test loss", "training loss", "weights")
    )
    drifts = [d for d in (_number(row[DRIFT + name]) for row in rows) if d == d]
    return Standing(
        name,
        median(drifts) if drifts else nan,
        correlate("ViT", name, values, gap, loss),
        correlate("ViT", name, values, gap, size),
        correlate("ViT", name, values, test, size),
    )


def _number(value: float | None) -> float:
    return nan if value is None else float(value)


def finite(row: ResultRow, name: str) -> bool:
    """Whether a row has a number for a measure."""
    return row[name] is not None and isfinite(row[name])
