"""Which columns to pull back for which sample, so that the error stays below a given size at the least cost.

A sample's part of the trace is sum_k ||J^T s_k||^2 over its columns s_k. The `tops` largest of them are taken as they
are, the others mixed with random signs e: E ||J^T sum_k e_k s_k||^2 is their sum, and ``mixes`` such draws are
averaged. The variance of one draw is 2 sum_{j != k} <J^T s_j, J^T s_k>^2: it goes with the square of the energy that
is mixed, by a factor ``kappa`` that the draws themselves tell. Signs are drawn for each sample by itself, so errors of
different samples are independent, and average out.
"""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

_MIXES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
_TOPS = (0, 1, 2, 4, 8, 16, 32, 64)
_MANY = 1 << 14
"""Columns: of more than this none is taken out as it is."""
FORWARD = 2.0
"""What it costs, in columns, to run a sample forward a second time."""
FREEDOM = 256
"""Draws beyond the first, over all samples: with fewer the variance is not known well enough to be told."""
_AUDITED = 200
"""How many samples with a single draw get a second one, about."""
_EVEN = 20
"""No sample is to have more than one part in so many of the variance, or the error is that of a few draws, ..."""
_MORE = 0.25
"""... as far as no more than this share of further columns sees to it."""


@dataclass(frozen=True)
class Group:
    """Samples that get the same number of columns; all of them, and so no error, if ``mixes`` is zero.

    ``audit`` is the probability with which each was chosen to be in this group rather than in one of a single draw,
    ``chance`` that with which it was drawn at all, to stand for others too.
    """

    samples: Tensor
    tops: int
    mixes: int
    audit: Tensor | None = None
    chance: Tensor | None = None


@dataclass(frozen=True)
class Plan:
    """Groups of samples, the variance that is expected of them, in units of kappa, and their cost in columns."""

    groups: tuple[Group, ...]
    units: float
    cost: float


def plan(energies: Tensor, rank: int, units: float, generator: torch.Generator, samples: int = 0) -> Plan:
    """The least cost at which the variance is expected to stay below so many units; energies are (n, *entries).

    ``samples`` is how many samples the variance will be told from in all, if there are more than these.
    """
    flat = energies.flatten(1)
    told = max(samples, len(flat))
    options = _options(rank, flat.shape[1], 1 if told > FREEDOM else 1 + ceil(FREEDOM / told))
    mixed = _mixed(flat, sorted({tops for tops, _ in options}))
    squares = [mixed[tops] ** 2 / mixes if mixes else torch.zeros_like(mixed[0]) for tops, mixes in options]
    expected = torch.stack(squares, 1)  # (n, options)
    costs = [rank + FORWARD if not mixes else tops + mixes for tops, mixes in options]
    price = torch.tensor(costs, dtype=torch.float64)
    chosen = _even(expected, price, _cheapest(expected, price, units), _EVEN * len(flat) / told)
    groups: list[Group] = []
    for i in chosen.unique().tolist():
        members = (chosen == i).nonzero().flatten()
        groups += _audited(members, mixed[0], options[i], generator)
    return Plan(tuple(groups), float(expected.gather(1, chosen.unsqueeze(1)).sum()), float(price[chosen].sum()))


def _options(rank: int, entries: int, least: int) -> list[tuple[int, int]]:
    """Pairs of columns taken as they are and draws of the others, at least so many; and all columns: (0, 0)."""
    tops = _TOPS if entries <= _MANY else (0,)
    mixes = [least, *(m for m in _MIXES if m > least)]
    pairs = [(t, m) for t in tops for m in mixes if t + m < rank and t < entries and (t == 0 or m > 1)]
    return [*pairs, (0, 0)]


def _mixed(flat: Tensor, tops: list[int]) -> dict[int, Tensor]:
    """The energy that is left to mix when so many of the largest columns are taken out: (n,) each."""
    total = flat.sum(1)
    largest = flat.topk(max(tops), dim=1).values.cumsum(1) if max(tops) else flat
    return {t: (total - largest[:, t - 1]).clamp_min(0) if t else total for t in tops}


def _cheapest(expected: Tensor, costs: Tensor, variance: float) -> Tensor:
    """For each sample an option, such that the sum of the variances stays below the bound: (n, options) -> (n,).

    Each sample takes the option of least cost plus price times variance; the price is raised until it is enough.
    """
    low, high = -60.0, 200.0  # of the logarithm of the price
    scale = 1 / max(variance, 1e-300)
    best = torch.full((len(expected),), expected.shape[1] - 1)
    for _ in range(40):
        middle = (low + high) / 2
        chosen = (costs + scale * 2.0**middle * expected).argmin(1)
        if float(expected.gather(1, chosen.unsqueeze(1)).sum()) <= variance:
            best, high = chosen, middle
        else:
            low = middle
    return best


def _even(expected: Tensor, costs: Tensor, chosen: Tensor, parts: float) -> Tensor:
    """The same options, but that the samples of most variance are taken whole, until none has 1 / parts of the rest.

    Where a few samples have it all, errors are not normal, and worse: a sample of two strong columns has draws of two
    values, so that where both draws agree the error is largest, and none is seen.
    """
    sizes, order = expected.gather(1, chosen.unsqueeze(1)).squeeze(1).sort(descending=True)
    rest = sizes.flip(0).cumsum(0).flip(0)  # of each and all that are smaller
    many = int((parts * sizes > rest).int().cumprod(0).sum())
    paid = int(_MORE * float(costs[chosen].sum()) / float(costs[-1]))
    return chosen.index_fill(0, order[: min(many, paid)], len(costs) - 1)


def _audited(members: Tensor, energy: Tensor, option: tuple[int, int], generator: torch.Generator) -> list[Group]:
    """The group of an option; of those with a single draw some are drawn twice, rather where the energy is."""
    tops, mixes = option
    if mixes != 1:
        return [Group(members, tops, mixes)]
    share = energy[members] / energy[members].mean().clamp_min(1e-300)
    many = min(0.2, _AUDITED / len(members))
    probability = (many * share).clamp(min(1.0, max(many / 4, FREEDOM / len(members))), 1.0)
    twice = torch.rand(len(members), generator=generator, dtype=torch.float64) < probability
    found = [Group(members[twice], tops, 2, probability[twice]), Group(members[~twice], tops, 1)]
    return [group for group in found if len(group.samples)]
