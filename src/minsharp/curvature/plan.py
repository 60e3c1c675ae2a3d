"""Which columns to pull back for which sample, so that the error stays below a given size at the least cost.

A sample's part of the trace is sum_k ||J^T s_k||^2 over its columns s_k. The `tops` largest of them are taken as they
are, the others mixed with random signs e: E ||J^T sum_k e_k s_k||^2 is their sum, and ``mixes`` such draws are
averaged. The variance of one draw is 2 sum_{j != k} <J^T s_j, J^T s_k>^2: it goes with the square of the energy that
is mixed, by a factor ``kappa`` that the draws themselves tell. Signs are drawn for each sample by itself, so errors of
different samples are independent, and average out.

The draws also have to tell their own variance. Satterthwaite: if sample i has the part v_i of it, told by m_i - 1
degrees of freedom, the sum is told by (sum v_i)^2 / sum v_i^2 / (m_i - 1) of them. So each sample has at least so many
draws as its part is of the freedom that is asked for; the parts of many small ones add up.
"""

from dataclasses import dataclass
from math import ceil, inf

import torch
from torch import Tensor

_MIXES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
_TOPS = (0, 1, 2, 4, 8, 16, 32, 64)
_MANY = 1 << 14
"""Columns: of more than this none is taken out as it is."""
FORWARD = 2.0
"""What it costs, in columns, to run a sample forward a second time."""
FREEDOM = 256
"""Degrees of freedom, over all samples, with which any variance is known well enough to be told; of more samples most
get a single draw."""
_NORMAL = 64
"""As many do for draws that are nearly normal."""
_ROUNDS = 8
"""How often the draws are shared anew, if those that remain do not tell their variance well enough."""
_SWEEP = 32
"""Columns that are no dearer than a group of its own."""
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
    freedom: float = inf
    """Degrees of freedom with which the variance is expected to be told."""


def asked_of(relative: float) -> float:
    """The degrees of freedom to ask for, where one draw has such a variance in units of its squared mean.

    As many as tell that of draws that are normal; those of sums of r squares, with the relative variance 2 / r, have
    the excess kurtosis 12 / r, and tell theirs with fewer.
    """
    return min(FREEDOM, _NORMAL * (1 + 3 * relative))


def plan(
    energies: Tensor,
    rank: int,
    units: float,
    generator: torch.Generator,
    samples: int = 0,
    freedom: float = FREEDOM,
) -> Plan:
    """The least cost at which the variance is expected to stay below so many units; energies are (n, *entries).

    ``samples`` is how many samples the variance will be told from in all, if there are more than these, and
    ``freedom`` the degrees of freedom of all; more than `FREEDOM` samples have enough of them with a draw each, but for
    those that have most of the variance.
    """
    flat = energies.flatten(1)
    told = max(samples, len(flat))
    many = told > FREEDOM
    wanted = (FREEDOM / 2 if many else freedom) * len(flat) / told
    options = _options(rank, flat.shape[1], 1 + ceil(freedom / told))
    mixed = _mixed(flat, sorted({tops for tops, _ in options}))
    squares = [mixed[tops] ** 2 / mixes if mixes else torch.zeros_like(mixed[0]) for tops, mixes in options]
    expected = torch.stack(squares, 1)  # (n, options)
    price = torch.tensor([tops + mixes if mixes else rank + FORWARD for tops, mixes in options], dtype=torch.float64)
    draws = torch.tensor([float(mixes) for _, mixes in options], dtype=torch.float64)
    mixing = torch.ones(len(flat), dtype=torch.bool)  # not yet taken whole
    asked = wanted
    for _ in range(_ROUNDS):
        least = 1 + _shared(mixed[0] * mixing, asked)
        enough = draws >= (least.floor() if many else least.ceil()).unsqueeze(1)
        costs = price.where((draws == 0) | (enough & mixing.unsqueeze(1)), torch.inf)  # (n, options)
        cheapest = _cheapest(expected, costs, units)
        chosen = _joined(_even(expected, price, cheapest, _EVEN * len(flat) / told), options, price)
        parts = expected.gather(1, chosen.unsqueeze(1)).squeeze(1)
        found, left = _freedom(parts, draws[chosen]), draws[chosen] > 0
        if many or found >= wanted:
            break
        asked *= wanted / found if bool((left == mixing).all()) else 1  # uneven parts need more in all
        mixing = left  # what these leave is told by the others alone
    groups: list[Group] = []
    for i in chosen.unique().tolist():
        members = (chosen == i).nonzero().flatten()
        groups += _audited(members, mixed[0], options[i], generator)
    return Plan(tuple(groups), float(parts.sum()), float(price[chosen].sum()), inf if many else found)


def _shared(energy: Tensor, freedom: float) -> Tensor:
    """So much of the freedom for each sample as is its part of the variance: (n,).

    No less for any than if all had the same part: the parts are only what is expected.
    """
    squares = energy.square()
    parts = squares / squares.sum().clamp_min(1e-300)
    return freedom * parts.clamp_min(1 / max(int(squares.count_nonzero()), 1))


def _freedom(parts: Tensor, draws: Tensor) -> float:
    """Satterthwaite's count for parts of the variance, (n,), and draws; of single ones some are drawn again."""
    uncertain = float((parts.square() / (draws - 1).clamp_min(1)).sum())
    return float(parts.sum()) ** 2 / uncertain if uncertain else inf


def _options(rank: int, entries: int, even: int) -> list[tuple[int, int]]:
    """Pairs of columns taken as they are and draws of the others, ``even`` among them; and all columns: (0, 0)."""
    tops = _TOPS if entries <= _MANY else (0,)
    pairs = [
        (t, m) for t in tops for m in sorted({*_MIXES, even}) if t + m < rank and t < entries and (t == 0 or m > 1)
    ]
    return [*pairs, (0, 0)]


def _mixed(flat: Tensor, tops: list[int]) -> dict[int, Tensor]:
    """The energy that is left to mix when so many of the largest columns are taken out: (n,) each."""
    total = flat.sum(1)
    largest = flat.topk(max(tops), dim=1).values.cumsum(1) if max(tops) else flat
    return {t: (total - largest[:, t - 1]).clamp_min(0) if t else total for t in tops}


def _cheapest(expected: Tensor, costs: Tensor, variance: float) -> Tensor:
    """For each sample an option, such that the sum of the variances stays below the bound: (n, options) -> (n,).

    Each sample takes the option of least cost, (n, options), plus price times variance; the price is raised until it is
    enough.
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


def _joined(chosen: Tensor, options: list[tuple[int, int]], price: Tensor) -> Tensor:
    """The same options, but that a small group takes part in the next larger one, where that costs no more."""
    used = chosen.unique().tolist()
    for i in used:
        larger = [j for j in used if price[j] > price[i] and (not options[j][1] or options[j][0] == options[i][0])]
        into = min(larger, key=lambda j: float(price[j]), default=i)
        if float(price[into] - price[i]) * int((chosen == i).sum()) <= _SWEEP:
            chosen = torch.where(chosen == i, into, chosen)
    return chosen


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
