"""The section on noise: what was measured with random draws or by rounding, beside what was predicted without."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..experiments import Table
from ..measures.bits import BitAllocation
from ..measures.noise import KeptBits
from ..measures.predicted import PredictedAccuracy
from ..measures.robustness import Measured, NoiseRobustness
from .charts import Chart, Curve, Reading, curves, number, plain_curves

Robustness = Mapping[str, NoiseRobustness | Sequence[NoiseRobustness]]
Predictions = Mapping[str, PredictedAccuracy | Sequence[PredictedAccuracy]]
Content = dict[str, Any]
MIXED = "bits by parameter"
NOISES = {
    "absolute": "Absolute noise: every weight moves by sigma",
    "relative": "Relative noise: every weight moves by sigma times the root mean square of its tensor",
    "max": "Noise of a tensor's largest weight: every weight moves by sigma times it",
    "max-per-channel": "Noise of a channel's largest weight: every weight moves by sigma times it",
    "pcm": "Phase-change memory: sigma times what programming the weights does",
}
ROUNDINGS = {
    "max": "Rounded to nearest, one scale per tensor",
    "max-per-channel": "Rounded to nearest, one scale per output channel",
}


class Row(NamedTuple):
    """One network under one size of noise, measured or predicted."""

    network: str
    noise: str
    predicted: bool
    rounded: bool
    x: float
    """Sigma, or the number of bits; NaN where it has no place on the axis."""
    size: str
    accuracy: Measured | None
    agreement: Measured | None
    loss: Measured | None
    trials: int


def noise(
    robustness: Robustness | None, predictions: Predictions | None, allocation: BitAllocation | None
) -> list[Content]:
    """One plot for each kind of noise, and for each kind of rounding."""
    rows = [*_measured(robustness or {}, allocation), *_predicted(predictions or {}, allocation)]
    return [*_kinds(rows, rounded=False), *_kinds(rows, rounded=True)]


def _kinds(rows: Sequence[Row], *, rounded: bool) -> Iterator[Content]:
    for kind, heading in (ROUNDINGS if rounded else NOISES).items():
        found = [row for row in rows if row.noise == kind and row.rounded == rounded]
        if found:
            yield {"heading": heading, **_shown(kind, found, rounded)}


def _measured(robustness: Robustness, allocation: BitAllocation | None) -> Iterator[Row]:
    for name, given in robustness.items():
        for result in [given] if isinstance(given, NoiseRobustness) else given:
            for v in result.levels:
                where = _place(v.sigma if v.bits is None else None, v.bits, allocation)
                yield Row(name, result.noise, False, *where, v.accuracy, v.agreement, v.loss, result.trials)


def _predicted(predictions: Predictions, allocation: BitAllocation | None) -> Iterator[Row]:
    for name, given in predictions.items():
        for p in [given] if isinstance(given, PredictedAccuracy) else given:
            sigma = 1.0 if p.noise == "pcm" and p.sigma is None else p.sigma
            where = _place(sigma if p.bits is None else None, p.bits, allocation)
            accuracy = None if p.accuracy is None else Measured(p.accuracy, 0.0)
            yield Row(name, p.noise, True, *where, accuracy, Measured(p.agreement, 0.0), None, 0)


def _place(sigma: float | None, bits: KeptBits | None, allocation: BitAllocation | None) -> tuple[bool, float, str]:
    """Whether weights are rounded, where that is along the axis, and what it is called."""
    if isinstance(bits, Mapping):
        known = allocation is not None and dict(allocation.bits) == dict(bits)
        mean = allocation.mean_bits if allocation is not None and known else math.nan
        return True, mean, MIXED if math.isnan(mean) else f"{MIXED}, {number(mean, 3)} in the mean"
    if bits is not None:
        return True, float(bits), f"{bits} bits"
    value = math.nan if sigma is None else sigma
    return False, value, number(value, 3)


def _shown(kind: str, rows: Sequence[Row], rounded: bool) -> Content:
    what = "accuracy" if all(row.accuracy is not None for row in rows) else "agreement"
    title = f"{what.capitalize()} {'after rounding' if rounded else 'under noise'}, {kind}"
    trials = max(row.trials for row in rows)
    means = "" if rounded or not trials else f": means and standard errors over {trials} trials"
    head = ("network", "bits" if rounded else "sigma", "accuracy", "agreement", "loss")
    return {
        "chart": _chart(title, kind, what, rows, rounded),
        "table": Table(title + means, head, tuple(map(_cells, rows))),
        "compared": any(row.predicted for row in rows) and not all(row.predicted for row in rows),
    }


def _chart(title: str, kind: str, what: str, rows: Sequence[Row], rounded: bool) -> Chart:
    keys = dict.fromkeys((row.network, row.predicted) for row in rows)
    lines = [
        Curve(name, tuple(_reading(row, what) for row in rows if (row.network, row.predicted) == key), predicted)
        for key in keys
        for name, predicted in [key]
    ]
    if rounded:
        return plain_curves(title, "bits per weight", what, lines, share=True)
    return curves(title, f"size of the noise ({kind})", what, lines)


def _reading(row: Row, what: str) -> Reading:
    value: Measured | None = getattr(row, what)
    return Reading(row.x, math.nan) if value is None else Reading(row.x, value.mean, value.standard_error)


def _cells(row: Row) -> tuple[str, ...]:
    name = f"{row.network}, predicted" if row.predicted else row.network
    return name, row.size, _percent(row.accuracy), _percent(row.agreement), _number(row.loss)


def _percent(value: Measured | None) -> str:
    if value is None:
        return "-"
    return f"{value.mean:.1%} ± {value.standard_error:.1%}" if value.standard_error else f"{value.mean:.1%}"


def _number(value: Measured | None) -> str:
    if value is None:
        return "-"
    error = f" ± {number(value.standard_error, 2)}" if value.standard_error else ""
    return number(value.mean) + error
