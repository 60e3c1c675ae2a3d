"""The same sums from fewer columns, with an error bar: random signs, drawn for each sample by itself.

Block by block of the data: one forward pass tells how much output curvature each sample has; `plan` decides who gets
how many columns; the sums of the block are estimated, with their variance, again and again if need be, until the block
has no more than its share of the variance that the tolerance allows. So a single run through the data is enough.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import ceil, inf, sqrt
from typing import Any

import torch
from torch import Tensor

from ..errors import MinsharpWarning
from ..losses import Loss
from ..network.network import Network
from ..results.sums import CurvatureSum
from ..subject.batches import Batch, chunks
from ..text import percent
from .drawing import LEAST, Model, drawing, fewest, least_of
from .engine import Engine
from .plan import FREEDOM, Group, Plan, asked_of, plan
from .quantities import TRACE, Quantity
from .signs import generator_for
from .smooth import Rest, covariance
from .spread import Spread, Watched
from .sweep import Block, Sums, Sweeper

_TOGETHER = 4
"""Columns that a block is sized for."""
_PILOT = 16
"""Samples that tell what mixing costs, where it was not tried, and ..."""
_DRAWS = 4
"""... draws for each of them."""
_TRIED = 24
"""Degrees of freedom that tell what mixing costs, at least."""
_FEW = 24
"""Columns: if there are no more, the first samples to be drawn have all of theirs pulled back."""
_LIKE = 0.05**2
"""The least relative variance among samples that a few of them are believed to have."""
_ROUNDS = 12
_PLANNED = 0.7
"""The part of its share that the variance of a block is planned to have, and ..."""
_SLACK = 1.25
"""... how far above the share it may come out: who stops where the error looks small stops where it only looks so."""
_MISSED = 1.5
"""How many times the tolerance an error may be without a word."""

_TINY = 1e-300


@dataclass(frozen=True)
class _Estimate:
    """Unbiased sums over a block, the trace among them, and their variance; ``units`` is what was expected of that.

    In units of kappa, which draws tell: estimates are weighted by what was planned, not by how they came out. The
    variance is told with so many degrees of freedom.
    """

    sums: Sums
    trace: float
    spread: Spread
    units: float
    freedom: float

    def joined(self, other: "_Estimate") -> "_Estimate":
        """The mean of two independent estimates."""
        mine = other.units / (self.units + other.units)
        yours = 1 - mine
        sums = {name: mine * value + yours * other.sums[name] for name, value in self.sums.items()}
        spread = self.spread.times(mine**2) + other.spread.times(yours**2)
        units = mine**2 * self.units + yours**2 * other.units
        freedom = self.freedom + other.freedom
        return _Estimate(sums, mine * self.trace + yours * other.trace, spread, units, freedom)


@dataclass
class _Ratio:
    """Of what came to what was planned, or the like."""

    seen: float = 0.0
    planned: float = 0.0

    def learn(self, seen: float, planned: float) -> None:
        """One more of both."""
        self.seen += seen
        self.planned += planned

    @property
    def value(self) -> float:
        return self.seen / self.planned if self.planned else 1.0


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
        self.sweeper = Sweeper(self.engine, loss, self.watched)
        self._model: Model | None = None  # for samples that stand for others
        # an entry of a diagonal that only samples reach which were not drawn would seem to be flat
        self._may_draw = quantity is TRACE
        self._drawing, self._mixing = _Ratio(), _Ratio()  # variance that was seen, and planned
        self._trace = _Ratio()  # and that per unit of output curvature

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
            warnings.warn(_missed(so_far.error, self.tolerance, self.rest is not None), MinsharpWarning, stacklevel=2)
        sums = self.engine.complete(so_far.sums)
        covariance = (so_far.spread + so_far.rest).matrix
        return CurvatureSum(sums, so_far.weight, so_far.samples, so_far.energy, covariance)

    def _add(self, batch: Batch, so_far: "_SoFar", ahead: float) -> None:
        """Estimate the sums of a block, and add them; half of the variance is for what Gauss-Newton leaves out."""
        with torch.no_grad():
            block = self.sweeper.start(batch)
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
    def _estimated(self, block: Block, known: float, so_far: "_SoFar", ahead: float) -> _Estimate:
        """Estimates until the block has no more than its share of the variance; ``known`` of its trace comes on top."""
        told = round(so_far.samples + ahead * len(block.shares))
        found = self._first(block, told) if self._model is None else None
        scale = (self._drawing.value, self._mixing.value)  # what estimates of a block are weighted by is not from them
        for _ in range(_ROUNDS):
            trace = self._trace.value * float(block.shares.sum()) if found is None else found.trace
            allowed = self._allowed(so_far.trace + (known + trace) * ahead, so_far.spread.total, ahead)
            small = found is not None and found.spread.total <= _SLACK * allowed
            missing = self._asked - (0.0 if found is None else found.freedom * told / len(block.shares))
            if small and missing <= 0:
                break
            wanted = inf if small else max(_still_wanted(_PLANNED * allowed, found), _TINY)
            made = self._made(block, wanted, told, scale, missing, further=found is not None)
            found = made if found is None or not made.units else found.joined(made)
        assert found is not None
        return found

    @property
    def _asked(self) -> float:
        """The degrees of freedom with which the variance is to be told, over all samples."""
        known = self._mixing.planned and self._trace.value
        return asked_of(self._mixing.value / self._trace.value**2) if known else FREEDOM

    def _first(self, block: Block, told: int) -> _Estimate | None:
        """The estimate of least cost that tells its error, to learn from what further ones will come to.

        None where it is known, from a trial or from blocks before this one, what they will come to.
        """
        rank, mixes = self.engine.rank, _DRAWS if self.engine.rank > _FEW else 0
        least = least_of(len(block.shares), told)
        few = fewest(block.shares, mixes, rank, self.generator, least) if self._may_draw else None
        if few is None and told <= FREEDOM and not self._mixing.planned:
            self._try_mixing(block)
        if few is None and self._mixing.planned:
            return None
        if few is None:
            return self._counted(block, plan(block.energies, rank, inf, self.generator, told), self._mixing)
        made, squares = self._sum_of_groups(block, few)
        drawn = few.groups[-1]
        assert drawn.chance is not None
        shares = block.shares[drawn.samples]
        self._model = _learned(shares, squares * drawn.chance.unsqueeze(1), mixes)
        self._trace.learn(made.trace, float(block.shares.sum()))
        units = self._model.variance(mixes) * float(shares.div(drawn.chance).square().sum())
        self._drawing.learn(made.spread.total, units)
        return replace(made, units=self._drawing.value * units)

    def _made(
        self, block: Block, allowed: float, told: int, scale: tuple[float, float], freedom: float, *, further: bool
    ) -> _Estimate:
        """One estimate, planned to have no more than a given variance, told with so many degrees of freedom.

        There will be so many samples in all. What is further to others need not tell its variance all by itself.
        """
        rank, few = self.engine.rank, None
        if self._model is not None:
            variance = allowed / max(self._drawing.value, _TINY)
            least = LEAST if further else least_of(len(block.shares), told)
            few = drawing(block.shares, self._model, rank, variance, self.generator, least)
            if few is not None and few.cost <= len(block.shares):
                return self._counted(block, few, self._drawing, scale[0])
        if not self._mixing.planned:
            self._try_mixing(block)
            scale = (scale[0], self._mixing.value)
        units = allowed / max(self._mixing.value, _TINY)
        every = plan(block.energies, rank, units, self.generator, told, max(freedom, 0.0))
        if few is not None and few.cost < every.cost:
            return self._counted(block, few, self._drawing, scale[0])
        return self._counted(block, every, self._mixing, scale[1])

    def _counted(self, block: Block, drawn: Plan, ratio: _Ratio, scale: float | None = None) -> _Estimate:
        """An estimate by a plan, from which is learned how much its variance is."""
        made, _ = self._sum_of_groups(block, drawn)
        ratio.learn(made.spread.total, drawn.units)
        self._trace.learn(made.trace, float(block.shares.sum()))
        return replace(made, units=(ratio.value if scale is None else scale) * drawn.units)

    def _sum_of_groups(self, block: Block, drawn: Plan) -> tuple[_Estimate, Tensor]:
        """An estimate by a plan, and the squares of its last group, (samples, columns)."""
        sums: Sums = {}
        spread = self._no_spread()
        trace, squares = 0.0, torch.zeros(1, 1, dtype=torch.float64)
        for group in drawn.groups:
            found = self.sweeper.add(block, group, sums, self.generator)
            squares = sum(found.values(), torch.zeros(len(group.samples), 1, dtype=torch.float64))
            trace += float(squares.sum())
            spread.add({name: part[:, group.tops :] for name, part in found.items()}, group)
        return _Estimate(self.engine.complete(sums), trace, spread, drawn.units, drawn.freedom), squares

    def _try_mixing(self, block: Block) -> None:
        """What mixing costs, of a few samples, the more likely the more curvature they have.

        No estimate is made of these draws. Draws with a large variance are large themselves, more often than not: if
        they told how much is to be added to them, those that came out small would be left alone.
        """
        shares = block.shares
        many = min(_PILOT, max(_PILOT // 4, len(shares) // 4), int(shares.count_nonzero()))
        chosen = torch.multinomial(shares, many, generator=self.generator) if many else torch.zeros(1).long()
        draws = max(_DRAWS, 1 + ceil(_TRIED / len(chosen)))
        found = self.sweeper.add(block, Group(chosen, 0, draws), {}, self.generator)
        squares = sum(found.values(), torch.zeros(len(chosen), draws, dtype=torch.float64))
        self._mixing.learn(float(_noise(squares, draws).sum()), float(shares[chosen].square().sum()))
        self._trace.learn(float(squares.sum()), float(shares[chosen].sum()))


def _learned(shares: Tensor, squares: Tensor, mixes: int) -> Model:
    """From all columns of some samples, or from several draws for each."""
    parts = squares.sum(1) / shares
    noise = float(_noise(squares, mixes).div(shares.square()).mean()) if mixes else inf
    among = float(parts.var()) - (noise / mixes if mixes else 0.0)
    return Model(max(among, _LIKE * float(parts.mean()) ** 2, _TINY), noise)


def _noise(squares: Tensor, mixes: int) -> Tensor:
    """The variance of one draw, (n,), from several, already divided by their number."""
    return squares.var(1) * mixes**2


def _missed(error: float, tolerance: float, rest: bool) -> str:
    """What Gauss-Newton leaves out can be too much, or what was taken for a small part of the data was most of it."""
    why = (
        "of the Hessian's two parts, Gauss-Newton and the rest, the rest takes most of the other away, or is larger. "
        'More samples help, or curvature="ggn"'
        if rest
        else "the first samples have more curvature than those after them, for which draws were saved. Shuffle the "
        "data, or ask for a smaller tolerance"
    )
    return f"the standard error is {percent(error, 2)} of the trace, not {percent(tolerance, 2)}: {why}"


def _still_wanted(allowed: float, found: _Estimate | None) -> float:
    """The variance of a further estimate such that both together have what is allowed."""
    if found is None or not allowed:
        return allowed
    return 1 / (1 / allowed - 1 / found.spread.total)
