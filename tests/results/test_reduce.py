"""Several processes give the result of one, or an error on each of them."""

import os
import signal
from typing import Any

import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.subject.shards import shard
from tests.support.ranks import on_ranks

X = torch.randn(11, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, -100, 2, 1, 0, -100, -100, 1, 2])


def _model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()


def _world() -> Any:
    return torch.distributed.group.WORLD


def _traces(rank: int, size: int) -> Any:
    """Even parts of batches; uneven parts; one that is empty; one whose targets are all ignored."""
    model, group = _model(), _world()
    stream = [(X[i : i + 3], Y[i : i + 3]) for i in range(0, 11, 3)]
    even = ms.hessian_trace(model, shard(stream, group), process_group=group)
    cuts = [0, 1, 9, 11] if size == 3 else [0, 2, 11]
    uneven = ms.hessian_diagonal(model, X[cuts[rank] : cuts[rank + 1]], process_group=group)
    part = (X[:0], Y[:0]) if rank == size - 1 else (X[rank :: size - 1], Y[rank :: size - 1])
    empty = ms.hessian_trace(model, part, process_group=group)
    counted = torch.tensor([0, 1, 2, 4, 5, 6, 9, 10])[rank - 1 :: max(size - 1, 1)] if rank else torch.tensor([3, 7, 8])
    ignored = X[counted], Y[counted]
    weightless = ms.hessian_trace(model, ignored, process_group=group)
    by_hand = ms.all_reduce(ms.hessian_trace(model, X[rank::size]))
    sharpness = ms.minimum_sharpness(model, even).value
    return even, uneven, empty, weightless, by_hand, sharpness


@pytest.mark.parametrize("size", [2, 3])
def test_as_one_process(size: int) -> None:
    model, labelled = _model(), (X, Y)
    whole, diagonal = ms.hessian_trace(model, labelled), ms.hessian_diagonal(model, X)
    plain, sharpness = ms.hessian_trace(model, X), ms.minimum_sharpness(model, labelled).value
    found = on_ranks(_traces, size)
    for rank in found:
        assert not isinstance(rank, str), rank
        even, uneven, empty, weightless, by_hand, least = rank
        for trace in (even, empty, weightless):
            assert trace.by_parameter == pytest.approx(whole.by_parameter, rel=1e-12)
            assert (trace.samples, trace.sum.weight) == (11, whole.sum.weight)
        assert uneven.samples == 11
        for name, block in diagonal.by_parameter.items():
            assert torch.allclose(uneven.by_parameter[name], block, rtol=1e-12, atol=0)
        assert by_hand.total == pytest.approx(plain.total, rel=1e-12)
        assert least == pytest.approx(sharpness, rel=1e-12)
    assert found[0][:5] == found[1][:5] == found[-1][:5], "bit by bit the same on each"


def _estimated(rank: int, size: int) -> Any:
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 90)).double(),
        X.repeat(8, 1) + torch.randn(88, 4),
    )
    part = ms.hessian_trace(model, shard(x), tolerance=0.2)
    return part, ms.hessian_trace(model, shard(x), tolerance=0.2, process_group=_world())


def test_the_errors_of_parts_are_independent() -> None:
    """Variances of sums add up, parameter by parameter and in total."""
    found = on_ranks(_estimated, 3)
    assert not any(isinstance(rank, str) for rank in found), found
    parts, whole = [part for part, _ in found], found[0][1]
    assert all(together == whole for _, together in found)
    for name in (None, *whole.by_parameter):
        errors = [(p.standard_errors[name] if name else p.standard_error) * p.sum.weight for p in parts]
        expected = sum(error**2 for error in errors) ** 0.5 / whole.sum.weight
        assert expected > 0 or name in ("2.weight", "2.bias")  # the last layer is exact
        got = whole.standard_errors[name] if name else whole.standard_error
        assert got == pytest.approx(expected, rel=1e-10)


def _margins(rank: int, size: int) -> Any:
    """Floors are those of all the data, whoever has it; uneven parts, and one that is empty."""
    group, cuts = _world(), [0, 4, 11, 11]
    parts = X[cuts[rank] : cuts[rank + 1]]
    trace = ms.hessian_trace(_model(), shard(X), curvature="margin", process_group=group)
    grams = ms.hessian_grams(_model(), parts, curvature="margin", process_group=group)
    diagonal = ms.hessian_diagonal(_model(), parts, ms.losses.Margin(), curvature="margin", process_group=group)
    return trace, grams.trace, diagonal.trace


def test_margins_have_one_floor() -> None:
    whole = ms.hessian_trace(_model(), X, curvature="margin")
    for rank in on_ranks(_margins, 3):
        assert not isinstance(rank, str), rank
        for trace in rank:
            assert (trace.samples, trace.loss) == (11, whole.loss)
            assert trace.by_parameter == pytest.approx(whole.by_parameter, rel=1e-12)


def _margins_and_one_fails(rank: int, size: int) -> Any:
    data = {0: X, 1: X[:, :3], 2: X[:0]}[rank]
    return ms.hessian_trace(_model(), data, curvature="margin", process_group=_world())


def _no_margins(rank: int, size: int) -> Any:
    return ms.hessian_trace(_model(), X[:0], curvature="margin", process_group=_world())


def test_margins_that_cannot_be_measured() -> None:
    for said in on_ranks(_margins_and_one_fails, 3):
        assert said.startswith("RankError: rank 1 of 3 failed: InputError: ")
    for said in on_ranks(_no_margins, 2):
        assert said.startswith("EmptyDataError: the data is empty")


def _raises(rank: int, size: int) -> Any:
    data = [(X[:4],), (X[:2, :3] if rank == 1 else X[4:],)]
    return ms.hessian_trace(_model(), data, process_group=_world())


def _is_killed(rank: int, size: int) -> Any:
    def data() -> Any:
        yield X[:4]
        if rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        yield X[4:]

    return ms.hessian_trace(_model(), data(), process_group=_world())


def _middle_is_killed(rank: int, size: int) -> Any:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return ms.all_reduce(ms.hessian_trace(_model(), X))


def _all_empty(rank: int, size: int) -> Any:
    return ms.hessian_trace(_model(), X[:0], process_group=_world())


def _other_weights(rank: int, size: int) -> Any:
    return ms.hessian_trace(_model(rank), X, process_group=_world())


@pytest.mark.parametrize("size", [2, 3])
def test_one_rank_raises(size: int) -> None:
    for said in on_ranks(_raises, size):
        assert said.startswith(f"RankError: rank 1 of {size} failed: InputError: ")


@pytest.mark.parametrize(("work", "size", "gone"), [(_is_killed, 2, 1), (_is_killed, 3, 2), (_middle_is_killed, 3, 1)])
def test_one_rank_is_killed(work: Any, size: int, gone: int) -> None:
    found = on_ranks(work, size)
    assert found.pop(gone) == "killed"
    for said in found:
        assert said.startswith(f"RankError: rank {gone} of {size} ended, or did not answer in time"), said


def test_nothing_at_all() -> None:
    for said in on_ranks(_all_empty, 2):
        assert said.startswith("EmptyDataError: the data is empty")


def test_different_networks() -> None:
    for said in on_ranks(_other_weights, 2):
        assert said.startswith("RankError: the processes cannot be put together: these results are of different netw")


def _in_ddp(rank: int, size: int) -> Any:
    model = nn.parallel.DistributedDataParallel(_model())
    for i in range(3):  # each sees other samples, and so its buffers are others
        model(X[rank::size] + i).sum().backward()
    own = [b.clone() for b in model.buffers()]
    trace = ms.hessian_trace(model, shard(X), process_group=_world())
    assert all(map(torch.equal, own, model.buffers()))
    return trace, {name: b.clone() for name, b in model.module.state_dict().items()}


def test_ddp_as_it_comes() -> None:
    (first, state), (second, other) = on_ranks(_in_ddp, 2)
    assert not torch.equal(state["1.running_mean"], other["1.running_mean"])
    model = _model()
    model.load_state_dict(state)
    whole = ms.hessian_trace(model, X)
    assert first.by_parameter == pytest.approx(whole.by_parameter, rel=1e-12)
    assert first == second


def _sharded(rank: int, size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = _model()
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    return ms.hessian_trace(model, X, process_group=_world())


def test_sharded_parameters_are_refused() -> None:
    for said in on_ranks(_sharded, 2):
        assert "is a DTensor: each process holds a part of it. Measure a plain copy of the model" in said


def test_without_a_group() -> None:
    trace = ms.hessian_trace(_model(), X)
    with pytest.raises(ms.InputError, match=r"there is no process group: call torch.distributed.init_process_group\("):
        ms.all_reduce(trace)
    with pytest.raises(ms.InputError, match="expected a result that adds up, a Trace, a Diagonal or Grams"):
        ms.all_reduce(3)
