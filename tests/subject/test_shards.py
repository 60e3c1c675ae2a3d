"""Every sample goes to one process, whatever batches the data comes in."""

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SubsetRandomSampler, TensorDataset

import minsharp as ms
from minsharp.subject.shards import refuse_repeated

X = torch.arange(11.0)[:, None]
DATA = TensorDataset(X, torch.arange(11))


def _samples(part: Any) -> list[int]:
    return [int(i) for x, *_ in part for i in x]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 20])
@pytest.mark.parametrize(
    "data",
    [X, (X, torch.arange(11)), list(X.split(3)), DataLoader(DATA, batch_size=4), [X[:1], X[1:1], X[1:]]],
    ids=["tensor", "pair", "list", "loader", "uneven"],
)
def test_every_sample_once(data: Any, size: int) -> None:
    parts = [_samples(ms.shard(data, rank=rank, size=size)) for rank in range(size)]
    assert parts == [list(range(rank, 11, size)) for rank in range(size)]


def test_targets_go_along_and_parts_can_be_read_again() -> None:
    part = ms.shard({"a": X, "b": X + 1, "labels": torch.arange(11)}, rank=1, size=4)
    for _ in range(2):
        ((inputs, targets),) = part
        assert targets.tolist() == [1, 5, 9]
        assert torch.equal(inputs["b"], X[[1, 5, 9]] + 1)


def test_what_cannot_be_split() -> None:
    with pytest.raises(ms.InputError, match="the loader shuffles, so that each process would see another order"):
        ms.shard(DataLoader(DATA, shuffle=True), rank=0, size=2)
    by_batch = DataLoader(DATA, batch_sampler=BatchSampler(SubsetRandomSampler(range(11)), 4, False))
    with pytest.raises(ms.InputError, match="the loader shuffles, so that each process would see another order"):
        ms.shard(by_batch, rank=0, size=2)
    split = DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=0))
    with pytest.raises(ms.InputError, match="which splits the data already"):
        ms.shard(split, rank=0, size=2)
    with pytest.raises(ms.InputError, match=r"rank=2, size=2: expected a rank from 0 to 1"):
        ms.shard(X, rank=2, size=2)
    with pytest.raises(ms.InputError, match="there is no process group"):
        ms.shard(X)
    with pytest.raises(ms.InputError, match="repeats samples to make 2 even parts of 11, and they would count twice"):
        refuse_repeated(split)
    refuse_repeated(DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=0, drop_last=True)))
