"""One problem, measured in every way."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from statistics import fmean, stdev
from time import perf_counter

from torch import Tensor

from minsharp import Diagonal, Trace

from .clock import Runner, Timing, race, tuned
from .fresh import ask
from .methods import (
    BACKPACK,
    BARE,
    BASELINE,
    CURVLINOPS,
    DIAGONAL,
    NNGEOMETRY,
    PYHESSIAN,
    ROWS,
    TRACE,
    fitting,
)
from .models import ENTRIES, Problem, problem

TRACES = (TRACE, BACKPACK, NNGEOMETRY, BASELINE, PYHESSIAN, CURVLINOPS, BARE)
DIAGONALS = (DIAGONAL, BACKPACK, NNGEOMETRY, BASELINE, BARE)


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    seconds: float
    least: int
    most: int
    patience: float
    probes: int
    probe_seconds: float
    shrink: int = 1


FULL = Effort(seconds=20, least=3, most=31, patience=1, probes=200, probe_seconds=8)
QUICK = Effort(seconds=2, least=2, most=5, patience=0.2, probes=10, probe_seconds=2, shrink=8)


@dataclass(frozen=True)
class Probes:
    """Single values of v^T H v, relative to the exact trace."""

    drawn: int
    mean: float
    deviation: float

    @property
    def needed(self) -> int:
        """How many make the standard error of their mean 1 % of the trace."""
        return ceil((self.deviation / 0.01) ** 2)


@dataclass(frozen=True)
class Agreement:
    """Relative differences from minsharp: of the total trace, and of the whole diagonal in the Euclidean norm."""

    trace: float
    diagonal: float


@dataclass(frozen=True)
class Measured:
    """What one problem gave."""

    problem: Problem
    trace: Trace
    diagonal: Diagonal
    timings: dict[str, Timing]
    probes: Probes
    agreement: dict[str, Agreement]
    peaks: dict[str, float]

    @property
    def name(self) -> str:
        """The network's."""
        return self.problem.name

    @property
    def samples(self) -> int:
        """How many were measured."""
        return len(self.problem.x)

    @property
    def parameters(self) -> int:
        """How many numbers the network has."""
        return sum(p.numel() for p in self.problem.model.parameters())

    @property
    def rounds(self) -> int:
        """How many there were."""
        return len(self.timings[TRACE.name].seconds)

    def seconds(self, method: str) -> float:
        """The median time for the whole result, extrapolated for the baseline and for Hutchinson's estimator."""
        timing = self.timings[method]
        each = timing.typical / timing.method.units(timing.setting)
        if method == BASELINE.name:
            return each * self.parameters
        return each * (self.probes.needed if method in (PYHESSIAN.name, CURVLINOPS.name) else 1)

    def ratio(self, method: str, ours: str) -> float:
        """A method's time over one of ours."""
        return self.seconds(method) / self.seconds(ours)


def measure(name: str, effort: Effort) -> Measured:
    """Tune, race, compare the results, and ask for the peak memory of each method."""
    given = problem(name, max(2, ENTRIES[name].samples // effort.shrink), train=True)
    runners = {row.name: tuned(fitting(row, given), given, effort.patience) for row in ROWS}
    timings = race(list(runners.values()), effort.seconds, effort.least, effort.most)
    trace, diagonal = runners[TRACE.name].last, runners[DIAGONAL.name].last
    return Measured(
        given,
        trace,
        diagonal,
        dict(zip(runners, timings, strict=True)),
        draw(runners[PYHESSIAN.name], trace.total, effort),
        {peer.name: compare(trace, diagonal, runners[peer.name].last) for peer in (BACKPACK, NNGEOMETRY)},
        {row: ask("peak", name, len(given.x), r.method.name, r.setting) for row, r in runners.items()},
    )


def draw(runner: Runner, trace: float, effort: Effort) -> Probes:
    """Probes until there are enough or the time is up."""
    values: list[float] = []
    start = perf_counter()
    while len(values) < 2 or (len(values) < effort.probes and perf_counter() - start < effort.probe_seconds):
        values += [value / trace for value in runner.run()]
    return Probes(len(values), fmean(values), stdev(values))


def compare(trace: Trace, diagonal: Diagonal, theirs: dict[str, Tensor]) -> Agreement:
    """A peer's diagonal beside ours."""
    total = sum(float(d.double().sum()) for d in theirs.values())
    return Agreement(abs(total / trace.total - 1), distance(diagonal.by_parameter, theirs))


def distance(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """The Euclidean distance of two diagonals over the norm of the first."""
    squares = [(float((a - theirs[n].double()).square().sum()), float(a.square().sum())) for n, a in ours.items()]
    return float((sum(d for d, _ in squares) / sum(s for _, s in squares)) ** 0.5)
