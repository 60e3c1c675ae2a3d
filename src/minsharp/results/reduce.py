"""Results of several processes as one: sums add up, so they travel up a tree, and the whole down again.

Every wait is for one peer, and every peer answers, whatever happened to it: with its result, with nothing (its part of
the data was empty), or with its failure. So a failure reaches every process, and one that is gone is noticed by those
that wait for it, whose other peers then hear of it too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from ..errors import EmptyDataError, InputError, RankError, WeightlessError
from ..frozen import held
from ..subject.model import unwrapped
from ..subject.shards import placed, refuse_repeated
from .curvature import Diagonal, Trace
from .gram import Grams

Result = TypeVar("Result")


@dataclass(frozen=True)
class Failure:
    """What a process tells in place of a result."""

    text: str


def all_reduce(result: Result, group: Any = None) -> Result:
    """The sum of the results of all processes of a group (all of them, unless given), on each of them.

    Each process passes the result for its own part of the data. Results of different networks, losses or parameters are
    refused, on every process; where one process fails or ends, the others raise a `RankError`.

    >>> import torch, minsharp
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> trace = minsharp.hessian_trace(torch.nn.Linear(3, 2), torch.ones(4, 3))
    >>> all_reduce(trace) == trace
    True
    >>> dist.destroy_process_group()
    """
    if not isinstance(result, Trace | Diagonal | Grams):
        raise InputError(
            f"all_reduce({type(result).__name__}): expected a result that adds up, a Trace, a Diagonal or Grams"
        )
    if group is None and not dist.is_initialized():
        raise InputError('there is no process group: call torch.distributed.init_process_group("gloo") first')
    return together(lambda: result, dist.group.WORLD if group is None else group)


def together(measure: Callable[[], Result], group: Any, model: object = None, data: object = None) -> Result:
    """What every process of a group measures, added up; without a group, what this one does."""
    if group is None:
        return measure()
    mine, total, nothing = shared(measure, _added, group, model, data)
    if nothing is not None and (total is None or not total.sum.weight):
        raise nothing
    return _like(total, mine)


def shared(
    measure: Callable[[], Any], combine: Callable[[Any, Any], Any], group: Any, model: object, data: object
) -> tuple[Any, Any, Exception | None]:
    """What this process measures, what all do, combined, and why this one has nothing, if so: None then counts."""
    nothing: Exception | None = None
    mine: Any
    try:
        refuse_repeated(data)
        with _buffers_of_the_first(model, group):
            mine = measure()
    except RankError:
        raise
    except (EmptyDataError, WeightlessError) as error:
        mine, nothing = getattr(error, "result", None), error
    except Exception as error:
        agreed(_failure(error, group), _first, group, error)
    return mine, agreed(_on_cpu(mine), combine, group), nothing


def _failure(error: Exception, group: Any) -> Failure:
    where = f"rank {dist.get_rank(group)} of {dist.get_world_size(group)}"
    return Failure(f"{where} failed: {type(error).__name__}: {error}")


def agreed(mine: Any, combine: Callable[[Any, Any], Any], group: Any, cause: Exception | None = None) -> Any:
    """What all processes say, combined in the order of their ranks, and told to all; a failure is raised on all."""
    rank, size = placed(group)
    children = [rank + step for step in _steps(rank, size) if rank + step < size]
    for child in children:
        mine = _joined(mine, _heard(child, group), combine)
    if rank:
        parent = rank - (rank & -rank)
        if not _told(mine, parent, group):
            mine = _gone(parent, size)
        answer = _heard(parent, group)
    else:
        answer = mine
    for child in reversed(children):
        _told(answer, child, group)
    if isinstance(answer, Failure):
        raise RankError(answer.text) from cause
    return answer


def _steps(rank: int, size: int) -> Iterator[int]:
    """How far away the children of a rank are in the tree: 1, 2, 4, ... up to its own lowest bit."""
    step = 1
    while step < size and not rank & step:
        yield step
        step *= 2


def _joined(mine: Any, heard: Any, combine: Callable[[Any, Any], Any]) -> Any:
    for word in (mine, heard):
        if isinstance(word, Failure):
            return word
    try:
        return combine(mine, heard)
    except InputError as error:
        return Failure(f"the processes cannot be put together: {error}")


def _added(mine: Any, heard: Any) -> Any:
    return heard if mine is None else mine if heard is None else mine + heard


def _first(mine: Any, heard: Any) -> Any:
    return heard if mine is None else mine


def _told(word: Any, rank: int, group: Any) -> bool:
    """Tell a rank of the group; whether it was there."""
    with suppress(RuntimeError, ValueError):
        dist.send_object_list([word], dist.get_global_rank(group, rank), group)
        return True
    return False


def _heard(rank: int, group: Any) -> Any:
    """What a rank of the group says; that it is gone, if it is."""
    box: list[Any] = [None]
    try:
        dist.recv_object_list(box, dist.get_global_rank(group, rank), group)
    except (RuntimeError, ValueError) as error:
        return _gone(rank, dist.get_world_size(group), error)
    return box[0]


def _gone(rank: int, size: int, error: Exception | None = None) -> Failure:
    reason = (str(error).strip().splitlines() or [""])[0][-200:]
    return Failure(f"rank {rank} of {size} ended, or did not answer in time{': ' if reason else ''}{reason}")


def _on_cpu(result: Any) -> Any:
    """A result that can travel, whatever devices the others have; what its network does stays at home."""
    if not isinstance(result, Trace | Diagonal | Grams):
        return result
    sums = {name: tensor.cpu() for name, tensor in held(result.sum, "sums").items()}
    return replace(result, sum=replace(result.sum, sums=sums), graph=None)


def _like(total: Any, mine: Any) -> Any:
    """The sum on the device of one's own part, with the network that one has read oneself."""
    if mine is None:
        return total
    sums = {name: tensor.to(held(mine.sum, "sums")[name].device) for name, tensor in held(total.sum, "sums").items()}
    return replace(total, sum=replace(total.sum, sums=sums), graph=mine.graph)


@contextmanager
def _buffers_of_the_first(model: object, group: Any) -> Iterator[None]:
    """The buffers of rank 0 in a DistributedDataParallel, as its next forward would have them; then one's own again."""
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        yield
        return
    buffers = dict(unwrapped(model).named_buffers())
    own = {name: buffer.detach().clone() for name, buffer in buffers.items()}
    first = {name: buffer.cpu() for name, buffer in own.items()} if dist.get_rank(group) == 0 else None
    try:
        _fill(buffers, agreed(first, _first, group))
        yield
    finally:
        _fill(buffers, own)


@torch.no_grad()
def _fill(buffers: dict[str, torch.Tensor], values: dict[str, torch.Tensor]) -> None:
    for name, buffer in buffers.items():
        if not torch.equal(buffer.cpu(), values[name].cpu()):
            buffer.copy_(values[name])
