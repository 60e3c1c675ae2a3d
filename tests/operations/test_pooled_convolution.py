"""The graph as the engine runs it: same numbers as the graph that was read, and the oracle's."""

from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.curvature import engine
from minsharp.curvature.schedule import Schedule
from minsharp.operations.rewriting import rewritten
from tests.support import oracles

CLASSES = 3


def classifier(shape: tuple[int, ...], *layers: nn.Module) -> tuple[Any, Tensor]:
    """The layers on batches of this shape, with a linear layer at the end, and data for it."""
    torch.manual_seed(0)
    x = torch.randn(5, *shape, dtype=torch.float64)
    body = nn.Sequential(*layers, nn.Flatten()).double()
    return nn.Sequential(*body, nn.Linear(prod(body(x).shape[1:]), CLASSES).double()), x


CASES = {
    "conv1d": lambda: classifier((2, 11), nn.Conv1d(2, 3, 3), nn.MaxPool1d(2), nn.ReLU()),
    "conv2d": lambda: classifier((2, 8, 8), nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2)),
    "conv3d": lambda: classifier((1, 5, 5, 6), nn.Conv3d(1, 2, 2), nn.MaxPool3d(2), nn.ReLU()),
    "no bias": lambda: classifier((1, 8, 8), nn.Conv2d(1, 3, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2)),
    "left over": lambda: classifier((1, 9, 10), nn.Conv2d(1, 3, 2), nn.MaxPool2d((3, 2)), nn.ReLU()),
    "stride and padding": lambda: classifier((2, 9, 9), nn.Conv2d(2, 3, 3, 2, 2), nn.ReLU(), nn.MaxPool2d(2)),
    "even and same": lambda: classifier((1, 7, 7), nn.Conv2d(1, 3, 4, padding="same"), nn.ReLU(), nn.MaxPool2d(2)),
    "dilation and groups": lambda: classifier((2, 9, 9), nn.Conv2d(2, 4, 3, dilation=2, groups=2), nn.MaxPool2d(2)),
    "two convolutions": lambda: classifier(
        (1, 10, 10), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 3, 2), nn.MaxPool2d(2), nn.ReLU()
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[ms.Network, Tensor]:
    model, x = CASES[request.param]()
    return ms.read(model, x), x


def names(net: ms.Network, *parameters: str) -> list[str]:
    return [operation.name for operation in rewritten(net.graph, parameters or net.graph.parameters).operations]


def test_same_numbers_as_the_oracle(case: tuple[ms.Network, Tensor]) -> None:
    net, x = case
    assert names(net).count("conv_by_place") == 1
    targets = torch.zeros(len(x), dtype=torch.long)
    trace, diagonal = ms.hessian_trace(net, x), ms.hessian_diagonal(net, x)
    for name in net.graph.parameters:
        expected = oracles.ggn_diagonal(net.module, x, targets, nn.CrossEntropyLoss(), name)
        torch.testing.assert_close(diagonal.by_parameter[name], expected, rtol=1e-10, atol=1e-13)
        assert trace.by_parameter[name] == pytest.approx(float(expected.sum()), rel=1e-10)


def test_of_equal_ones_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """An even patch makes ties, which a max pool breaks by taking the first."""
    model, x = classifier((2, 9, 9), nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    x[:, :, :6] = 1
    net = ms.read(model, x)
    ours = ms.hessian_diagonal(net, x)
    monkeypatch.setattr(engine, "fast_schedule", Schedule)
    theirs = ms.hessian_diagonal(net, x)
    for name, diagonal in theirs.by_parameter.items():
        torch.testing.assert_close(ours.by_parameter[name], diagonal, rtol=1e-12, atol=1e-15)


def test_what_is_pulled_through_stays() -> None:
    """Of two convolutions the second needs its input's cotangents, unless the first is not measured."""
    net, x = ms.read(*(made := CASES["two convolutions"]())), made[1]
    assert names(net) == [
        *("conv_by_place", "max_over_places", "add_to_channels", "relu"),
        *("conv2d", "max_pool2d", "relu", "flatten", "linear"),
    ]
    later = [name for name in net.graph.parameters if not name.startswith("0.")]
    assert names(net, *later).count("conv_by_place") == 2
    whole, part = ms.hessian_trace(net, x), ms.hessian_trace(net, x, parameters=later)
    for name in later:
        assert part.by_parameter[name] == pytest.approx(whole.by_parameter[name], rel=1e-12)


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, stride=3),
        nn.MaxPool2d(3, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(3, ceil_mode=True),
        nn.MaxPool2d((2,)),
        nn.MaxPool2d((2, 2), stride=(2,)),
        nn.MaxPool2d(8),
    ],
    ids=str,
)
def test_other_windows_stay(pool: nn.Module) -> None:
    model, x = classifier((1, 9, 9), nn.Conv2d(1, 2, 2), pool)
    net = ms.read(model, x)
    assert "conv_by_place" not in names(net)
    targets = torch.zeros(len(x), dtype=torch.long)
    expected = oracles.ggn_diagonal(net.module, x, targets, nn.CrossEntropyLoss(), "0.weight")
    assert ms.hessian_trace(net, x).by_parameter["0.weight"] == pytest.approx(float(expected.sum()), rel=1e-10)


def test_half_precision_stays() -> None:
    """What the bias brings back into range must not be rounded, or overflow, before."""
    model, x = classifier((1, 8, 8), nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.ReLU())
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.fill_(-65000.0)
        model[4].weight.mul_(1e-4)
    trace = ms.hessian_trace(model.half(), (x + 7300).half())
    assert trace.total > 0


def test_a_number_of_groups_that_is_a_size_stays() -> None:
    """One kernel for every sample, in one convolution."""

    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(1, 1, 3, bias=False), nn.Linear(9, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            n = x.shape[0]
            weight = self.conv.weight.repeat(n, 1, 1, 1)
            y = nn.functional.conv2d(x.reshape(1, n, 8, 8), weight, groups=n)
            return self.last(nn.functional.max_pool2d(y, 2).reshape(n, -1))

    grouped, x = Grouped().double(), torch.randn(4, 1, 8, 8, dtype=torch.float64)
    plain = nn.Sequential(grouped.conv, nn.MaxPool2d(2), nn.Flatten(), grouped.last)
    assert ms.hessian_trace(grouped, x).total == pytest.approx(ms.hessian_trace(plain, x).total, rel=1e-12)


def test_a_result_used_twice_stays() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(1, 2, 3), nn.Linear(2 * 9 + 2 * 36, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            both = nn.functional.max_pool2d(y, 2).flatten(1), y.flatten(1)
            return self.last(torch.cat(both, 1))

    assert "conv_by_place" not in names(ms.read(Twice(), torch.randn(4, 1, 8, 8)))
