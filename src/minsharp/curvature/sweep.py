"""The columns of a group of samples, pulled back: single ones, sums with random signs, or all that there are."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import torch
from torch import Tensor

from ..losses import Factor, Loss
from ..subject.batches import Batch
from .engine import Engine, Work
from .head import LastLayer
from .plan import Group
from .quantities import TRACE
from .spread import Watched

Sums = dict[str, Tensor]


@dataclass(frozen=True)
class Block:
    """Some samples after a forward pass, with the last layer if it is dealt with in closed form: its own sums."""

    batch: Batch
    work: Work
    factor: Factor
    last: LastLayer | None
    own: Sums
    trace: float
    sizes: Tensor
    """How large what the weights multiply is in each sample: (n,)."""

    @cached_property
    def energies(self) -> Tensor:
        """What is expected of each sample, column by column: its output curvature times its size, (n, *entries)."""
        energies = self.factor.energies.double().cpu()
        return energies * self.sizes.view(-1, *[1] * (energies.dim() - 1))

    @cached_property
    def shares(self) -> Tensor:
        """What is expected of each sample: (n,)."""
        return self.energies.flatten(1).sum(1)


class Sweeper:
    """Runs samples forward, and pulls back what is asked for."""

    def __init__(self, engine: Engine, loss: Loss, watched: Watched):
        self.engine, self.loss, self.watched = engine, loss, watched

    def start(self, batch: Batch) -> Block:
        """One forward pass; the last layer by itself, if it can be."""
        work = self.engine.start(batch)
        factor = self.loss.factor(work.outputs, work.targets)
        last = self.engine.last_layer(work, factor)
        own = None if last is None or last.head.tied else last.own(self.watched)
        sizes = self._sizes(work)
        if last is None or own is None:
            return Block(batch, work, factor, None, {}, 0.0, sizes)
        sums: Sums = {}
        self.watched.add(sums, own)
        traces = sums if self.watched.inner is TRACE else dict(last.own(TRACE) or ())
        return Block(batch, work, factor, last, sums, sum(float(value) for value in traces.values()), sizes)

    def _sizes(self, work: Work) -> Tensor:
        """The mean over weights of the squared norm of what they multiply, in units of what is usual there: (n,).

        Gradients of a weight go with what it multiplies. Those of biases do not, which a weight of constant size
        stands for. What is usual the block tells, by its mean: so each weight has the same part in what is expected of
        the block, and a sample of no size is still expected to have that of the biases.
        """
        found = [place.contraction.sizes(place.use) for places in work.forward.places for place in places]
        sizes = [each[: work.n].double().cpu() for each in found if each is not None]
        scaled = [each / (float(each.mean()) or 1.0) for each in sizes]
        return torch.stack([torch.ones(work.n, dtype=torch.float64), *scaled]).mean(0)

    def add(self, block: Block, group: Group, sums: Sums, generator: torch.Generator) -> dict[str, Tensor]:
        """Pull the columns of a group back; returns the squares, (samples of the group, columns), by parameter.

        Those of a sample that was drawn count as often as it stands for others.
        """
        n = len(block.energies)
        inside = len(group.samples) > n / 2
        at = block if inside else self._again(block, group)
        members = group.samples if inside else torch.arange(len(group.samples))
        scale = torch.ones(len(members), dtype=torch.float64) if group.chance is None else group.chance.rsqrt()
        weights = torch.zeros(at.work.n, dtype=torch.float64).index_copy_(0, members, scale)
        found: dict[str, list[Tensor]] = {}
        for S in self._columns(at, block.energies[group.samples], group, members, generator):
            self.watched.squares.clear()
            S = S if bool((weights == 1).all()) else S * weights.to(S).view(-1, *[1] * (S.dim() - 1))
            self.watched.add(sums, self.engine.pull(at.work, S, at.last))
            for name, part in self.watched.squares.items():
                found.setdefault(name, []).append(part.cpu()[members])
        return {name: torch.cat(parts, 1) for name, parts in found.items()}

    def _again(self, block: Block, group: Group) -> Block:
        """The samples of a group by themselves."""
        batch = block.batch.pick(group.samples)
        work = self.engine.start(batch)
        factor = self.loss.factor(work.outputs, work.targets)
        last = None if block.last is None else self.engine.last_layer(work, factor)
        return Block(batch, work, factor, last, {}, 0.0, block.sizes[group.samples])

    def _columns(
        self, at: Block, energies: Tensor, group: Group, members: Tensor, generator: torch.Generator
    ) -> Iterator[Tensor]:
        """The columns of a group, (n, R, ...), some at a time, where they start from; anything for others."""
        together = self.engine.columns_of(at.work.n)
        if not group.mixes:
            yield from self.engine.all_columns(at.work, at.last, together)
            return
        count = group.tops + group.mixes
        for start in range(0, count, together):
            stop = min(start + together, count)
            made = _coefficients(energies, group, start, stop, generator)
            whole = made.new_zeros(at.work.n, *made.shape[1:]).index_copy_(0, members, made)
            S = at.factor.mixed(whole.to(at.work.outputs.device))
            yield S if at.last is None else at.last.passed_on(S)


def _coefficients(energies: Tensor, group: Group, start: int, stop: int, generator: torch.Generator) -> Tensor:
    """What the columns from start to stop are made of: single ones first, then sums with random signs."""
    shape = (len(energies), stop - start, *energies.shape[1:])
    signs = torch.randint(2, shape, generator=generator, dtype=torch.int8).mul_(2).sub_(1)
    mixes = signs.float().div_(sqrt(group.mixes)).flatten(2)  # (n, R, columns)
    if group.tops:
        largest = energies.flatten(1).topk(group.tops, dim=1).indices  # (n, tops)
        mixes.scatter_(2, largest.unsqueeze(1).expand(-1, stop - start, -1), 0.0)
        for k in range(start, min(stop, group.tops)):
            mixes[:, k - start] = 0.0
            mixes[:, k - start].scatter_(1, largest[:, k : k + 1], 1.0)
    return mixes.view(shape)
