"""Data split among processes: every sample to one of them, whatever batches it comes in."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from ..errors import InputError
from .batches import Data, batches

_SHUFFLING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


@dataclass(frozen=True)
class Shard:
    """Every ``size``-th sample of the data, from sample ``rank`` on; batches of them, as often as the data has any."""

    data: Any
    rank: int
    size: int

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        seen = 0
        for batch in batches(self.data):
            start = (self.rank - seen) % self.size
            seen += len(batch)
            if start < len(batch):
                mine = slice(start, None, self.size)
                yield pytree.tree_map_only(torch.Tensor, partial(_rows, rows=mine), batch.given)


def _rows(tensor: torch.Tensor, rows: slice) -> torch.Tensor:
    return tensor[rows]


def shard(data: Data, group: Any = None, *, rank: int | None = None, size: int | None = None) -> Shard:
    """This process's part of the data: every ``size``-th sample, beginning with number ``rank``.

    The parts differ by one sample at most, may be empty, and are those of the default process group unless ``group``,
    or ``rank`` and ``size``, say otherwise. Every process has to go through the same data in the same order: a loader
    that shuffles is refused.

    >>> parts = [shard(torch.arange(5.0)[:, None], rank=rank, size=2) for rank in range(2)]
    >>> [x.flatten().tolist() for part in parts for (x,) in part]
    [[0.0, 2.0, 4.0], [1.0, 3.0]]
    """
    if rank is None or size is None:
        rank, size = placed(group)
    if not 0 <= rank < size:
        raise InputError(f"rank={rank}, size={size}: expected a rank from 0 to {size - 1}")
    sampler = _sampler(data)
    if isinstance(sampler, DistributedSampler):
        raise InputError("the loader has a DistributedSampler, which splits the data already; pass it without shard()")
    if isinstance(sampler, _SHUFFLING):
        raise InputError("the loader shuffles, so that each process would see another order: shuffle=False")
    return Shard(data, rank, size)


def _sampler(data: object) -> object:
    """What says in which order a loader goes through its data, sample by sample or by the batch; none if nothing."""
    by_batch = getattr(data, "batch_sampler", None)
    return getattr(data, "sampler", None) if by_batch is None else getattr(by_batch, "sampler", by_batch)


def is_read_once(data: object) -> bool:
    """Whether data is gone once it has been gone through."""
    while isinstance(data, Shard):
        data = data.data
    return isinstance(data, Iterator)


def refuse_repeated(data: object) -> None:
    """Refuse a loader whose sampler gives some samples twice, so that all parts are of one length."""
    sampler = _sampler(data)
    if not isinstance(sampler, DistributedSampler):
        return
    count, parts = len(sampler.dataset), sampler.num_replicas  # type: ignore[arg-type]
    if count % parts and not sampler.drop_last:
        raise InputError(
            f"the loader's DistributedSampler repeats samples to make {parts} even parts of {count}, and they would "
            "count twice: pass shard(loader) of a plain loader"
        )


def placed(group: Any) -> tuple[int, int]:
    """The rank of this process in a group, or in all of them, and how many there are."""
    import torch.distributed as dist

    if not dist.is_initialized():
        raise InputError('there is no process group: call torch.distributed.init_process_group("gloo") first')
    return dist.get_rank(group), dist.get_world_size(group)
