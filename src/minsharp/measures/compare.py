"""Every measure in one table, each with how far a rescaling that changes nothing can move it."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from math import inf, isfinite
from time import perf_counter
from typing import Any

from torch import nn

from ..curvature.gram import hessian_grams
from ..curvature.hessian import hessian_diagonal, hessian_trace
from ..curvature.tolerance import checked_tolerance
from ..errors import InputError, words_of
from ..losses import Criterion
from ..network.network import Network
from ..network.reader import read
from ..network.rescale import rescale
from ..network.symmetry import Scope, tried_group
from ..progress import bar
from ..reference.objective import doubled
from ..results.curvature import Diagonal, MatrixName, Trace
from ..results.files import Saved
from ..results.gram import Grams
from ..subject.batches import Data, batches, first_of, held
from ..subject.model import copied
from ..subject.modes import eval_mode, plain_mode, seeded
from ..subject.outputs import Pick
from ..text import count, csv_cell, decimals, magnitude, number, plain_table, printable
from .catalogue import chosen
from .registry import Invariance, Measure, Shared

SPREAD = 100.0
"""Random rescalings multiply parameters by factors between 1/100 and 100."""


@dataclass(frozen=True)
class Measurement:
    """One measure: its value or why there is none, and its drift: the largest relative change under rescaling.

    ``seconds`` include the curvature that the measure shares with others. ``drift`` is None if it was not measured.
    """

    name: str
    value: float | None
    standard_error: float | None
    seconds: float
    drift: float | None
    invariance: Invariance
    error: str | None = None


_COLUMNS = ("name", "value", "standard_error", "seconds", "drift", "invariance", "error")


@dataclass(frozen=True, repr=False)
class Comparison(Saved):
    """Every measure of one network, a row each; ``table["trace"]`` is one of them."""

    rows: tuple[Measurement, ...]
    samples: int
    rescalings: int
    scope: Scope

    def __getitem__(self, name: str) -> Measurement:
        for row in self.rows:
            if row.name == name:
                return row
        raise InputError(f"no measure {name!r} in this table; there are {[row.name for row in self.rows]}")

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json."""
        rows = [{column: getattr(row, column) for column in _COLUMNS} for row in self.rows]
        return {"samples": self.samples, "rescalings": self.rescalings, "scope": self.scope, "rows": rows}

    def to_csv(self) -> str:
        """The rows as comma-separated values, under a header."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows([csv_cell(getattr(row, column)) for column in _COLUMNS] for row in self.rows)
        return text.getvalue()

    @property
    def _title(self) -> str:
        what = "elements of the whole group" if self.scope == "full" else f"rescalings per {self.scope}"
        tail = f"; drift over {self.rescalings} random {what}" if self.rescalings else ""
        return f"{len(self.rows)} measures over {count(self.samples)} samples{tail}"

    def _cells(self) -> list[tuple[str, ...]]:
        return [("measure", "value", "± s.e.", "seconds", "drift", "invariant"), *map(_cells, self.rows)]

    def __repr__(self) -> str:
        head, *rows = self._cells()
        reasons: dict[str, list[str]] = {}
        for row in self.rows:
            if row.error:
                reasons.setdefault(printable(row.error), []).append(printable(row.name))
        failures = [f"failed: {', '.join(names)}: {reason}" for reason, names in reasons.items()]
        return "\n".join([self._title, plain_table(head, rows), *failures])

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """The table as HTML, names and reasons escaped."""
        head, *body = self._cells()
        headings = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
        rows = "".join(
            f'<tr><th scope="row">{escape(cells[0])}</th>'
            + (
                f'<td colspan="5">{escape(printable(row.error))}</td>'
                if row.error
                else "".join(f"<td>{escape(cell)}</td>" for cell in cells[1:])
            )
            + "</tr>"
            for row, cells in zip(self.rows, body, strict=True)
        )
        caption = f"<caption>{escape(self._title)}</caption>"
        return f"<table>{caption}<thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(row: Measurement) -> tuple[str, ...]:
    if row.value is None:
        return printable(row.name), "failed", "", "", "", row.invariance
    error = "" if row.standard_error is None else number(row.standard_error, 2)
    return printable(row.name), number(row.value), error, decimals(row.seconds), magnitude(row.drift), row.invariance


@plain_mode()
def compare(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    measures: Sequence[str] | None = None,
    rescalings: int = 5,
    scope: Scope = "layer",
    drift_samples: int = 10,
    curvature: MatrixName = "hessian",
    outputs: Pick = None,
    class_axis: int | None = None,
    tolerance: float = 0.0,
    seed: int = 0,
    progress: bool = False,
) -> Comparison:
    """Every registered measure of one network, in one table.

    The drift of a measure is its largest relative change over random rescalings that keep the network's function: at
    the level of rounding for a measure that is invariant, and otherwise how far it can be fooled. It is measured in
    double precision on the first ``drift_samples`` samples, over as many ``rescalings`` of layers (or of neurons:
    ``scope="neuron"``; or of layers, with invertible matrices in all frames: ``scope="full"``). A measure that
    fails has the reason in its row, and the others stand.

    Args:
        model: a module, or a network that `read` returned; left as it was.
        data: as for `hessian_trace`; some measures need the targets.
        loss: a torch criterion; cross-entropy unless given.
        measures: names of registered measures; all of them unless given.
        rescalings: how many random rescalings; 0 leaves the drift out.
        scope: "layer", "neuron" or "full", of the rescalings.
        drift_samples: how many samples the drift is measured on.
        curvature: "hessian", or "ggn" where the network is not piecewise linear.
        outputs, class_axis, tolerance: as for `hessian_trace`. The drift is measured without an error.
        seed: of the rescalings, and of the signs that a tolerance asks for.
        progress: show a progress bar.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> table = compare(model, torch.randn(16, 4), measures=["trace", "minimum sharpness"])
    >>> table["trace"].drift > 1, table["minimum sharpness"].drift < 1e-9
    (True, True)
    """
    wanted = chosen(measures)
    if not isinstance(rescalings, int) or rescalings < 0:
        raise InputError(f"rescalings={rescalings!r}: expected a whole number, 0 or more")
    if drift_samples < 1:
        raise InputError(f"drift_samples={drift_samples!r}: expected 1 or more")
    stream = held(data)
    first, _ = first_of(batches(stream))
    network = read(model, first.inputs, outputs=outputs, class_axis=class_axis)
    tolerance = checked_tolerance(tolerance)
    seeded(seed)
    entries = any(measure.uses == "diagonal" for measure in wanted)
    subject = Subject(network, stream, loss, curvature, entries, {"tolerance": tolerance, "seed": seed})
    others = _rescaled(subject, rescalings, scope, drift_samples, seed)
    with bar("measures", len(wanted) * (1 + len(others)), progress) as advance:
        rows = tuple(_row(measure, subject, others, advance) for measure in wanted)
    samples = sum(len(batch) for batch in batches(stream))
    return Comparison(rows, samples, max(len(others) - 1, 0), scope)


@dataclass(frozen=True)
class Subject:
    """A network with its data: what measures are asked about. The curvature is computed once, or fails once.

    ``entries`` says whether some measure wants the diagonal: then the traces are those that it adds up to. ``options``
    are those of `hessian_trace`.
    """

    network: Network
    data: list[tuple[Any, ...]]
    loss: Criterion | None
    curvature: MatrixName
    entries: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def labelled(self) -> bool:
        """Whether there are targets throughout."""
        return all(len(batch) == 2 for batch in self.data)

    def _measured(self, find: Callable[..., Any], curvature: MatrixName) -> tuple[Any, float]:
        """A result, or why there is none, and the seconds that it took."""
        start = perf_counter()
        try:
            result = find(self.network, self.data, self.loss, curvature=curvature, **self.options)
        except Exception as error:  # whatever it is, it goes into the rows that need it
            result = error
        return result, perf_counter() - start

    @cached_property
    def trace(self) -> tuple[Trace | Exception, float]:
        """The traces, or why there are none, and the seconds that they took."""
        if not self.entries:
            return self._measured(hessian_trace, self.curvature)
        found, seconds = self.diagonal
        return (found if isinstance(found, Exception) else found.trace), seconds

    @cached_property
    def diagonal(self) -> tuple[Diagonal | Exception, float]:
        """The diagonal, likewise."""
        return self._measured(hessian_diagonal, self.curvature)

    @cached_property
    def jacobian(self) -> tuple[Diagonal | Exception, float]:
        """That of the centred outputs, likewise."""
        return self._measured(hessian_diagonal, "jacobian")

    @cached_property
    def margin(self) -> tuple[Diagonal | Exception, float]:
        """That of the margins, likewise."""
        return self._measured(hessian_diagonal, "margin")

    @cached_property
    def grams(self) -> tuple[Grams | Exception, float]:
        """The Gram matrices of frames, likewise."""
        return self._measured(hessian_grams, self.curvature)

    @cached_property
    def jacobian_grams(self) -> tuple[Grams | Exception, float]:
        """Those of the centred outputs, likewise."""
        return self._measured(hessian_grams, "jacobian")

    def ask(self, measure: Measure) -> tuple[float, float | None, float]:
        """Value, standard error and seconds."""
        if measure.needs_labels and not self.labelled:
            raise InputError("needs labels: pass data=(inputs, targets)")
        shared, seconds = self._shared(measure.uses)
        start = perf_counter()
        with eval_mode(self.network.module):
            model = self.network if measure.reads else self.network.module
            result = measure.function(model, self.data, self.loss, **shared)
        seconds += perf_counter() - start
        error = getattr(result, "standard_error", None)
        value: Any = getattr(result, "value", result)
        return float(value), float(error) if error else None, seconds

    def _shared(self, name: Shared | None) -> tuple[dict[str, Any], float]:
        if name is None:
            return {}, 0.0
        found, seconds = getattr(self, name)
        if isinstance(found, Exception):
            raise found
        return {name: found}, seconds


def _rescaled(subject: Subject, rescalings: int, scope: Scope, samples: int, seed: int) -> list[Subject]:
    """The network in double precision on a few samples, as it is and rescaled; nothing if it cannot be rescaled."""
    if not rescalings:
        return []
    network = subject.network
    frozen = [name for name, parameter in network.parameters.items() if not parameter.requires_grad]
    symmetries = tried_group(network.graph, network.module, scope, frozen)
    if not symmetries.dimension:
        return []
    module = copied(network.module).double()
    few = _first(subject.data, samples)
    double = read(module, few[0][0], class_axis=network.class_axis)
    elements = [symmetries.random(seed + k, SPREAD) for k in range(rescalings)]
    networks = [double, *(replace(double, module=rescale(module, scales)) for scales in elements)]
    given = replace(subject, data=few, loss=doubled(subject.loss), options={})
    return [replace(given, network=one) for one in networks]


def _first(data: list[tuple[Any, ...]], samples: int) -> list[tuple[Any, ...]]:
    """The first samples, in double precision."""
    result: list[tuple[Any, ...]] = []
    for batch in batches(data):
        part = batch.part(0, samples)
        samples -= len(part)
        result.append(part.double().given)
        if samples <= 0:
            break
    return result


def _row(measure: Measure, subject: Subject, others: list[Subject], advance: Callable[[int], None]) -> Measurement:
    start = perf_counter()
    try:
        value, error, seconds = subject.ask(measure)
    except Exception as reason:  # one measure's failure must not take the table with it
        advance(1 + len(others))
        return Measurement(measure.name, None, None, perf_counter() - start, None, measure.invariance, _reason(reason))
    advance(1)
    return Measurement(measure.name, value, error, seconds, _drift(measure, others, advance), measure.invariance)


def _reason(error: Exception) -> str:
    text = words_of(error).strip() or type(error).__name__
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"


def _drift(measure: Measure, others: list[Subject], advance: Callable[[int], None]) -> float | None:
    values = []
    for other in others:
        try:
            values.append(other.ask(measure)[0])
        except Exception:  # so far away that it cannot even be computed
            values.append(inf)
        advance(1)
    if not values or not isfinite(values[0]):
        return None
    start, *rest = values
    return max(0.0 if value == start else abs(value - start) / abs(start) if start else inf for value in rest)
