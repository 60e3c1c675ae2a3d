"""Every network of the zoo against the dense oracle, however the data is cut."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import minsharp as ms
from tests.support import oracles
from tests.support.zoo import ZOO, Entry, network

CRITERION = nn.CrossEntropyLoss()
SMALL = 20_000  # bytes: forces chunks of two samples and, where there are positions, of a few columns


@cache
def oracle(entry: Entry) -> dict[str, Tensor]:
    """The Gauss-Newton diagonal of every parameter that requires a gradient."""
    model = entry.model().eval()
    inputs, targets = entry.data()
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    return {name: oracles.ggn_diagonal(model, inputs, targets, CRITERION, name) for name in names}


def assert_diagonal(result: ms.Diagonal, expected: dict[str, Tensor], rtol: float) -> None:
    """Every entry, relative to the largest of its tensor; what is zero but for rounding, relative to everything."""
    assert list(result.by_parameter) == list(expected)
    total = sum(float(d.sum()) for d in expected.values())
    for name, diagonal in expected.items():
        error = float((result.by_parameter[name] - diagonal).abs().max())
        assert error <= rtol * float(diagonal.max()) + 1e-4 * rtol * total, name


def assert_trace(result: ms.Trace, expected: dict[str, Tensor], rtol: float) -> None:
    assert list(result.by_parameter) == list(expected)
    total = sum(float(d.sum()) for d in expected.values())
    for name, diagonal in expected.items():
        assert result.by_parameter[name] == pytest.approx(float(diagonal.sum()), rel=rtol, abs=1e-4 * rtol * total), (
            name
        )
    assert result.total == pytest.approx(total, rel=rtol)


@pytest.fixture(params=ZOO, ids=lambda entry: entry.name)
def entry(request: pytest.FixtureRequest) -> Entry:
    chosen: Entry = request.param
    return chosen


def test_trace_and_diagonal_equal_the_dense_gauss_newton_matrix(entry: Entry) -> None:
    data = entry.data()
    assert_diagonal(ms.hessian_diagonal(network(entry), data, curvature="ggn"), oracle(entry), 1e-9)
    assert_trace(ms.hessian_trace(network(entry), data, curvature="ggn"), oracle(entry), 1e-9)


def test_exactness_is_known_and_true(entry: Entry) -> None:
    """Where the network says exact, the dense Hessian agrees; where it says not, it names an operation."""
    model = entry.model().eval()
    inputs, targets = entry.data()
    inexact = {name for name, exact in network(entry).exactness.items() if not exact}
    assert inexact == set(entry.inexact)
    for name, expected in oracle(entry).items():
        if name not in inexact:
            hessian = oracles.hessian_diagonal(model, inputs, targets, CRITERION, name)
            assert torch.allclose(hessian, expected, rtol=1e-9, atol=1e-12), name
    for name in inexact:
        blame = network(entry).exactness[name].blame
        assert blame is not None
        assert blame.name in blame.where


def test_hessian_is_returned_or_refused(entry: Entry) -> None:
    exact = [name for name in oracle(entry) if name not in entry.inexact]
    data = entry.data()
    result = ms.hessian_trace(network(entry), data, parameters=exact)
    assert_trace(result, {name: oracle(entry)[name] for name in exact}, 1e-9)
    assert all(result.exact.values())
    if entry.inexact:
        with pytest.raises(ms.NotExactError, match='curvature="ggn"') as error:
            ms.hessian_trace(network(entry), data)
        for name in list(entry.inexact)[:10]:
            if len(entry.inexact) <= 10:
                assert name in str(error.value)


def test_single_precision(entry: Entry) -> None:
    data = entry.data(dtype=torch.float32)
    net = network(entry, torch.float32)
    assert_diagonal(ms.hessian_diagonal(net, data, curvature="ggn"), oracle(entry), 1e-4)
    assert_trace(ms.hessian_trace(net, data, curvature="ggn"), oracle(entry), 1e-4)


def _uneven(data: Any) -> Iterator[Any]:
    """The same samples in batches of 1, 3 and 1."""
    from minsharp.subject.batches import batches

    (whole,) = batches(data)
    for start, stop in ((0, 1), (1, 4), (4, 5)):
        part = whole.part(start, stop)
        yield part.inputs, part.targets


def test_chunks_batches_and_subsets_change_nothing(entry: Entry) -> None:
    data, net = entry.data(), network(entry)
    some = list(oracle(entry))[1:] or list(oracle(entry))
    expected = {name: oracle(entry)[name] for name in some}
    kinds: list[tuple[Any, Any]] = [(ms.hessian_trace, assert_trace), (ms.hessian_diagonal, assert_diagonal)]
    for measure, check in kinds:
        check(measure(net, _uneven(data), curvature="ggn", memory=SMALL), oracle(entry), 1e-9)
        check(measure(net, data, curvature="ggn", parameters=some), expected, 1e-9)
        check(measure(net, data, curvature="ggn", memory=1), oracle(entry), 1e-9)


def test_parts_of_the_data_add_up(entry: Entry) -> None:
    net = network(entry)
    parts = [ms.hessian_diagonal(net, part, curvature="ggn") for part in _uneven(entry.data())]
    whole = parts[0] + parts[1] + parts[2]
    assert whole.samples == 5
    assert_diagonal(whole, oracle(entry), 1e-9)
    assert_trace(whole.trace, oracle(entry), 1e-9)


def test_reduction_sum(entry: Entry) -> None:
    inputs, targets = entry.data()
    result = ms.hessian_trace(network(entry), (inputs, targets), nn.CrossEntropyLoss(reduction="sum"), curvature="ggn")
    expected = {name: diagonal * targets.numel() for name, diagonal in oracle(entry).items()}
    assert_trace(result, expected, 1e-9)


def test_a_model_is_as_good_as_a_network(entry: Entry) -> None:
    model = entry.model()
    result = ms.hessian_trace(model, entry.data(), curvature="ggn")
    assert_trace(result, oracle(entry), 1e-9)
    assert all(module.training for module in model.modules())


def test_current_parameter_values_are_used() -> None:
    entry = ZOO[0]
    model = entry.model()
    net = ms.read(model, entry.data()[0])
    before = ms.hessian_trace(net, entry.data())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    after, fresh = ms.hessian_trace(net, entry.data()), ms.hessian_trace(model, entry.data())
    assert after.by_parameter == fresh.by_parameter
    assert after.total != before.total


def test_data_loader() -> None:
    entry = ZOO[0]
    inputs, targets = entry.data()
    assert isinstance(inputs, Tensor)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=2)
    assert_trace(ms.hessian_trace(network(entry), loader, progress=True), oracle(entry), 1e-9)
    unlabelled = DataLoader(TensorDataset(inputs), batch_size=2)
    assert_trace(ms.hessian_trace(network(entry), unlabelled), oracle(entry), 1e-9)
