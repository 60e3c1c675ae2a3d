"""How well a measure ranks networks by their gap: correlations, and what is left of them given the training loss.

Resamples of the networks are vectors of counts w, one row per resample. Every statistic is then a few matrix products:
the sum over pairs of a resample is w^T P w, with P the table of pairs of the networks themselves.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

STATISTICS = ("pearson", "spearman", "kendall", "partial")
TITLES = {
    "pearson": "Pearson",
    "spearman": "Spearman",
    "kendall": "Kendall tau",
    "partial": "partial tau given the loss",
}
RESAMPLES = 2000
LEVEL = 0.95
_ENOUGH = 3


@dataclass(frozen=True)
class Interval:
    """A statistic with the bounds of its bootstrap interval; NaN where it is not defined."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if np.isnan(self.value):
            return "-"
        bounds = "" if np.isnan(self.low) else f" [{self.low:.2f}, {self.high:.2f}]"
        return f"{self.value:.2f}{bounds}"


@dataclass(frozen=True)
class Correlation:
    """One measure against the gap, over the networks of one model."""

    model: str
    measure: str
    networks: int
    pearson: Interval
    spearman: Interval
    kendall: Interval
    partial: Interval
    """Kendall's tau with the gap given the training loss; not defined for the training loss itself."""
    with_loss: float
    """Kendall's tau with the training loss."""

    def to_dict(self) -> dict[str, Any]:
        """Plain Python, with nothing where a number is not defined."""
        intervals = {name: getattr(self, name) for name in STATISTICS}
        return {
            "model": self.model,
            "measure": self.measure,
            "networks": self.networks,
            **{name: {k: _number(getattr(i, k)) for k in ("value", "low", "high")} for name, i in intervals.items()},
            "kendall with the training loss": _number(self.with_loss),
        }


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def correlate(
    model: str,
    measure: str,
    values: Sequence[float] | Array,
    gap: Sequence[float] | Array,
    loss: Sequence[float] | Array,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Correlation:
    """All statistics of one measure; networks where it is not finite are left out."""
    table = np.array([values, gap, loss], dtype=np.float64)
    x, y, z = table[:, np.isfinite(table).all(0)]
    intervals = dict(zip(STATISTICS, _intervals(x, y, z, resamples, seed), strict=True))
    whole = np.ones((1, len(x)))
    return Correlation(model, measure, len(x), **intervals, with_loss=float(_kendall(x, z, whole)[0]))


def _intervals(x: Array, y: Array, z: Array, resamples: int, seed: int) -> Iterator[Interval]:
    n = len(x)
    if n < _ENOUGH:
        yield from [Interval(np.nan, np.nan, np.nan)] * len(STATISTICS)
        return
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)
    w = np.concatenate([np.ones((1, n)), drawn])
    tau = _kendall(x, y, w)
    partial = _partial(tau, _kendall(x, z, w), _kendall(y, z, w))
    for found in (_pearson(x, y, w), _pearson(_ranks(x, w), _ranks(y, w), w), tau, partial):
        yield _percentiles(found)


def _percentiles(found: Array) -> Interval:
    """The statistic of the networks as they are comes first, the resamples after it."""
    value, others = float(found[0]), found[1:][np.isfinite(found[1:])]
    if np.isnan(value) or not len(others):
        return Interval(value, np.nan, np.nan)
    low, high = np.quantile(others, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high))


def _pairs(w: Array, table: Array) -> Array:
    """w^T table w for every row w."""
    return np.einsum("bi,bi->b", w @ table, w)


def _ratio(above: Array, squared_below: Array) -> Array:
    """above / sqrt(squared_below), NaN where that is nothing: a constant column."""
    tiny = 1e-12 * np.maximum(1.0, np.abs(above))
    below = np.sqrt(np.where(squared_below > tiny**2, squared_below, np.nan))
    return np.clip(above / below, -1.0, 1.0)


def _kendall(x: Array, y: Array, w: Array) -> Array:
    """Tau-b of every resample."""
    signs_x, signs_y = np.sign(x[:, None] - x), np.sign(y[:, None] - y)
    untied = _pairs(w, np.abs(signs_x)) * _pairs(w, np.abs(signs_y))
    return _ratio(_pairs(w, signs_x * signs_y), untied)


def _partial(xy: Array, xz: Array, yz: Array) -> Array:
    """Kendall's partial tau of x and y given z; NaN where x or y ranks exactly as z does."""
    return _ratio(xy - xz * yz, (1 - xz**2) * (1 - yz**2))


def _pearson(x: Array, y: Array, w: Array) -> Array:
    """The correlation coefficient of every resample; x and y are columns, or one row per resample."""
    total = w.sum(1, keepdims=True)

    def centred(v: Array) -> Array:
        v = np.broadcast_to(v, w.shape)
        scale = np.abs(v).max() or 1.0
        v = v / scale
        v = v - (w * v).sum(1, keepdims=True) / total
        return np.where(np.abs(v) > 1e-14, v, 0.0)

    a, b = centred(x), centred(y)
    return _ratio((w * a * b).sum(1), (w * a * a).sum(1) * (w * b * b).sum(1))


def _ranks(x: Array, w: Array) -> Array:
    """The rank of every network among those of each resample, ties sharing theirs."""
    below, equal = (x[None] < x[:, None]).astype(np.float64), (x[None] == x[:, None]).astype(np.float64)
    return w @ below.T + (w @ equal.T + 1) / 2


def correlations(
    rows: Sequence[Mapping[str, Any]], measures: Sequence[str], loss: str = "training loss", gap: str = "gap"
) -> list[Correlation]:
    """Every measure against the gap, model by model."""
    found = []
    for model in dict.fromkeys(str(row["model"]) for row in rows):
        own = [row for row in rows if row["model"] == model]
        for measure in measures:
            columns = [[_float(row[name]) for row in own] for name in (measure, gap, loss)]
            found.append(correlate(model, measure, *columns))
    return found


def _float(value: float | None) -> float:
    return np.nan if value is None else float(value)


def ranked(found: Sequence[Correlation], model: str, statistic: str) -> list[Correlation]:
    """The measures of a model that have the statistic, highest first."""
    own = [c for c in found if c.model == model and not np.isnan(getattr(c, statistic).value)]
    return sorted(own, key=lambda c: -float(getattr(c, statistic).value))


def named(found: Sequence[Correlation], model: str, measure: str) -> Correlation | None:
    """The correlation of one measure of one model, if it is there."""
    return next((c for c in found if c.model == model and c.measure == measure), None)
