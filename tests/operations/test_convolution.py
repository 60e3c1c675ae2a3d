"""Convolutions in single precision, where oneDNN does the work, beside the same in double, where it does not."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.rules.pullback import laid_as


def chain(*layers: nn.Module) -> nn.Module:
    """Layers, then a mean over positions and three classes."""
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(3))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "wide enough for channels last": lambda: chain(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 40, 3, padding=1), nn.ReLU()
    ),
    "a stride and a dilation": lambda: chain(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 2, 2), nn.ReLU(), nn.Conv2d(32, 33, 2)
    ),
    "a pool between": lambda: chain(
        nn.Conv2d(3, 32, 3, padding=1), nn.MaxPool2d(3, 1), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.MaxPool2d(2), nn.ReLU()
    ),
    "padding on one side": lambda: chain(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 4, padding="same")),
    "groups": lambda: chain(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, groups=2), nn.ReLU()),
    "narrow": lambda: chain(nn.Conv2d(3, 4, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(4, 6, 5)),
}


@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("name", NETWORKS)
def test_trace_and_diagonal_are_those_in_double_precision(name: str, samples: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(samples, 3, 18, 18)
    model = NETWORKS[name]().eval()
    model(x)
    twin = deepcopy(model).double()
    for measure in (ms.hessian_trace, ms.hessian_diagonal):
        found, expected = measure(model, x), measure(twin, x.double())
        for parameter, value in expected.by_parameter.items():
            torch.testing.assert_close(
                torch.as_tensor(found.by_parameter[parameter]).double(),
                torch.as_tensor(value).double(),
                rtol=2e-4,
                atol=1e-6 * float(torch.as_tensor(value).max()),
            )


def test_images_are_laid_as_their_cotangents() -> None:
    x, G = torch.randn(2, 8, 5, 4), torch.randn(3, 2, 8, 5, 4)
    last = G.movedim(2, -1).contiguous().movedim(-1, 2)
    assert laid_as(x, G) is x
    assert laid_as(x, last).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(laid_as(x, last), x)
