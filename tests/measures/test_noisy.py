"""The least effect of noise that grows with the weights: against an independent minimiser, and on its promises."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.solve.status import Status
from tests.support.zoo import BY_NAME, ZOO, Entry, call, network, rescaled

NOISES = ("relative", "max", "max-per-channel")


@pytest.fixture(params=ZOO, ids=lambda e: e.name)
def entry(request: pytest.FixtureRequest) -> Entry:
    chosen: Entry = request.param
    return chosen


def size(weight: Tensor, noise: str) -> Tensor:
    """The variance, by its definition."""
    squares = weight.square()
    if noise == "relative":
        return squares.mean()
    if noise == "max" or weight.dim() < 2:
        return squares.max()
    return squares.flatten(1).max(1).values.view(-1, *[1] * (weight.dim() - 1))


def objective(h: Any, w: Any, noise: str, biases: str) -> float:
    return sum(float((size(w[n], noise) * h[n]).sum()) for n in h if biases == "noisy" or w[n].dim() > 1)


def independent_minimum(net: ms.Network, diagonal: ms.Diagonal, noise: str, biases: str) -> float:
    """scipy on the definition: BFGS where it is smooth, else SLSQP with a bound for every entry, not the largest."""
    fixed = [name for name in net.parameters if name not in diagonal.by_parameter]
    symmetries = ms.symmetries(net, net_example(net), "neuron", fixed=fixed)
    noisy = [n for n in diagonal.by_parameter if biases == "noisy" or net.parameters[n].dim() > 1]
    count = symmetries.dimension
    units = [symmetries.log_scales(torch.eye(count, dtype=torch.float64)[k]) for k in range(count)]
    parts: list[tuple[Any, ...]] = []
    total = 0
    for name in noisy:
        weight = net.parameters[name].detach().double()
        channels = len(weight) if noise == "max-per-channel" and weight.dim() > 1 else 1
        t = torch.stack([unit[name].expand(weight.shape).flatten() for unit in units], 1).numpy()
        squares = weight.square().flatten().numpy() / (weight.numel() if noise == "relative" else 1)
        own = total + np.arange(weight.numel()) // (weight.numel() // channels)
        parts.append((t, diagonal.by_parameter[name].flatten().numpy(), squares, own))
        total += channels
    A, h, w, group = (np.concatenate(column) for column in zip(*parts, strict=True))
    felt = np.bincount(group, h, total)[group] > 0  # what has no curvature has no part in it
    A, h, w = A[felt], h[felt], w[felt]
    numbers, group = np.unique(group[felt], return_inverse=True)
    return _smooth(A, h, w, group) if noise == "relative" else _cornered(A, h, w, group, len(numbers))


def net_example(net: ms.Network) -> Any:
    return next(e for e in ZOO if network(e) is net).data()[0]


def _smooth(A: Any, h: Any, w: Any, group: Any) -> float:
    E = np.eye(group.max() + 1)[group]

    def f(z: Any) -> tuple[float, Any]:
        t = A @ z
        N, H = E.T @ (w * np.exp(2 * t)), E.T @ (h * np.exp(-2 * t))
        slope = 2 * A.T @ ((E @ H) * w * np.exp(2 * t) - (E @ N) * h * np.exp(-2 * t))
        return float(np.log(N @ H)), slope / (N @ H)

    found = scipy.optimize.minimize(f, np.zeros(A.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-9})
    return float(np.exp(found.fun))


def _cornered(A: Any, h: Any, w: Any, group: Any, total: int) -> float:
    B = np.concatenate([-2 * A, np.eye(total)[group]], 1)
    with np.errstate(divide="ignore"):
        log_h, log_w = np.log(h), np.log(w)
    held = np.isfinite(log_w)

    def f(x: Any) -> tuple[float, Any]:
        terms = np.exp(log_h + B @ x)
        return float(np.log(terms.sum())), B.T @ terms / terms.sum()

    top = np.array([log_w[group == k].max() for k in range(total)])
    bound = {"type": "ineq", "fun": lambda x: (B @ x - log_w)[held], "jac": lambda x: B[held]}
    start = np.concatenate([np.zeros(A.shape[1]), top])
    options = {"maxiter": 1000, "ftol": 1e-13}
    found = scipy.optimize.minimize(f, start, jac=True, method="SLSQP", constraints=[bound], options=options)
    return float(np.exp(found.fun))


SOLID = [e for e in ZOO if e.name in ("mlp", "deep_mlp", "residual", "concat", "no_biases", "two_classes")]


@pytest.mark.parametrize("chosen", SOLID, ids=lambda e: e.name)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("biases", ["exact", "noisy"])
def test_equals_an_independent_minimiser(chosen: Entry, noise: Any, biases: Any) -> None:
    net = network(chosen)
    diagonal = ms.hessian_diagonal(net, chosen.data(), curvature="ggn")
    result = ms.minimum_sharpness(net, diagonal, scope="neuron", noise=noise, biases=biases)
    best = independent_minimum(net, diagonal, noise, biases)
    assert result.value == pytest.approx(best, rel=1e-6)
    assert 0 <= result.value - result.lower_bound <= 1e-7 * result.value


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
def test_equals_an_independent_minimiser_on_the_zoo(entry: Entry, noise: Any) -> None:
    """Every network with something to rescale."""
    net = network(entry)
    diagonal = ms.hessian_diagonal(net, entry.data(), curvature="ggn")
    result = ms.minimum_sharpness(net, diagonal, scope="neuron", noise=noise)
    if result.symmetries.dimension:
        assert result.attained
        assert independent_minimum(net, diagonal, noise, result.biases) == pytest.approx(result.value, rel=1e-6)


@pytest.mark.parametrize("noise", NOISES)
def test_certified_and_attained_and_invariant(entry: Entry, noise: Any) -> None:
    """Value and bound agree; the network that is returned has the value; rescaling changes nothing."""
    net, data = network(entry), entry.data()
    diagonal = ms.hessian_diagonal(net, data, curvature="ggn")
    result = ms.minimum_sharpness(net, diagonal, scope="neuron", noise=noise)
    assert result.lower_bound <= result.value <= result.trace * (1 + 1e-12)
    assert result.value - result.lower_bound <= 1e-6 * result.value
    flat = rescaled(net, result.scales)
    fresh = ms.hessian_diagonal(flat, data, curvature="ggn").by_parameter
    weights = {n: p.detach() for n, p in flat.parameters.items()}
    if result.attained:
        expected = objective(fresh, weights, noise, result.biases)
        assert expected == pytest.approx(result.value, rel=1e-8, abs=1e-300)
        assert sum(result.by_parameter.values()) == pytest.approx(result.value, rel=1e-8, abs=1e-300)
    with torch.no_grad():
        outputs = call(net.module.eval(), data[0])
        assert torch.allclose(call(flat.module.eval(), data[0]), outputs, rtol=1e-9, atol=1e-10)
    other = rescaled(net, result.symmetries.random(3, 30.0))
    moved = ms.minimum_sharpness(other, data, scope="neuron", noise=noise, curvature="ggn")
    assert moved.value == pytest.approx(result.value, rel=1e-6)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("curvature", ["hessian", "margin"])
def test_the_flattest_network_is_verified(noise: Any, curvature: Any) -> None:
    entry = BY_NAME["lenet"]
    model, data = entry.model(), entry.data()
    result = ms.minimum_sharpness(model, data, scope="neuron", noise=noise, curvature=curvature)
    verification = ms.verify(model, data, result)
    assert verification.holds, verification
    assert result.value < result.trace
    flat = ms.flattest(model, data, noise=noise, curvature=curvature)
    weights = {n: p.detach() for n, p in flat.named_parameters()}
    fresh = ms.hessian_diagonal(flat, data, curvature=curvature).by_parameter
    assert objective(fresh, weights, noise, result.biases) == pytest.approx(result.value, rel=1e-8)


def test_a_lie_is_found() -> None:
    entry = BY_NAME["mlp"]
    model, data = entry.model(), entry.data()
    result = ms.minimum_sharpness(model, data, scope="neuron", noise="max")
    lie = dataclasses.replace(result, by_parameter={n: 2 * v for n, v in result.by_parameter.items()})
    assert not ms.verify(model, data, lie).holds
    assert not ms.verify(model, data, dataclasses.replace(result, noise="relative")).holds


@pytest.mark.parametrize("noise", NOISES)
def test_layers_have_nothing_to_gain(noise: Any) -> None:
    entry = BY_NAME["deep_mlp"]
    net, data = network(entry), entry.data()
    result = ms.minimum_sharpness(net, data, noise=noise)
    assert result.value == result.lower_bound == pytest.approx(result.trace, rel=1e-12)
    assert "nothing to gain from a factor per layer" in result.status
    assert 'scope="neuron" can lower it' in result.status
    other = rescaled(net, result.symmetries.random(0))
    assert ms.minimum_sharpness(other, data, noise=noise).value == pytest.approx(result.value, rel=1e-9)
    assert ms.minimum_sharpness(net, data, noise=noise, scope="neuron").value < result.value


def test_exact_biases_under_absolute_noise() -> None:
    entry = BY_NAME["mlp"]
    net, data = network(entry), entry.data()
    exact, noisy = (ms.minimum_sharpness(net, data, scope="neuron", biases=b) for b in ("exact", "noisy"))
    assert exact.value < noisy.value
    assert exact.by_parameter["0.bias"] == 0
    assert noisy.value == ms.minimum_sharpness(net, data, scope="neuron").value
    assert "biases exact" in repr(exact)
    assert ms.verify(entry.model(), data, exact).holds


def test_dead_weights_with_curvature_are_an_infimum() -> None:
    """A hidden unit without weights into it, whose own curvature can be scaled away for ever."""
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        model[0].weight[0].zero_()
        model[0].bias.fill_(1.0)
    x = torch.randn(6, 3, dtype=torch.float64)
    for noise in NOISES:
        result = ms.minimum_sharpness(model, x, scope="neuron", noise=noise)  # type: ignore[arg-type]
        assert result.value <= result.trace
        with torch.no_grad():
            assert torch.allclose(ms.rescale(model, result.scales)(x), model(x), rtol=1e-9)
        if not result.attained:
            assert "not attained" in result.status
        assert sum(result.by_parameter.values()) == pytest.approx(result.value, rel=1e-3)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("empty", [True, False])
def test_a_dead_unit_that_only_makes_noise_is_scaled_away(noise: Any, empty: bool) -> None:
    """Nothing goes out of it, its weights are the largest: the network that is handed back is as good as was said."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        model[0].bias.fill_(0.5)
        model[0].bias[1] = -50.0
        model[0].weight[1] *= 3
        model[2].weight[:, 1] = 0
        if empty:
            model[0].weight[0] = 0
    x = torch.randn(20, 3, dtype=torch.float64)
    result = ms.minimum_sharpness(model, x, scope="neuron", noise=noise)
    assert ms.verify(model, x, result).holds
    assert sum(result.by_parameter.values()) == pytest.approx(result.value, rel=1e-7 if result.attained else 1e-3)
    assert result.value - result.lower_bound <= 1e-6 * result.value


def test_all_zero_tensors_have_no_noise() -> None:
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        model[2].weight.zero_()
    x = torch.randn(6, 3, dtype=torch.float64)
    for noise in NOISES:
        result = ms.minimum_sharpness(model, x, scope="neuron", noise=noise)  # type: ignore[arg-type]
        assert result.by_parameter["2.weight"] == 0
    with torch.no_grad():
        model[0].weight.zero_()
    result = ms.minimum_sharpness(model, x, scope="neuron", noise="max")
    assert (result.value, result.lower_bound) == (0, 0)
    assert result.status.startswith("zero")
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    for noise in NOISES:
        for scope in ("neuron", "layer"):
            result = ms.minimum_sharpness(model, x, scope=scope, noise=noise)  # type: ignore[arg-type]
            assert (result.value, result.status.case) == (0, Status.NO_NOISE)
            assert "no weight that the noise reaches has both curvature and size" in result.status
    none = estimated(ms.hessian_diagonal(model, x), lambda _, h: 0 * h)
    result = ms.minimum_sharpness(model, none, scope="neuron", noise="max")
    assert result.status.case is Status.NO_CURVATURE
    assert ms.minimum_sharpness(model, none, scope="neuron").status.case is Status.NO_CURVATURE


def test_a_trivial_group() -> None:
    result = ms.minimum_sharpness(nn.Linear(3, 2), torch.randn(5, 3), scope="neuron", noise="max")
    assert result.value == pytest.approx(result.trace, rel=1e-12)
    assert "nothing to rescale" in result.status


def test_what_is_refused() -> None:
    entry = BY_NAME["mlp"]
    net, data = network(entry), entry.data()
    with pytest.raises(ms.InputError, match="noise='uniform': expected one of 'absolute', 'relative', 'max', 'ma"):
        ms.minimum_sharpness(net, data, noise="uniform")  # type: ignore[arg-type]
    with pytest.raises(ms.InputError, match="biases='none': expected 'exact' or 'noisy'"):
        ms.minimum_sharpness(net, data, noise="max", biases="none")  # type: ignore[arg-type]
    with pytest.raises(ms.InputError, match='power_of_two=True goes with noise="absolute"'):
        ms.flattest(net, data, noise="max", power_of_two=True)
    trace = ms.hessian_trace(net, data)
    with pytest.raises(ms.InputError, match='noise="max-per-channel" needs the diagonal'):
        ms.minimum_sharpness(net, trace, noise="max-per-channel")
    diagonal = ms.hessian_diagonal(net, data)
    sums = {name: -value for name, value in diagonal.sum.sums.items()}
    negative = ms.Diagonal(type(diagonal.sum)(sums, 1.0, 5), "hessian", "x", True, diagonal.exact, diagonal.graph)
    with pytest.raises(
        ms.InputError, match=r"the curvature of '0\.weight' that one scale moves is -.* scope=\"layer\""
    ):
        ms.minimum_sharpness(net, negative, scope="neuron", noise="max")


def estimated(diagonal: ms.Diagonal, shift: Any) -> ms.Diagonal:
    """With other sums."""
    sums = {name: shift(name, h) for name, h in diagonal.sum.sums.items()}
    return dataclasses.replace(diagonal, sum=dataclasses.replace(diagonal.sum, sums=sums))


class Mixed(nn.Module):
    """Scales on both sides of the first pair of layers, none within the second."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.GELU(), nn.Linear(7, 5), nn.GELU(), nn.Linear(5, 4)
        ).double()

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x)
        return outputs


@pytest.mark.parametrize("noise", NOISES)
def test_negative_entries_that_only_count_in_a_sum(noise: Any) -> None:
    """What no number tells apart is added up: moving curvature between such entries changes nothing."""
    model, x = Mixed(), torch.randn(30, 6).double()
    diagonal = ms.hessian_diagonal(model, x, curvature="ggn")

    def moved(name: str, h: Tensor) -> Tensor:
        """More than there is, from the first entry to the second: of one row, or where nothing moves."""
        other = h.clone()
        if name in ("layers.4.weight", "layers.6.weight"):
            other[0, 0] -= 2 * h.sum()
            other[0, 1] += 2 * h.sum()
        elif name == "layers.0.weight":
            other[2, 0] -= 2 * h.sum()
            other[2, 1] += 2 * h.sum()
        elif name == "layers.2.bias" and noise != "relative":  # exact
            other -= 2 * h.sum()
        return other

    expected = ms.minimum_sharpness(model, diagonal, scope="neuron", noise=noise)
    found = ms.minimum_sharpness(model, estimated(diagonal, moved), scope="neuron", noise=noise)
    assert found.value == pytest.approx(expected.value, rel=1e-7)
    assert found.lower_bound == pytest.approx(expected.lower_bound, rel=1e-6)
    assert found.value < found.trace


@pytest.mark.parametrize("noise", NOISES)
def test_channels_that_nothing_moves_count_in_sum(noise: Any) -> None:
    model, x = Mixed(), torch.randn(30, 6).double()
    diagonal = ms.hessian_diagonal(model, x, curvature="ggn")

    def moved(name: str, h: Tensor) -> Tensor:
        """One channel below zero, by less than the others weigh."""
        return torch.cat([-0.01 * h[:1], h[1:]]) if name == "layers.6.weight" else h

    changed = estimated(diagonal, moved)
    found = ms.minimum_sharpness(model, changed, scope="neuron", noise=noise)
    weights = {n: p.detach() for n, p in ms.rescale(model, found.scales).named_parameters()}
    t = found.symmetries.log_scales(found.z)
    h = {n: v * (-2 * t[n]).exp() for n, v in changed.by_parameter.items()}
    assert objective(h, weights, noise, found.biases) == pytest.approx(found.value, rel=1e-8)
    assert found.value - found.lower_bound <= 1e-6 * found.value


@pytest.mark.parametrize("noise", NOISES)
def test_smooth_networks_by_an_estimate(noise: Any) -> None:
    """Nothing to rescale: the sum is the minimum, whatever the signs of its entries."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    x = torch.randn(40, 6).double()
    diagonal = ms.hessian_diagonal(model, (x, model(x).argmax(1)), tolerance=0.01)
    assert min(float(h.min()) for h in diagonal.by_parameter.values()) < 0
    for scope in ("neuron", "layer"):
        result = ms.minimum_sharpness(model, diagonal, scope=scope, noise=noise)
        weights = {n: p.detach() for n, p in model.named_parameters()}
        assert result.value == pytest.approx(objective(diagonal.by_parameter, weights, noise, result.biases), rel=1e-9)
        below = ms.minimum_sharpness(model, estimated(diagonal, lambda _, h: -h), scope=scope, noise=noise)
        assert below.value == below.lower_bound == pytest.approx(-result.value, rel=1e-9)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("size", [1.0, 100.0])
def test_negative_curvature_that_nothing_moves_counts_as_it_is(noise: Any, size: float) -> None:
    """As with absolute noise: the minimum of the others, and this beside it; the value may be negative."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    net = ms.read(model, torch.randn(64, 4).double())
    diagonal = ms.hessian_diagonal(net, torch.randn(64, 4).double(), curvature="ggn")
    signed = {k: estimated(diagonal, lambda n, h, k=k: k * size * h if n == "0.weight" else h) for k in (-1, 0)}
    below, others = (ms.minimum_sharpness(net, signed[k], scope="neuron", noise=noise) for k in (-1, 0))
    assert "0.weight" in below.pinned
    still = below.before["0.weight"]
    assert still < 0 < others.value < others.trace
    assert below.value == pytest.approx(others.value + still, rel=1e-6)
    assert below.value == pytest.approx(sum(below.by_parameter.values()), rel=1e-6)
    assert 0 <= below.value - below.lower_bound <= 1e-5 * (others.value - still)
    assert below.attained


@pytest.mark.parametrize("noise", NOISES)
def test_nothing_but_negative_curvature_that_nothing_moves(noise: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    net = ms.read(model, torch.randn(64, 4).double())
    diagonal = ms.hessian_diagonal(net, torch.randn(64, 4).double(), curvature="ggn", parameters="0.weight")
    found = ms.minimum_sharpness(net, estimated(diagonal, lambda _, h: -h), scope="neuron", noise=noise)
    assert found.value == found.lower_bound == found.trace < 0
