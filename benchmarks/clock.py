"""Timing in rounds: every method has its turn in each, so that whatever else the machine does hits all alike."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from .methods import Method, Run
from .models import Problem

SHORTEST_TURN = 1.0
"""Seconds: what is faster than this runs several times in each turn, lest what the method before it did to the caches
and to the allocator decides."""


@dataclass(frozen=True)
class Timing:
    """Seconds per call of a method at a setting, one for each round, and how many calls a round had."""

    method: Method
    setting: int
    calls: int
    seconds: Sequence[float]

    @property
    def typical(self) -> float:
        """The median over the rounds."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """The distance between the quartiles over the rounds, relative to the median."""
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.typical


@dataclass
class Runner:
    """A method ready to run at its best setting, and what it returned last."""

    method: Method
    setting: int
    calls: int
    run: Run
    last: Any = None

    def turn(self) -> float:
        """One round's worth of calls; seconds per call."""
        gc.collect()
        start = perf_counter()
        for _ in range(self.calls):
            self.last = self.run()
        return (perf_counter() - start) / self.calls


def quickest(run: Run, patience: float) -> float:
    """The seconds of the fastest of a few calls, as many as fit into the time given."""
    calls: list[float] = []
    while not calls or (len(calls) < 4 and sum(calls) < patience):
        gc.collect()
        start = perf_counter()
        run()
        calls.append(perf_counter() - start)
    return min(calls)


def tuned(method: Method, problem: Problem, patience: float) -> Runner:
    """A method at the fastest of its settings.

    They are tried in order until one takes three times as long as the best so far. Those that came close to the best
    are tried again, so that a moment's noise does not decide, unless a single call outlasts the patience.
    """
    runs: dict[int, Run] = {}
    costs: dict[int, float] = {}
    for setting in method.settings(problem):
        runs[setting] = method.prepare(problem, setting)
        costs[setting] = quickest(runs[setting], patience) / method.units(setting)
        if costs[setting] > 3 * min(costs.values()):
            break
    close = [s for s, cost in costs.items() if cost < 1.5 * min(costs.values()) and cost * method.units(s) < patience]
    for setting in close if len(close) > 1 else ():
        again = quickest(runs[setting], patience) / method.units(setting)
        costs[setting] = min(costs[setting], again)
    best = min(costs, key=costs.__getitem__)
    per_call = costs[best] * method.units(best)
    calls = max(method.calls, ceil(SHORTEST_TURN / max(per_call, 1e-6)))
    return Runner(method, best, calls, runs[best])


def race(runners: Sequence[Runner], budget: float, least: int, most: int) -> list[Timing]:
    """Rounds until the budget is spent, but at least and at most so many; one before them to warm up."""
    start = perf_counter()
    for runner in runners:
        runner.turn()
    rounds: list[list[float]] = []
    while len(rounds) < least or (len(rounds) < most and perf_counter() - start < budget):
        rounds.append([runner.turn() for runner in runners])
    return [Timing(r.method, r.setting, r.calls, s) for r, s in zip(runners, zip(*rounds, strict=True), strict=True)]
