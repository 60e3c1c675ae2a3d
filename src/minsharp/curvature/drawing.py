"""Which samples to pull back at all, where far fewer than all of them tell the trace well enough.

A sample's part T_i of the trace is close to a multiple of its output curvature e_i. So samples are drawn with a
probability q_i that goes with e_i, and those that were drawn stand for 1 / q_i like them: sum T_i / q_i over the drawn
is the trace on average, whatever T_i, and as good as T_i / e_i is alike (Horvitz and Thompson). The number drawn is
fixed and the draw systematic, in random order, so that the sum of e_i / q_i has no error. Those whose share is so large
that they would be drawn more than once are taken for certain.

With q_i = c e_i the variance is sum e_i² (spread (1 - q_i) + noise / mixes) / q_i, where ``spread`` is the variance of
T_i / e_i, and ``noise`` what mixing the columns of a sample with random signs adds to it.
"""

from dataclasses import dataclass
from math import ceil, inf

import torch
from torch import Tensor

from .plan import FORWARD, Group, Plan

_MIXES = (2, 4, 8, 16, 32, 64)
LEAST = 8
"""Samples to be drawn in each block, at least, and ..."""
_IN_ALL = 128
"""... in all blocks together: with fewer the variance among them is not known well enough to be told."""
_SURE = 0.8
"""The largest probability: beyond it a sample is taken for certain."""
_TOLD = 0.3
"""The largest mean of it: those that are nearly certain tell little of the variance."""
_SURES = torch.tensor([*range(16), *(int(16 * 1.25**k) for k in range(90))])
"""How many may be taken for certain."""


@dataclass(frozen=True)
class Model:
    """What is expected of T / e: its variance among samples, and that of one draw of a single sample."""

    spread: float
    noise: float

    def variance(self, mixes: int) -> float:
        """That of T / e over samples, told from so many draws each (0: from all columns)."""
        return self.spread + (self.noise / mixes if mixes else 0.0)


@dataclass(frozen=True)
class _Choice:
    """So many of the largest for certain, so many drawn from the others, with so many mixes each (0: all columns)."""

    sure: int
    drawn: int
    mixes: int
    variance: float
    cost: float


def drawing(
    shares: Tensor, model: Model, rank: int, variance: float, generator: torch.Generator, least: int
) -> Plan | None:
    """The least cost at which the variance is expected to stay below a bound; None where all have to be pulled back.

    ``shares`` are the e_i, (n,), and no fewer than ``least`` are drawn.
    """
    sizes, order = shares.sort(descending=True)
    options = [0, *(m for m in _MIXES if m < rank)] if model.noise < inf else [0]
    found = [_best(sizes, model, mixes, rank, variance, least) for mixes in options]
    choices = [choice for choice in found if choice is not None]
    best = min(choices, key=lambda choice: choice.cost, default=None)
    return None if best is None else _drawn(sizes, order, best, generator)


def fewest(shares: Tensor, mixes: int, rank: int, generator: torch.Generator, least: int) -> Plan | None:
    """As few as tell their variance, where nothing is known yet; None where that is no less than a column of each.

    Where few samples have most of the curvature, half as many have to do beside those that are taken for certain.
    """
    sizes, order = shares.sort(descending=True)
    for number, most in ((least, len(shares)), (max(LEAST, least // 2), 2 * len(shares))):
        best = _best(sizes, Model(0.0, 0.0), mixes, rank, 1.0, number)
        if best is not None and best.cost <= most:
            return _drawn(sizes, order, best, generator)
    return None


def least_of(n: int, told: int) -> int:
    """How many of n samples are to be drawn, that the variance is known at the end, after ``told`` samples in all."""
    return max(LEAST, ceil(_IN_ALL * n / max(told, n)))


def _drawn(sizes: Tensor, order: Tensor, best: _Choice, generator: torch.Generator) -> Plan:
    rest = sizes[best.sure :]
    chance = best.drawn * rest / rest.sum()
    which = _systematic(chance, best.drawn, generator)
    drawn = Group(order[best.sure :][which], 0, best.mixes, chance=chance[which])
    groups = (Group(order[: best.sure], 0, 0), drawn) if best.sure else (drawn,)
    return Plan(groups, best.variance, best.cost)


def _best(sizes: Tensor, model: Model, mixes: int, rank: int, variance: float, least: int) -> _Choice | None:
    """How many to take for certain and how many to draw, for sizes in descending order."""
    n = len(sizes)
    sure = _SURES[: int(torch.searchsorted(_SURES, n))]
    sums, squares = (_from_the_end(part)[sure] for part in (sizes, sizes.square()))
    each = model.variance(mixes)
    drawn = (each * sums.square() / (variance + model.spread * squares)).ceil().clamp_min(least)
    even = drawn * squares <= _TOLD * sums.square()  # the mean probability of those drawn
    fits = (drawn * sizes[sure] <= _SURE * sums) & even & (sums > 0)
    if not fits.any():
        return None
    cost = torch.where(fits, sure * rank + drawn * ((mixes or rank) + FORWARD), torch.inf)
    i = int(cost.argmin())
    expected = float(each * sums[i].square() / drawn[i] - model.spread * squares[i])
    return _Choice(int(sure[i]), int(drawn[i]), mixes, max(expected, 0.0), float(cost[i]))


def _from_the_end(values: Tensor) -> Tensor:
    """The sums of each and all that follow."""
    return values.flip(0).cumsum(0).flip(0)


def _systematic(chance: Tensor, drawn: int, generator: torch.Generator) -> Tensor:
    """So many different ones, each with its probability; they add up to that number."""
    order = torch.randperm(len(chance), generator=generator)
    ends = chance[order].cumsum(0)
    marks = torch.arange(drawn, dtype=ends.dtype) + torch.rand((), generator=generator, dtype=ends.dtype)
    return order[torch.searchsorted(ends, marks * (ends[-1] / drawn)).clamp_max(len(order) - 1)]
