"""Sharpness while a network trains: read once, measured as often as asked or as a budget of time allows."""

from array import array
from collections.abc import Sequence
from math import nan
from numbers import Real
from operator import index
from time import perf_counter
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..curvature.tolerance import checked_tolerance
from ..errors import InputError, NonFiniteError, UndefinedError
from ..losses import Criterion
from ..network.faithful import apart_now
from ..network.network import Network
from ..network.reader import read
from ..results.curvature import MatrixName
from ..subject.batches import Data, batches, first_of, held
from ..subject.model import Pattern, unwrapped
from ..subject.modes import plain_mode
from ..subject.outputs import Pick
from .catalogue import chosen
from .compare import Subject
from .registry import Measure

DEFAULT = ("trace", "minimum sharpness")
_NOTICED = 1e-4
"""Of the largest output: by how much more than when it was read a model may differ from its records."""


class Monitor:
    """Measures a model again and again on the same few samples, and returns numbers to log.

    ``monitor(step)`` returns a flat dict of floats: for every measure ``minsharp/trace`` (its value),
    ``minsharp/trace/standard_error`` (zero where it is exact; left out where a measure has none) and
    ``minsharp/trace/seconds``. It is empty where it is not the time to measure. A network that has become NaN or
    infinite has the value NaN, and so has a measure that is not defined at some weights: training goes on. The model is
    left as it was: its mode, gradients, buffers and random numbers.

    The model is read once, and its weights are followed as they change. Where modules or parameters were replaced by
    others, or a hook or an attribute makes it compute something else, it is read again.

    Args:
        model: a module, in training or not.
        probe: data as for `hessian_trace`, of which a copy is held; some measures need the targets.
        loss: a torch criterion; cross-entropy unless given.
        measures: names of registered measures.
        every: measure only at steps that this divides.
        budget: the share of the time since the monitor was made that measuring may take, as 0.05: it waits until the
            next measurement, if it takes as long as the last, stays within. The first one is made at once; what only
            happens once, reading above all, is done when the monitor is made.
        curvature, tolerance, seed, parameters, outputs, class_axis, memory: as for `hessian_trace`.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(16, 4)
    >>> monitor = Monitor(model, x, every=10)
    >>> for step in range(11):
    ...     logged = monitor(step)
    >>> list(logged)[:3]
    ['minsharp/trace', 'minsharp/trace/standard_error', 'minsharp/trace/seconds']
    >>> monitor.frame()["step"], logged["minsharp/minimum_sharpness"] <= logged["minsharp/trace"]
    ([0.0, 10.0], True)
    """

    def __init__(
        self,
        model: nn.Module,
        probe: Data,
        loss: Criterion | None = None,
        *,
        measures: Sequence[str] = DEFAULT,
        every: int = 1,
        budget: float | None = None,
        curvature: MatrixName = "hessian",
        tolerance: float = 0.0,
        seed: int = 0,
        parameters: Pattern = None,
        outputs: Pick = None,
        class_axis: int | None = None,
        memory: int | None = None,
    ) -> None:
        _check(every, budget)
        self.model = model
        self._loss, self._curvature = loss, curvature
        self._options = {
            "tolerance": checked_tolerance(tolerance),
            "seed": seed,
            "parameters": parameters,
            "memory": memory,
        }
        self._reading: dict[str, Any] = {"outputs": outputs, "class_axis": class_axis}
        self._measures, self._every, self._budget = chosen(measures), every, budget
        self._probe = pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), held(probe))
        self._network = self._read()
        self._history: dict[str, array[float]] = {"step": array("d")}
        self._calls, self._spent, self._last = 0, 0.0, 0.0
        if budget is not None:
            self._values()  # what only the first measurement does is done before the clock runs
        self._start = perf_counter()

    def __call__(self, step: int | None = None) -> dict[str, float]:
        """The numbers of this step; none if it is not the time. Without a step, calls are counted from 0."""
        step = self._calls if step is None else _whole(step)
        self._calls += 1
        return self.measure(step) if self._is_due(step) else {}

    def _is_due(self, step: int) -> bool:
        if step % self._every:
            return False
        if self._budget is None or not self._spent:
            return True
        return self._spent + self._last <= self._budget * (perf_counter() - self._start)

    def measure(self, step: int) -> dict[str, float]:
        """The numbers of this step, whatever time it is."""
        start = perf_counter()
        values = self._values()
        self._last = perf_counter() - start
        self._spent += self._last
        for name, value in {"step": step, **values}.items():
            self._history.setdefault(name, array("d", [nan] * (len(self._history["step"]) - 1))).append(value)
        for column in self._history.values():
            column.extend([nan] * (len(self._history["step"]) - len(column)))
        return values

    def _read(self) -> Network:
        module = unwrapped(self.model)
        self._parts = list(module.named_modules(remove_duplicate=False))
        self._first, _ = first_of(batches(self._probe))
        network = read(module, self._first.inputs, **self._reading)
        self._apart = apart_now(network, self._first.inputs)
        return network

    def _is_another(self) -> bool:
        """Whether the model is no longer the one that was read: by its modules, or by what it makes of the probe."""
        now = list(unwrapped(self.model).named_modules(remove_duplicate=False))
        if [(path, id(part)) for path, part in now] != [(path, id(part)) for path, part in self._parts]:
            return True
        try:
            return apart_now(self._network, self._first.inputs) > self._apart + _NOTICED
        except Exception:  # of other shapes or types than when it was read; reading it again says what is wrong
            return True

    @plain_mode()
    def _values(self) -> dict[str, float]:
        if self._is_another():
            self._network = self._read()
        entries = any(measure.uses == "diagonal" for measure in self._measures)
        subject = Subject(self._network, self._probe, self._loss, self._curvature, entries, self._options)
        values: dict[str, float] = {}
        for measure in self._measures:
            values |= _asked(subject, measure)
        return values

    def frame(self) -> dict[str, list[float]]:
        """All that was measured, as columns: ``pandas.DataFrame(monitor.frame())``."""
        return {name: column.tolist() for name, column in self._history.items()}

    def plot(self) -> Any:
        """A matplotlib figure of every measure over the steps."""
        from matplotlib.figure import Figure

        figure = Figure(layout="constrained", figsize=(6, 2.2 * len(self._measures)))
        axes = figure.subplots(len(self._measures), 1, squeeze=False, sharex=True).flatten()
        for axis, measure in zip(axes, self._measures, strict=True):
            axis.plot(self._history["step"], self._history.get(key(measure.name), array("d")), marker=".")
            axis.set(ylabel=measure.name)
        axes[-1].set(xlabel="step")
        return figure

    def __repr__(self) -> str:
        names = ", ".join(measure.name for measure in self._measures)
        return f"Monitor({type(unwrapped(self.model)).__name__}: {names}; measured {len(self._history['step'])} times)"


def _check(every: Any, budget: Any) -> None:
    """Refuse what is no rhythm."""
    if not isinstance(every, int) or every < 1:
        raise InputError(f"every={every!r}: expected a whole number of steps, 1 or more")
    if budget is not None and not (isinstance(budget, Real) and 0 < float(budget) <= 1):
        raise InputError(f"budget={budget!r}: expected a share of the time, as in budget=0.05")


def _whole(step: Any) -> int:
    """A step as a number: of Python, of NumPy, or a tensor of one."""
    try:
        return index(step)
    except TypeError:
        raise InputError(f"step={step!r}: expected a whole number, as in monitor(10)") from None


def key(name: str) -> str:
    """What a measure is logged as.

    >>> key("minimum sharpness (neuron)")
    'minsharp/minimum_sharpness_neuron'
    """
    words = "".join(c if c.isalnum() or c in "-_" else " " for c in name).split()
    return "minsharp/" + "_".join(words)


def _asked(subject: Subject, measure: Measure) -> dict[str, float]:
    """The value of a measure, its standard error and its seconds, each under its name."""
    name, start = key(measure.name), perf_counter()
    error: float | None
    try:
        value, error, seconds = subject.ask(measure)
    except (NonFiniteError, UndefinedError):
        value, error, seconds = nan, None, perf_counter() - start
    if error is None and measure.uses:  # made of curvature that is exact
        error = value - value  # zero, or NaN
    told = {} if error is None else {f"{name}/standard_error": error}
    return {name: value, **told, f"{name}/seconds": seconds}
