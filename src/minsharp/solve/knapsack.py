"""One choice from each row, the total cost the least within a limit on the total size: a multiple-choice knapsack.

With a price p >= 0 on size, every selection within the limit costs at least

    sum_r min_k (c_rk + p s_rk) - p limit

(Lagrange): a lower bound, the largest over p found along its corners. What a choice costs above the minimum of its row
is its reduced cost, and a selection within a gap of the bound has no more than that gap of reduced costs in total. So
with a small gap few choices are left, and dynamic programming over those finds the optimum, or shows that the gap was
too small: it grows until the optimum is inside. Thousands of rows take no longer than a few, for their gap is
smaller. Sizes are whole numbers, so that the limit is one too, and a multiple of what they have in common.
"""

from typing import NamedTuple

import numpy as np

from .newton import Array

MOST = 5_000_000
"""Partial selections that dynamic programming may keep."""
GAPS = 8.0 ** np.arange(-6, 1)  # tried one after the other, as shares of the gap that is known
ROUNDING = 1e-12


class Selection(NamedTuple):
    """The place of the choice from each row, what they cost together, and what any selection costs at least.

    The two numbers are equal where the selection was shown to be the best, up to rounding.
    """

    places: Array
    cost: float
    bound: float


class _Rows(NamedTuple):
    """Costs and sizes, (rows, choices), and what the sizes may add up to."""

    costs: Array
    sizes: Array
    limit: float

    def at(self, price: float) -> Array:
        """The best choice of each row where size has a price; of equal ones the smallest."""
        priced = self.costs + price * self.sizes
        ties = priced <= priced.min(1, keepdims=True) * (1 + ROUNDING)
        return np.where(ties, self.sizes, np.inf).argmin(1)

    def totals(self, places: Array) -> tuple[float, float]:
        """Cost and size of a selection."""
        rows = np.arange(len(places))
        return float(self.costs[rows, places].sum()), float(self.sizes[rows, places].sum())


def cheapest(costs: Array, sizes: Array, limit: float, most: int = MOST) -> Selection:
    """The best selection; costs are finite and not negative, and the smallest choices of all rows are within the limit.

    ``most`` bounds the memory: where more partial selections would have to be kept, the best that is known is returned.
    Rows that are alike in all but their order make for many of them.

    >>> cheapest(np.array([[4.0, 1.0], [6.0, 0.0]]), np.array([[1, 2], [1, 2]]), 3).places.tolist()
    [0, 1]
    """
    rows = _Rows(costs, sizes.astype(np.float64), _reachable(sizes, limit))
    price, places = _priced(rows)
    places = _filled(rows, places, price)
    cost = rows.totals(places)[0]
    reduced = costs + price * rows.sizes
    least = reduced.min(1, keepdims=True)
    bound = float(least.sum()) - price * rows.limit
    gap, exact, shown = max(cost - bound, 0.0), ROUNDING * cost, bound
    for each in GAPS * gap if gap > exact else ():
        try:
            found = _within(rows, reduced - least, float(each) + exact, most)
        except MemoryError:
            return Selection(places, cost, min(shown, cost))
        if found is not None and rows.totals(found)[0] < cost:
            places, cost = found, rows.totals(found)[0]
        if cost <= bound + each + exact:
            break
        shown = bound + each  # whatever costs less was looked at
    return Selection(places, cost, cost)


def _reachable(sizes: Array, limit: float) -> float:
    """The largest multiple of the sizes' common divisor within a limit, rounding forgiven."""
    unit = int(np.gcd.reduce(sizes.astype(np.int64), axis=None)) or 1
    return float(np.floor(limit * (1 + ROUNDING) / unit) * unit)


def _priced(rows: _Rows) -> tuple[float, Array]:
    """The price with the largest bound, and a selection within the limit that is best at that price.

    Two selections, one too large and one within the limit, are lines in the price, and the bound lies below both: where
    they cross, a third is below, or there is none and the bound is there.
    """
    large, small = rows.at(0.0), rows.sizes.argmin(1)
    if rows.totals(large)[1] <= rows.limit:
        return 0.0, large
    while True:
        (c, s), (d, t) = rows.totals(large), rows.totals(small)
        price = (d - c) / (s - t)
        middle = rows.at(price)
        e, u = rows.totals(middle)
        if e + price * u >= (c + price * s) * (1 - ROUNDING) or u in (s, t):
            return price, small
        large, small = (middle, small) if u > rows.limit else (large, middle)


def _filled(rows: _Rows, places: Array, price: float) -> Array:
    """A selection with larger choices where there is room, those that cost the least above the price first."""
    own = np.arange(len(places))
    cost, size = rows.costs - rows.costs[own, places, None], rows.sizes - rows.sizes[own, places, None]
    room, places = rows.limit - rows.totals(places)[1], places.copy()
    row, choice = np.nonzero((cost < 0) & (size > 0) & (size <= room))
    order = np.argsort((cost + price * size)[row, choice], kind="stable")
    changed, smallest = set(), size[row, choice].min(initial=np.inf)
    for r, c in zip(row[order].tolist(), choice[order].tolist(), strict=True):
        if room < smallest:
            break
        if r not in changed and size[r, c] <= room:
            places[r], room = c, room - size[r, c]
            changed.add(r)
    return places


def _within(rows: _Rows, reduced: Array, gap: float, most: int) -> Array | None:
    """The cheapest selection whose reduced costs add up to no more than a gap; none where the limit allows none.

    Row by row, all totals of size and cost that no other has both smaller, and which total and choice each came from.
    """
    places, counts = reduced.argmin(1), (reduced <= gap).sum(1)
    order = np.argsort(counts, kind="stable")
    fixed, order = order[counts[order] == 1], order[counts[order] > 1]
    room = rows.limit - float(rows.sizes[fixed, places[fixed]].sum())
    rest = np.append(np.cumsum(rows.sizes.min(1)[order][::-1])[::-1], 0)[1:]  # what the rows after it take at least
    size, cost, above, steps, kept = np.zeros(1), np.zeros(1), np.zeros(1), [], 0
    for r, after in zip(order, rest, strict=True):
        choices = np.flatnonzero(reduced[r] <= gap)
        if len(size) * len(choices) > most:
            raise MemoryError
        totals = [(old[:, None] + new[r, choices]).ravel() for old, new in
                  ((size, rows.sizes), (cost, rows.costs), (above, reduced))]  # fmt: skip
        alive = np.flatnonzero((totals[2] <= gap) & (totals[0] + after <= room))
        alive = alive[_undominated(totals[0][alive], totals[1][alive])]
        size, cost, above = (total[alive] for total in totals)
        steps.append((r, alive // len(choices), choices[alive % len(choices)]))
        kept += len(alive)
        if kept > most:
            raise MemoryError
    if not len(cost) or room < 0:
        return None
    place = int(cost.argmin())
    for r, parents, choices in reversed(steps):
        places[r], place = choices[place], int(parents[place])
    return places


def _undominated(size: Array, cost: Array) -> Array:
    """Which have no other that is neither larger nor costs more, by size."""
    order = np.lexsort((cost, size))
    least = np.minimum.accumulate(cost[order])
    return order[np.concatenate([np.ones(min(1, len(order)), dtype=bool), cost[order][1:] < least[:-1]])]
