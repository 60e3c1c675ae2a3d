"""The same sums from fewer columns, with an error bar: random signs, drawn for each sample by itself.

Block by block of the data: one forward pass tells how much output curvature each sample has; `plan` decides who gets
how many columns; the sums of the block are estimated, with their variance, again and again if need be, until the block
has no more than its share of the variance that the tolerance allows. So a single run through the data is enough.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from ..losses import Factor, Loss
from ..network.network import Network
from ..results.sums import CurvatureSum
from ..subject.batches import Batch, chunks
from ..text import percent
from .engine import Engine, Work
from .head import LastLayer
from .plan import Group, Plan, plan
from .quantities import TRACE, Quantity
from .signs import generator_for
from .smooth import Rest, covariance
from .spread import Spread, Watched

_TOGETHER = 4
"""Columns that a block is sized for."""
_PILOT = 16
"""Samples of the first block from which the first plan is made, and ..."""
_DRAWS = 4
"""... draws for each of them."""
_ROUNDS = 12
_SLACK = 1.1
"""How far the variance of a block may be above its share."""
_MISSED = 1.5
"""How many times the tolerance an error may be without a word."""

_TINY = 1e-300

Sums = dict[str, Tensor]


@dataclass(frozen=True)
class _Estimate:
    """Unbiased sums over a block, the trace among them, and their variance; ``units`` is what was expected of that.

    In units of kappa, which draws tell: estimates are weighted by what was planned, not by how they came out.
    """

    sums: Sums
    trace: float
    spread: Spread
    units: float

    def joined(self, other: "_Estimate") -> "_Estimate":
        """The mean of two independent estimates."""
        mine = other.units / (self.units + other.units)
        yours = 1 - mine
        sums = {name: mine * value + yours * other.sums[name] for name, value in self.sums.items()}
        spread = self.spread.times(mine**2) + other.spread.times(yours**2)
        units = mine**2 * self.units + yours**2 * other.units
        return _Estimate(sums, mine * self.trace + yours * other.trace, spread, units)


@dataclass(frozen=True)
class _Block:
    """Some samples after a forward pass, with the last layer if it is dealt with in closed form: its own sums."""

    batch: Batch
    work: Work
    factor: Factor
    last: LastLayer | None
    own: Sums
    trace: float

    @property
    def energies(self) -> Tensor:
        """The output curvature of each sample, column by column: (n, *entries)."""
        return self.factor.energies.double().cpu()


@dataclass
class _SoFar:
    """What the blocks have come to; the spread of what Gauss-Newton leaves out is counted by itself."""

    spread: Spread
    rest: Spread
    sums: Sums = field(default_factory=dict)
    trace: float = 0.0
    weight: float = 0.0
    samples: int = 0
    energy: float = 0.0

    @property
    def error(self) -> float:
        """The relative standard error of the trace."""
        return sqrt(self.spread.total + self.rest.total) / abs(self.trace) if self.trace else 0.0


class Estimator:
    """Estimates the sums for some parameters to a relative standard error of their total trace."""

    def __init__(
        self,
        network: Network,
        parameters: list[str],
        loss: Loss,
        quantity: Quantity[Any],
        tolerance: float,
        seed: int = 0,
        memory: int | None = None,
        rest: Rest | None = None,
    ):
        self.rest = rest
        self.watched = Watched(quantity)
        self.engine = Engine(network, parameters, loss, self.watched, memory, together=_TOGETHER)
        self.loss, self.tolerance = loss, tolerance
        self.seed, self.blocks = seed, 0
        self.generator = torch.Generator()  # that of the block
        self._variance, self._units = 0.0, 0.0  # seen, and planned: their ratio is kappa
        self._traces, self._energy = 0.0, 0.0  # likewise: trace per unit of output curvature

    def run(
        self, stream: Iterator[Batch], expected: int | None = None, advance: Callable[..., None] = lambda n, note: None
    ) -> CurvatureSum:
        """The sums over all batches; ``expected`` is how many samples there will be, where that is known."""
        so_far = _SoFar(self._no_spread(), self._no_spread())
        for chunk in chunks(stream, self.engine.samples):
            ahead = max((expected or 0) - so_far.samples, len(chunk)) / len(chunk)
            self._add(chunk.to(self.engine.device), so_far, ahead)
            advance(len(chunk), f"error {percent(so_far.error, 2)}")
        if so_far.error > _MISSED * self.tolerance:
            warnings.warn(_missed(so_far.error, self.tolerance), stacklevel=2)
        sums = self.engine.complete(so_far.sums)
        covariance = (so_far.spread + so_far.rest).matrix
        return CurvatureSum(sums, so_far.weight, so_far.samples, so_far.energy, covariance)

    def _add(self, batch: Batch, so_far: "_SoFar", ahead: float) -> None:
        """Estimate the sums of a block, and add them; half of the variance is for what Gauss-Newton leaves out."""
        block = self._start(batch)
        self.generator = generator_for(batch, self.seed, self.blocks)
        self.blocks += 1
        rest = None if self.rest is None else self.rest.first(batch)
        known = block.trace + (0.0 if rest is None else rest.total)
        found = self._estimated(block, known, so_far, ahead)
        if self.rest is not None and rest is not None:
            total = so_far.trace + (known + found.trace) * ahead
            rest = self.rest.refined(batch, rest, self._allowed(total, so_far.rest.total, ahead))
            so_far.rest += Spread(self.engine.schedule.parameters, covariance(rest, self.engine.schedule.parameters))
        for part in (block.own, found.sums, {} if rest is None else rest.sums):
            self.watched.add(so_far.sums, part.items())
        so_far.spread += found.spread
        so_far.trace += block.trace + found.trace + (0.0 if rest is None else rest.total)
        so_far.weight += self.loss.weight(block.work.outputs, block.work.targets)
        so_far.energy += self.loss.energy(block.work.outputs)
        so_far.samples += len(batch)

    def _allowed(self, total: float, variance: float, ahead: float) -> float:
        """A block's share of the variance that is left, if there are so many such blocks to come."""
        share = 1.0 if self.rest is None else 0.5
        return max(share * self.tolerance**2 * total**2 - variance, 0.0) / ahead

    def _no_spread(self) -> Spread:
        return Spread.none(self.engine.schedule.parameters)

    @torch.no_grad()
    def _start(self, batch: Batch) -> _Block:
        """One forward pass; the last layer by itself, if it can be."""
        work = self.engine.start(batch)
        factor = self.loss.factor(work.outputs, work.targets)
        last = self.engine.last_layer(work, factor)
        own = None if last is None or last.head.tied else last.own(self.watched)
        if last is None or own is None:
            return _Block(batch, work, factor, None, {}, 0.0)
        sums: Sums = {}
        self.watched.add(sums, own)
        traces = [float(value) for _, value in last.own(TRACE) or ()]
        return _Block(batch, work, factor, last, sums, sum(traces))

    @torch.no_grad()
    def _estimated(self, block: _Block, known: float, so_far: "_SoFar", ahead: float) -> _Estimate:
        """Estimates until the block has no more than its share of the variance; ``known`` of its trace comes on top."""
        energies = block.energies
        if not self._units:
            self._try_a_few(block, energies)
        found: _Estimate | None = None
        for _ in range(_ROUNDS):
            trace = self._traces / self._energy * float(energies.sum()) if found is None else found.trace
            allowed = self._allowed(so_far.trace + (known + trace) * ahead, so_far.spread.total, ahead)
            if found is not None and found.spread.total <= _SLACK * allowed:
                break
            seen = round(so_far.samples + ahead * len(energies))
            made = self._drawn(block, energies, _still_wanted(allowed, found), seen)
            found = made if found is None or not made.units else found.joined(made)
        assert found is not None
        return found

    def _try_a_few(self, block: _Block, energies: Tensor) -> None:
        """A few draws for a few samples, half of them those of the most curvature: what to plan with."""
        order = energies.flatten(1).sum(1).argsort(descending=True)
        half = order[: _PILOT // 2]
        rest = order[_PILOT // 2 :]
        chosen = torch.cat([half, rest[:: max(1, 2 * len(rest) // _PILOT)]])
        group = Group(chosen, 0, _DRAWS)
        made = self._sum_of_groups(block, energies, Plan((group,), 0.0))
        mixed = energies.flatten(1).sum(1)[chosen]
        self._learn(made.spread.total, float(mixed.square().sum()) / _DRAWS, made.trace, float(mixed.sum()))

    def _learn(self, variance: float, units: float, trace: float, energy: float) -> None:
        self._variance += variance
        self._units += units
        self._traces += trace
        self._energy += max(energy, _TINY)

    def _drawn(self, block: _Block, energies: Tensor, allowed: float, samples: int) -> _Estimate:
        """One estimate, planned to have no more than a given variance; there will be so many samples in all."""
        kappa = self._variance / max(self._units, _TINY)
        drawn = plan(energies, self.engine.rank, max(allowed, _TINY) / max(kappa, _TINY), self.generator, samples)
        made = self._sum_of_groups(block, energies, drawn)
        self._learn(made.spread.total, made.units, made.trace, float(energies.sum()))
        return made

    def _sum_of_groups(self, block: _Block, energies: Tensor, drawn: Plan) -> _Estimate:
        sums: Sums = {}
        spread = self._no_spread()
        trace = 0.0
        for group in drawn.groups:
            squares = self._sweep(block, energies, group, sums)
            trace += sum(float(part.sum()) for part in squares.values())
            spread.add({name: part[:, group.tops :] for name, part in squares.items()}, group)
        return _Estimate(self.engine.complete(sums), trace, spread, drawn.units)

    def _sweep(self, block: _Block, energies: Tensor, group: Group, sums: Sums) -> dict[str, Tensor]:
        """Pull the columns of a group back; returns the squares, (samples of the group, columns), by parameter."""
        inside = len(group.samples) > len(energies) / 2
        at = block if inside else self._start_again(block, group)
        n, members = (len(energies), group.samples) if inside else (len(group.samples), slice(None))
        found: dict[str, list[Tensor]] = {}
        for S in self._columns(at, energies[group.samples], group, n, members):
            self.watched.squares.clear()
            self.watched.add(sums, self.engine.pull(at.work, S, at.last))
            for name, part in self.watched.squares.items():
                found.setdefault(name, []).append(part[:n].cpu()[members])
        return {name: torch.cat(parts, 1) for name, parts in found.items()}

    def _start_again(self, block: _Block, group: Group) -> _Block:
        """The samples of a group by themselves."""
        batch = block.batch.pick(group.samples)
        work = self.engine.start(batch)
        factor = self.loss.factor(work.outputs, work.targets)
        last = None if block.last is None else self.engine.last_layer(work, factor)
        return _Block(batch, work, factor, last, {}, 0.0)

    def _columns(self, at: _Block, energies: Tensor, group: Group, n: int, members: Tensor | slice) -> Iterator[Tensor]:
        """The columns of a group, (n, R, ...), a few at a time, where they start from; zero for who is not in it."""
        if not group.mixes:
            for S in self.engine.all_columns(at.work, at.last):
                if not isinstance(members, slice):
                    S = S * _ones_at(members, n, S)
                yield S
            return
        count = group.tops + group.mixes
        for start in range(0, count, self.engine.columns):
            stop = min(start + self.engine.columns, count)
            coefficients = self._coefficients(energies, group, start, stop)
            if not isinstance(members, slice):
                whole = coefficients.new_zeros(n, *coefficients.shape[1:])
                whole[members] = coefficients
                coefficients = whole
            S = at.factor.mixed(coefficients.to(at.work.outputs.device))
            yield S if at.last is None else at.last.passed_on(S)

    def _coefficients(self, energies: Tensor, group: Group, start: int, stop: int) -> Tensor:
        """What the columns from start to stop are made of: single ones first, then sums with random signs."""
        shape = (len(energies), stop - start, *energies.shape[1:])
        signs = torch.randint(2, shape, generator=self.generator, dtype=torch.int8).mul_(2).sub_(1)
        mixes = signs.float().div_(sqrt(group.mixes)).flatten(2)  # (n, R, columns)
        if group.tops:
            largest = energies.flatten(1).topk(group.tops, dim=1).indices  # (n, tops)
            mixes.scatter_(2, largest.unsqueeze(1).expand(-1, stop - start, -1), 0.0)
            for k in range(start, min(stop, group.tops)):
                mixes[:, k - start] = 0.0
                mixes[:, k - start].scatter_(1, largest[:, k : k + 1], 1.0)
        return mixes.view(shape)


def _missed(error: float, tolerance: float) -> str:
    """Only what Gauss-Newton leaves out can be too much: of the columns there are all to be had."""
    return (
        f"the standard error is {percent(error, 2)} of the trace, not {percent(tolerance, 2)}: of the Hessian's two "
        "parts, Gauss-Newton and the rest, the rest takes most of the other away, or is larger. More samples help, "
        'or curvature="ggn"'
    )


def _still_wanted(allowed: float, found: _Estimate | None) -> float:
    """The variance of a further estimate such that both together have what is allowed."""
    if found is None or not allowed:
        return allowed
    return 1 / (1 / allowed - 1 / found.spread.total)


def _ones_at(members: Tensor, n: int, like: Tensor) -> Tensor:
    """(n, 1, ...), one for the members and zero for the others."""
    mask = like.new_zeros(n)
    mask[members] = 1
    return mask.view(-1, *[1] * (like.dim() - 1))
