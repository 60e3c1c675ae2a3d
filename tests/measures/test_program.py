"""The terms of a minimum, summed over entries that share a scale, against every entry by itself."""

import numpy as np
import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.measures.program import program, traces_at
from tests.support.zoo import ZOO, Entry, network

D = torch.float64


def check(group: ms.Symmetries) -> int:
    """Both at random numbers z, for random curvature; returns how many terms there are."""
    generator = torch.Generator().manual_seed(0)
    blocks = {name: torch.rand(shape, generator=generator, dtype=D) for name, shape in group.shapes.items()}
    log_c, A, owner = program(blocks, group)
    z = torch.randn(group.dimension, generator=generator, dtype=D)
    logs = group.log_scales(z)
    expected = [float((block * (-2 * logs[name]).exp()).sum()) for name, block in blocks.items()]
    assert np.allclose(traces_at(log_c, A, owner, z.numpy(), len(blocks)), expected, rtol=1e-12)
    assert all(logs[name].expand(shape).shape == shape for name, shape in group.shapes.items())
    return len(log_c)


@pytest.mark.parametrize("entry", ZOO, ids=lambda e: e.name)
def test_the_zoo(entry: Entry) -> None:
    check(ms.symmetries(network(entry), entry.data()[0], scope="neuron"))


def test_taps_of_a_kernel_are_one_term() -> None:
    model = nn.Sequential(nn.Conv2d(2, 5, 3, bias=False), nn.ReLU(), nn.Conv2d(5, 4, 3, bias=False), nn.ReLU())
    model.append(nn.Conv2d(4, 3, 3, bias=False))
    group = ms.symmetries(model, torch.zeros(1, 2, 9, 9), scope="neuron")
    assert check(group) == 5 + 5 * 4 + 4  # what comes in and goes out is fixed: one for each factor, one for each pair


def test_scales_that_equations_fix_are_one() -> None:
    """BatchNorm's running statistics hold what goes in: a convolution has a factor for each of its inputs alone."""
    layers = (nn.Conv2d(2, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3, bias=False))
    model = nn.Sequential(*layers, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 25, 3)).eval()
    group = ms.symmetries(model, torch.zeros(1, 2, 9, 9), scope="neuron")
    assert group.nodes.count == 1 + 6 + 8
    assert check(group) == 1 + 6 + 6 + 6 + 8 + 8 + 8 + 1  # convolutions, what BatchNorms multiply and add, the rest


def test_entries_that_are_tied_otherwise() -> None:
    """A weight that is used transposed, and twice: its numbers change along both axes."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x @ self.weight.T) @ self.weight

    check(ms.symmetries(Tied(), torch.zeros(1, 6), scope="neuron"))
