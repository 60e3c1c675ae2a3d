"""`python -m benchmarks.estimates`: a thousand classes exactly, `tolerance=0.01`, and others to the same error.

Exact trace and estimate take turns in one process. Hutchinson, Hutch++ and XTrace are timed per product with the
curvature matrix; how many products they need follows from the spread of their results about the exact trace.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count as counter
from math import ceil, sqrt
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch
from curvlinops import GGNLinearOperator, hutchpp_trace, xtrace
from rich.console import Console
from skerch.algorithms import xhutchpp
from torch import Tensor, nn

import minsharp
from minsharp.text import count, duration, percent, times

from .clock import race, tuned
from .machine import machine
from .methods import BARE, TRACE, Method, Run
from .models import Problem, problem, thousand_classes
from .peers import pyhessian_probes
from .report import PAGE, Table, put

TOLERANCE = 0.01
LEAST_GAIN = 50
"""How many times fewer seconds than others, to the same error."""
SHARE = 0.65
"""Of the K - 1 bare backprops, with a thousand classes."""


@dataclass(frozen=True)
class Entry:
    """A problem, how many times faster than exact the estimate has to be, and products for a peer to be tried with."""

    build: Callable[[], Problem]
    gain: int
    ladder: Sequence[int] = ()


ENTRIES = {
    "ResNet-18": Entry(thousand_classes, 30, (12,)),
    "MLP, n=1000": Entry(partial(problem, "MLP", 1000, train=True), 3, (12, 48)),
    "MLP, n=10,000": Entry(partial(problem, "MLP", 10_000, train=True), 6),
}


def estimating(found: list[minsharp.Trace]) -> Method:
    """By minsharp to the tolerance, with other random signs in every call; what it finds goes into a list."""

    def prepare(given: Problem, _setting: int) -> Run:
        network, seeds = minsharp.read(given.model, given.x), counter()

        def run() -> None:
            found.append(minsharp.hessian_trace(network, given.x, tolerance=TOLERANCE, seed=next(seeds)))

        return run

    return Method("estimate", prepare)


def forward_pass(given: Problem, _setting: int) -> Run:
    """What any estimate costs that looks at every sample."""

    @torch.no_grad()
    def run() -> None:
        given.model(given.x)

    return run


FORWARD = Method("forward pass", forward_pass)


@dataclass(frozen=True)
class Raced:
    """Seconds for the exact trace, the estimate, a forward pass and, for a thousand classes, the bare backprops."""

    given: Problem
    exact: float
    trace: float
    seconds: float
    bare: float | None
    forward: float
    found: Sequence[minsharp.Trace]

    @property
    def stated(self) -> float:
        """The relative standard error that the estimates give themselves."""
        return fmean(t.standard_error / t.total for t in self.found)

    @property
    def actual(self) -> float:
        """The root of the mean squared relative error."""
        return sqrt(fmean((t.total / self.trace - 1) ** 2 for t in self.found))


def raced(entry: Entry, budget: float) -> Raced:
    """Rounds in which each has its turn."""
    given, found = entry.build(), list[minsharp.Trace]()
    bare = given.name.startswith("ResNet")
    batches = Method(BARE.name, BARE.prepare, lambda p: (len(p.x),))
    methods = [TRACE, estimating(found), FORWARD, *([batches] if bare else [])]
    runners = [tuned(method, given, patience=1) for method in methods]
    timings = race(runners, budget, least=3, most=15)
    last = timings[3].typical if bare else None
    trace = runners[0].last.total
    return Raced(given, timings[0].typical, trace, timings[1].typical, last, timings[2].typical, found)


def classes_table(found: Raced) -> Table:
    """The exact trace beside the bare backprops."""
    assert found.bare is not None
    share = found.exact / found.bare
    row = [found.given.name, str(len(found.given.x)), duration(found.exact), duration(found.bare), times(share)]
    note = (
        "The exact trace by minsharp beside one forward pass and K-1 = 999 bare backward passes, as in the row of the "
        "tables above; medians over alternating rounds. The last layer is done in closed form, and behind it no more "
        "columns go back than it has inputs, 512."
    )
    head = ["", "n", "minsharp", "bare K-1 backprops", "ratio", f"at most {times(SHARE)}"]
    return Table("A thousand classes", note, head, [[*row, yes(share <= SHARE)]])


def yes(met: bool) -> str:
    """The verdict on a target."""
    return "yes" if met else "NO"


def tolerance_table(rows: Sequence[tuple[Entry, Raced]]) -> Table:
    """Estimates beside the exact trace."""
    lines = []
    for entry, r in rows:
        gain = r.exact / r.seconds
        cells = [duration(r.exact), duration(r.seconds), times(gain), f"{times(entry.gain)}: {yes(gain >= entry.gain)}"]
        cells += [duration(r.forward), times(r.exact / r.forward)]
        errors = [percent(r.stated, 2), percent(r.actual, 2)]
        lines.append([r.given.name, count(len(r.given.x)), *cells, *errors])
    note = (
        f"`hessian_trace(..., tolerance={TOLERANCE})` beside the exact trace: medians over alternating rounds in one "
        "process. Stated error: the relative standard error that the result carries, on average; actual: the root mean "
        f"square of the difference from the exact trace over {'/'.join(str(len(r.found)) for _, r in rows)} calls, "
        "each with another seed. Forward pass: the model alone on all samples, without gradients; every estimate takes "
        "one, to know where the curvature is, so none can be faster than exact by more than the ratio beside it."
    )
    head = [
        "",
        "n",
        "exact",
        "estimate",
        "faster",
        "at least",
        "forward pass",
        "at most",
        "stated error",
        "actual error",
    ]
    return Table("Estimates", note, head, lines)


class Symmetric:
    """A curvlinops operator as skerch takes one: products from both sides."""

    def __init__(self, operator: Any):
        self.operator, self.shape = operator, tuple(operator.shape)

    def __matmul__(self, X: Tensor) -> Tensor:
        return self.operator @ X

    def __rmatmul__(self, X: Tensor) -> Tensor:
        return (self.operator @ X.mT.contiguous()).mT


Solver = Callable[[Any, int, int], float]
"""The trace of an operator from so many products, with a seed."""


def seeded(solver: Callable[[Any, int], Tensor]) -> Solver:
    """For those that take their random numbers from torch's own generator."""

    def run(operator: Any, products: int, seed: int) -> float:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return float(solver(operator, products))

    return run


def skerch_xtrace(operator: Any, products: int, seed: int) -> float:
    """skerch's: half of the products for the sketch, half for the rest."""
    options = {"x_dims": products // 2, "seed": seed, "return_diag": False}
    return float(xhutchpp(Symmetric(operator), torch.device("cpu"), torch.float32, **options)["tr"])


SOLVERS: dict[str, Solver] = {
    "curvlinops, Hutch++": seeded(hutchpp_trace),
    "curvlinops, XTrace": seeded(xtrace),
    "skerch, XTrace": skerch_xtrace,
}


def ggn(given: Problem) -> Any:
    """The Gauss-Newton matrix, of the same trace as the Hessian here and positive semi-definite, as Hutch++ assumes."""
    model, parameters = given.model, [p for p in given.model.parameters() if p.requires_grad]
    data = [(given.x, given.y)]
    return GGNLinearOperator(
        model, nn.CrossEntropyLoss(), parameters, data, check_deterministic=False, num_data=len(given.x)
    )


def sketched(solver: Solver, given: Problem, trace: float, ladder: Sequence[int], repeats: int) -> tuple[int, float]:
    """Products for the tolerance, and seconds for one.

    The fewest on the ladder that reach it; where none does, the error is taken to fall as fast as it is proved to at
    best, with the number of products, from the last.
    """
    operator = ggn(given)
    needed, each = 0, 0.0
    for products in ladder:
        start = perf_counter()
        values = [solver(operator, products, seed) for seed in range(repeats)]
        each = (perf_counter() - start) / (products * repeats)
        error = sqrt(fmean((value / trace - 1) ** 2 for value in values))
        needed = products if error <= TOLERANCE else ceil(products * error / TOLERANCE)
        if error <= TOLERANCE:
            break
    return needed, each


def hutchinson(given: Problem, trace: float, seconds: float) -> tuple[int, float]:
    """Products for the tolerance, from the spread of single ones, and seconds for one, by PyHessian."""
    run: Iterator[list[float]] = iter(pyhessian_probes(given.model, given.x, given.y, 0), None)
    next(run)  # builds the graph of the gradient
    values: list[float] = []
    clock: list[float] = []
    while len(values) < 8 or (sum(clock) < seconds and len(values) < 200):
        start = perf_counter()
        values += next(run)
        clock.append(perf_counter() - start)
    deviation = sqrt(fmean((value / trace - 1) ** 2 for value in values))
    return ceil((deviation / TOLERANCE) ** 2), median(clock)


def beside(r: Raced, ladder: Sequence[int], seconds: float) -> list[list[str]]:
    """The lines of one network."""
    found = {"PyHessian, Hutchinson": hutchinson(r.given, r.trace, seconds)}
    found |= {name: sketched(solver, r.given, r.trace, ladder, 3) for name, solver in SOLVERS.items()}
    ours = [f"{r.given.name}, n={len(r.given.x)}", "minsharp", "", duration(r.seconds), "", ""]
    lines = []
    for name, (products, each) in found.items():
        ratio = products * each / r.seconds
        beyond = " (extrapolated)" if products not in ladder else ""
        cells = [f"{count(products)}{beyond}", duration(products * each), times(ratio), yes(ratio >= LEAST_GAIN)]
        lines.append(["", name, *cells])
    return [ours, *lines]


def peers_table(lines: Sequence[Sequence[str]]) -> Table:
    """Others to the same error."""
    note = (
        f"Seconds to a relative standard error of {percent(TOLERANCE)}. Hutchinson: the spread of single products "
        "v^T H v about the exact trace, and so many of them. Hutch++ and XTrace on the Gauss-Newton matrix, whose "
        "trace is the same here, with numbers of products that grow until the root mean square of three errors is "
        "below; where none was, their error is taken to fall with the number of products, the best that is proved, "
        "and not with its root. Time: measured per product."
    )
    head = ["", "method", "products", "seconds", "times minsharp", f"at least {times(LEAST_GAIN)}"]
    return Table("Estimates beside others, to the same error", note, head, lines)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimates", description=__doc__)
    parser.add_argument("--only", action="append", choices=ENTRIES, metavar="MODEL", help="; ".join(ENTRIES))
    parser.add_argument("--seconds", type=float, default=40, help="for the rounds of each network, and for probes")
    parser.add_argument("--out", type=Path, help=f"a page to put the tables into; a complete run takes {PAGE}")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the peers' own
    where = machine("PyHessian", "curvlinops-for-pytorch", "skerch")
    chosen = {name: ENTRIES[name] for name in options.only or ENTRIES}
    rows = [(entry, raced(entry, options.seconds)) for entry in chosen.values()]
    lines = [line for entry, r in rows if entry.ladder for line in beside(r, entry.ladder, options.seconds / 4)]
    tables = [classes_table(r) for _, r in rows if r.bare is not None]
    tables += [tolerance_table(rows), *([peers_table(lines)] if lines else [])]
    for table in tables:
        Console(width=170).print(table.rich())
    out = options.out or (None if options.only else PAGE)
    if out:
        put(out, [table.markdown() for table in tables], where)


if __name__ == "__main__":
    main()
