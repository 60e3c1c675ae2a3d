"""What the Gauss-Newton matrix leaves out: probes against dense autograd."""

from collections.abc import Iterator
from functools import lru_cache
from math import sqrt
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import minsharp as ms
from minsharp.curvature import rest, signs
from minsharp.curvature.activations import activations
from minsharp.curvature.rest import RestDiagonals, RestProbes, RestSum
from minsharp.errors import InputError, LossError, ReadError
from minsharp.losses import as_loss
from minsharp.losses.axis import on_axis
from minsharp.subject.batches import Batch
from tests.support.oracles import ggn_diagonal, hessian_diagonal
from tests.support.zoo import ZOO, Entry
from tests.support.zoo import network as zoo_network

N = 5
CE = nn.CrossEntropyLoss(reduction="sum")


class Attention(nn.Module):
    """Tokens, positions, a norm, causal attention, a gate of one's own: parameters that go in in all ways."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(5, 4), nn.Parameter(torch.randn(3, 4))
        self.norm, self.qkv, self.out = nn.LayerNorm(4), nn.Linear(4, 12), nn.Linear(4, 4)
        self.gate = nn.Parameter(torch.randn(4, 4))
        self.head = nn.Linear(4, 5, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.positions
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.head(torch.sigmoid(h @ self.gate.t()) * h).mT


def convolutions() -> nn.Module:
    """With and without groups, one upwards, and a norm."""
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.GELU(), nn.Conv2d(4, 4, 2, groups=2, bias=False), nn.GroupNorm(2, 4)),
        *(nn.SiLU(), nn.ConvTranspose2d(4, 2, 2, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)),
    )


def plain() -> nn.Module:
    """Two smooth layers, a norm with weights, a weight that is made of two others."""
    made = nn.utils.parametrizations.weight_norm(nn.Linear(6, 4))
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.LayerNorm(6), made, nn.GELU(), nn.Linear(4, 3))


def case(name: str) -> tuple[nn.Module, Any, Tensor]:
    torch.manual_seed(1)
    labels, tokens = torch.randint(3, (N,)), torch.randint(5, (N, 3))
    if name in ("attention", "tied"):
        return Attention(name == "tied").double(), tokens, tokens.roll(1, 1)
    if name == "convolutions":
        return convolutions().double(), torch.randn(N, 2, 2, 2).double(), labels
    return plain().double(), torch.randn(N, 3).double(), labels


CASES = ("plain", "convolutions", "attention", "tied")


@lru_cache
def prepared(name: str) -> tuple[ms.Network, Batch, Any, dict[str, Tensor]]:
    """A network, its data and loss, and the diagonal of R by dense autograd."""
    model, x, y = case(name)
    network = ms.read(model, x)
    loss = on_axis(as_loss(CE), network.graph.values[network.graph.output].shape, y, None)
    with sdpa_kernel(SDPBackend.MATH):
        truth = {n: hessian_diagonal(model, x, y, CE, n) - ggn_diagonal(model, x, y, CE, n) for n in network.parameters}
    return network, Batch(x, y), loss, truth


@pytest.mark.parametrize("name", CASES)
def test_traces_are_those_of_dense_autograd_within_their_errors(name: str) -> None:
    network, batch, loss, truth = prepared(name)
    probes = RestProbes(network, list(truth), loss, seed=3, probes=60)
    probes.add(batch)
    found = probes.sum
    expected = {n: float(t.sum()) for n, t in truth.items()}
    for n, value in found.traces.items():
        assert abs(value - expected[n]) <= 4.5 * found.standard_errors[n] + 1e-9, n
    assert abs(found.total - sum(expected.values())) <= 4 * found.standard_error + 1e-9
    assert found.standard_error > 0
    assert sum(abs(t) for t in expected.values()) > 2 * found.standard_error  # there is something to be seen


@pytest.mark.parametrize("name", CASES)
def test_diagonals_are_those_of_dense_autograd(name: str) -> None:
    network, batch, loss, truth = prepared(name)
    few, many = (_error(RestDiagonals, network, batch, loss, truth, probes) for probes in (8, 128))
    assert many < few / 2.2  # four, as the square root of their number
    found = RestDiagonals(network, list(truth), loss, 0, probes=3), RestProbes(network, list(truth), loss, 0, probes=3)
    for probes in found:
        probes.add(batch)
    assert found[0].sum.traces == pytest.approx(found[1].sum.traces, rel=1e-9, abs=1e-12)
    assert found[0].sum.variances == found[1].sum.variances


def _error(kind: Any, network: ms.Network, batch: Batch, loss: Any, truth: dict[str, Tensor], probes: int) -> float:
    estimate = kind(network, list(truth), loss, 1, probes=probes)
    estimate.add(batch)
    return sqrt(sum(float((estimate.sum.sums[n] - t).square().sum()) for n, t in truth.items()))


def test_all_signs_together_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1), nn.Sigmoid()).double()
    x, y = torch.randn(2, 2).double(), torch.rand(2, 1).double()
    bits = iter(b for k in range(64) for b in [(k >> i & 1) * 2.0 - 1 for i in range(6)])  # 2 samples, 2 + 1 results

    def drawn(shape: tuple[int, ...], like: Tensor, generator: Any) -> Tensor:
        return torch.tensor([next(bits) for _ in range(torch.Size(shape).numel())]).to(like).view(shape)

    for room in (rest, signs):
        monkeypatch.setattr(room, "signs", drawn)
    criterion = nn.MSELoss(reduction="sum")
    probes = RestDiagonals(ms.read(model, x), list(dict(model.named_parameters())), as_loss(criterion), 0, probes=64)
    probes.add(Batch(x, y))
    assert next(bits, None) is None
    for n, value in probes.sum.sums.items():
        expected = hessian_diagonal(model, x, y, criterion, n) - ggn_diagonal(model, x, y, criterion, n)
        assert torch.allclose(value, expected, rtol=1e-10)


def test_one_hidden_layer_leaves_nothing_to_chance() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 9), nn.SiLU(), nn.Linear(9, 3)).double()
    x, y = torch.randn(7, 4).double(), torch.randint(3, (7,))
    probes = RestDiagonals(ms.read(model, x), list(dict(model.named_parameters())), as_loss(CE), 0, probes=2)
    probes.add(Batch(x, y))
    expected = sum(
        float((hessian_diagonal(model, x, y, CE, n) - ggn_diagonal(model, x, y, CE, n)).sum())
        for n, _ in model.named_parameters()
    )
    assert probes.sum.total == pytest.approx(expected, rel=1e-10)
    assert probes.sum.standard_error < 1e-12


def _estimates(name: str, count: int, probes: int) -> Iterator[tuple[RestSum, float]]:
    network, batch, loss, truth = prepared(name)
    expected = sum(float(t.sum()) for t in truth.values())
    for seed in range(count):
        estimate = RestProbes(network, list(truth), loss, seed, probes)
        estimate.add(batch)
        yield estimate.sum, expected


@pytest.mark.parametrize("name", ["plain", "tied"])
def test_errors_are_as_large_as_they_say(name: str) -> None:
    found = list(_estimates(name, 40, 8))
    errors = [value.total - expected for value, expected in found]
    ratio = sum(e * e for e in errors) / sum(value.variance for value, _ in found)
    assert 0.45 < ratio < 2  # chi-squared with 40 degrees of freedom over 40 is within 0.22 of one
    assert abs(sum(errors)) < 4 * sqrt(sum(v.variance for v, _ in found))


def test_parts_of_the_data_add_up_and_seeds_reproduce() -> None:
    network, batch, loss, truth = prepared("tied")

    def estimate(*parts: Batch, seed: int = 0) -> RestSum:
        probes = RestDiagonals(network, list(truth), loss, seed, probes=3)
        for part in parts:
            probes.add(part)
        return probes.sum

    halves = batch.part(0, 2), batch.part(2, N)
    once, again, other = estimate(batch), estimate(batch), estimate(batch, seed=1)
    assert all(torch.equal(once.sums[n], again.sums[n]) for n in truth)
    assert once.variance == again.variance
    assert once.total != other.total
    first, second = estimate(halves[0]), estimate(halves[1])
    both = first + second
    assert both.samples == N
    assert both.total == pytest.approx(first.total + second.total)
    assert both.variance == pytest.approx(first.variance + second.variance)
    twins = estimate(halves[0], Batch(halves[0].inputs, halves[0].targets))
    assert twins.total != pytest.approx(2 * first.total)  # the same samples again have signs of their own
    finer = once.refined(other)
    assert finer.total == pytest.approx((once.total + other.total) / 2)
    assert finer.variance == pytest.approx((once.variance + other.variance) / 4)
    assert finer.probes == 6


def test_a_lone_sample_counts_once() -> None:
    network, batch, loss, truth = prepared("plain")
    alone = RestProbes(network, list(truth), loss, 0, probes=100)
    alone.add(batch.part(1, 2))
    x, y = batch.inputs[1:2], batch.targets[1:2]  # type: ignore[index]
    model = network.module
    expected = sum(
        float((hessian_diagonal(model, x, y, CE, n) - ggn_diagonal(model, x, y, CE, n)).sum()) for n in truth
    )
    assert abs(alone.sum.total - expected) < 4 * alone.sum.standard_error


def test_where_the_outputs_are_piecewise_linear_nothing_is_left() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    probes = RestProbes(ms.read(model, torch.zeros(2, 3)), ["0.weight", "2.bias"], as_loss(None), 0)
    probes.add(Batch(torch.randn(6, 3), None))  # and labels are not needed
    assert probes.sum.traces == {"0.weight": 0.0, "2.bias": 0.0}
    assert (probes.sum.standard_error, probes.sum.samples) == (0.0, 6)


def test_labels_are_needed() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    probes = RestProbes(ms.read(model, torch.zeros(2, 3)), ["0.weight"], as_loss(None), 0)
    with pytest.raises(LossError, match=r"the rest of the Hessian needs labels.*Pass data=\(inputs, targets\)"):
        probes.add(Batch(torch.randn(6, 3), None))
    with pytest.raises(InputError, match="probes=1: expected at least 2"):
        RestProbes(ms.read(model, torch.zeros(2, 3)), ["0.weight"], as_loss(None), 0, probes=1)


@torch.library.custom_op("minsharp_tests::once", mutates_args=())
def once(x: Tensor) -> Tensor:
    """A function whose derivative has none."""
    return x.tanh()


@torch.library.custom_op("minsharp_tests::once_back", mutates_args=())
def once_back(gradient: Tensor, x: Tensor) -> Tensor:
    return gradient * (1 - x.tanh().square())


once.register_fake(torch.empty_like)
once_back.register_fake(lambda gradient, x: torch.empty_like(x))
once.register_autograd(
    lambda ctx, gradient: once_back(gradient, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Once(nn.Module):
    """A layer with a function that torch differentiates once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = once(torch.tanh(self.layer(x)))
        return self.head(made)


class Flat(nn.Module):
    """A layer with a function that torch does not differentiate at all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.layer(x))
        return self.head(h * torch.heaviside(h, h.new_ones(())))


def test_what_has_no_derivative_is_named() -> None:
    x = torch.randn(4, 4)
    probes = RestProbes(ms.read(Flat(), x), ["layer.weight"], as_loss(None), 0)
    with pytest.raises(ReadError, match="torch cannot differentiate heaviside"):
        probes.add(Batch(x, torch.tensor([0, 1, 2, 0])))


def test_what_has_no_second_derivative_is_named() -> None:
    x = torch.randn(4, 4)
    probes = RestProbes(ms.read(Once(), x), ["layer.weight"], as_loss(None), 0)
    with pytest.raises(ReadError, match=r"torch cannot differentiate \S*once.* twice.*curvature=\"ggn\""):
        probes.add(Batch(x, torch.tensor([0, 1, 2, 0])))


def test_inputs_of_layers_have_a_rest_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 3)).double()
    x, y = torch.randn(6, 3).double(), torch.randint(3, (6,))
    layers = activations(ms.read(model, x))
    probes = RestProbes(layers, list(layers.parameters), as_loss(CE), 0, probes=100)
    probes.add(Batch(x, y))
    gauss_newton = ms.hessian_trace(layers, (x, y), CE, curvature="ggn").by_parameter
    for name, start in (("0", 0), ("2", 2), ("4", 4)):
        v = model[:start](x).detach()
        total = sum(
            float(torch.autograd.functional.hessian(lambda u, y=t: CE(model[start:](u[None]), y[None]), u).trace())  # noqa: B023
            for u, t in zip(v, y, strict=True)
        )
        error = 4 * probes.sum.standard_errors[name] + 1e-9
        assert abs(gauss_newton[name] + probes.sum.traces[name] - total) < error


@pytest.mark.slow
@pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)
def test_every_network_of_the_zoo(entry: Entry) -> None:
    net, (x, y) = zoo_network(entry), entry.data()
    names = [n for n, p in net.parameters.items() if p.requires_grad]
    loss = on_axis(as_loss(CE), net.graph.values[net.graph.output].shape, y, None)
    probes = RestProbes(net, names, loss, 0, probes=40)
    probes.add(Batch(x, y))
    model = entry.model().eval()
    for n in names:
        if net.exactness[n]:
            assert probes.sum.traces[n] == 0
            continue
        with sdpa_kernel(SDPBackend.MATH):
            truth = hessian_diagonal(model, x, y, CE, n) - ggn_diagonal(model, x, y, CE, n)
        assert abs(probes.sum.traces[n] - float(truth.sum())) < 4.5 * probes.sum.standard_errors[n] + 1e-9, n
