"""The terms of a minimum, summed over entries that share a scale, against every entry by itself."""

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.measures.program import program, rows, traces_at
from tests.support.zoo import ZOO, Entry, network

D = torch.float64


def check(group: ms.Symmetries) -> int:
    """Both at random numbers z, for random curvature; returns how many terms there are."""
    generator = torch.Generator().manual_seed(0)
    blocks = {name: torch.rand(shape, generator=generator, dtype=D) for name, shape in group.shapes.items()}
    parts = program(blocks, group)
    z = torch.randn(group.dimension, generator=generator, dtype=D)
    logs = group.log_scales(z)
    expected = [float((block * (-2 * logs[name]).exp()).sum()) for name, block in blocks.items()]
    assert np.allclose(traces_at(parts, z.numpy()), expected, rtol=1e-12)
    assert all(logs[name].expand(shape).shape == shape for name, shape in group.shapes.items())
    return len(rows(blocks, group)[0])


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


def _smooth(seed: int, *layers: nn.Module) -> tuple[nn.Sequential, tuple[torch.Tensor, torch.Tensor], ms.Diagonal]:
    """A network, data, and an estimate of its Hessian's diagonal in which some entries are negative."""
    torch.manual_seed(seed)
    x, y = torch.randn(200, 5), torch.randint(3, (200,))
    model = nn.Sequential(nn.Linear(5, 6), nn.GELU(), nn.Linear(6, 6), *layers, nn.Linear(6, 3))
    return model, (x, y), ms.hessian_diagonal(model, (x, y), tolerance=0.02)


def _lowered(diagonal: ms.Diagonal, name: str, by: float) -> ms.Diagonal:
    """The same with that much less in every entry of a parameter."""
    sums = {**diagonal.sum.sums, name: diagonal.sum.sums[name] - by * diagonal.samples}
    return dataclasses.replace(diagonal, sum=dataclasses.replace(diagonal.sum, sums=sums))


@pytest.mark.parametrize("scope", ["layer", "neuron"])
def test_negative_terms_that_nothing_moves_are_an_offset(scope: Any) -> None:
    """A pinned parameter adds its trace to value, bound and its own part, whatever the sign; nothing else changes."""
    model, _, diagonal = _smooth(0, nn.Tanh(), nn.Linear(6, 6), nn.ReLU())
    usual = ms.minimum_sharpness(model, diagonal, scope=scope)
    assert "0.weight" in usual.pinned
    for by in (0.001, 1.0, 1e4):
        lower = ms.minimum_sharpness(model, _lowered(diagonal, "0.weight", by), scope=scope)
        offset = -30 * by
        assert torch.equal(lower.z, usual.z)
        assert lower.value == pytest.approx(usual.value + offset, rel=1e-9)
        assert lower.lower_bound == pytest.approx(usual.lower_bound + offset, rel=1e-9)
        assert lower.lower_bound <= lower.value
        assert lower.by_parameter["0.weight"] == lower.before["0.weight"]
        others = {name: part for name, part in lower.by_parameter.items() if name != "0.weight"}
        assert others == {name: usual.by_parameter[name] for name in others}
        assert lower.standard_error == pytest.approx(usual.standard_error)
        assert lower.status.case is usual.status.case
        assert pickle.loads(pickle.dumps(lower)).value == lower.value
        powers = ms.minimum_sharpness(model, _lowered(diagonal, "0.weight", by), scope=scope, power_of_two=True)
        assert lower.lower_bound <= powers.value <= powers.trace
        assert "-" not in powers.status  # how far it is above the minimum


def test_where_nothing_can_be_rescaled_the_minimum_is_the_trace() -> None:
    model, data, diagonal = _smooth(1, nn.LayerNorm(6), nn.Tanh())
    diagonal = _lowered(diagonal, "0.weight", 1.0)
    for result in (ms.minimum_sharpness(model, diagonal), ms.minimum_sharpness(model, diagonal.trace)):
        assert result.value == result.lower_bound == pytest.approx(diagonal.total)
        assert result.status.startswith("nothing to rescale")
    assert ms.verify(model, data, ms.minimum_sharpness(model, data, tolerance=0.02)).holds


@pytest.mark.parametrize("scope", ["layer", "neuron"])
def test_a_minimum_of_a_smooth_network_is_verified_and_made(scope: Any) -> None:
    """Of a network whose first layer, pinned, has a negative trace."""
    torch.manual_seed(1)
    data = torch.randn(200, 5), torch.randint(3, (200,))
    layers = [nn.Linear(5, 6), nn.GELU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)]
    model = nn.Sequential(*layers)
    result = ms.minimum_sharpness(model, data, scope=scope, tolerance=0.02)
    assert result.before["0.weight"] < 0
    assert result.value < result.trace
    assert ms.verify(model, data, result).holds
    flat = ms.flattest(model, data, scope=scope, tolerance=0.02)
    torch.testing.assert_close(flat(data[0]), model(data[0]))


@pytest.mark.parametrize(("scope", "advised"), [("layer", False), ("neuron", True)])
def test_negative_terms_that_move_are_refused(scope: Any, advised: bool) -> None:
    model, _, diagonal = _smooth(0, nn.Tanh(), nn.Linear(6, 6), nn.ReLU())
    with pytest.raises(ms.NegativeError, match=r"'6.weight' that one scale moves is -.*a smaller tolerance") as refused:
        ms.minimum_sharpness(model, _lowered(diagonal, "6.weight", 1.0), scope=scope)
    assert ('scope="layer"' in str(refused.value)) == advised
