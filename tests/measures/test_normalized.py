"""Normalized sharpness, against an independent minimiser, and under every rescaling."""

from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.measures.normalized import as_matrices
from minsharp.reference.estimators import tsuzuku_arxiv_diagonal
from minsharp.solve.balance import minimise_pairs, minimise_products
from tests.support.zoo import ZOO, Entry, network, rescaled

FORMS: tuple[Any, ...] = ("arxiv", "icml")
Array = np.ndarray[Any, Any]


@pytest.fixture(params=ZOO, ids=lambda e: e.name)
def entry(request: pytest.FixtureRequest) -> Entry:
    chosen: Entry = request.param
    return chosen


def pairs(x: Array, H: Array, W: Array) -> tuple[float, Array]:
    """<s2, H s1> + <1/s2, W (1/s1)> and its slope, in logarithms."""
    groups, rows, columns = H.shape
    v, u = x[: groups * rows].reshape(groups, rows, 1), x[groups * rows :].reshape(groups, 1, columns)
    up, down = H * np.exp(v + u), W * np.exp(-v - u)
    slope = up - down
    return float((up + down).sum()), np.concatenate([slope.sum(2).ravel(), slope.sum(1).ravel()])


def products(x: Array, H: Array, W: Array) -> tuple[float, Array]:
    """sum_i (H s)_i (W (1/s))_i and its slope, in logarithms."""
    u = x.reshape(H.shape[0], 1, H.shape[2])
    P, Q = H * np.exp(u), W * np.exp(-u)
    a, b = P.sum(2, keepdims=True), Q.sum(2, keepdims=True)
    return float((a * b).sum()), (P * b - Q * a).sum(1).ravel()


def independent(H: Array, W: Array, form: str) -> float:
    """scipy from several starts."""
    rng = np.random.default_rng(0)
    count = H.shape[0] * (H.shape[2] + (H.shape[1] if form == "arxiv" else 0))
    f = pairs if form == "arxiv" else products
    options = {"gtol": 1e-12, "maxiter": 20000}
    best = np.inf
    for start in (np.zeros(count), 0.5 * rng.standard_normal(count)):
        with np.errstate(over="ignore", invalid="ignore"):  # its line search may try steps that are far too long
            found = scipy.optimize.minimize(f, start, (H, W), jac=True, method="BFGS", options=options)
        best = min(best, found.fun)
    return float(best if form == "arxiv" else best**0.5)


@pytest.mark.parametrize("form", FORMS)
def test_equals_an_independent_minimiser(entry: Entry, form: Any) -> None:
    net = network(entry)
    diagonal = ms.hessian_diagonal(net, entry.data(), curvature="ggn")
    result = ms.measures.normalized_sharpness(net, diagonal, objective=form)
    held = dict(net.module.named_parameters())
    total = 0.0
    for name, H in diagonal.by_parameter.items():
        matrices = as_matrices(net.graph, name)
        assert (matrices is not None) == (name in result.by_layer)
        if matrices is not None:
            pair = (matrices(H).numpy(), matrices(held[name].detach().square()).numpy())
            total += independent(*pair, form)
    assert result.value == pytest.approx(total, rel=1e-8, abs=1e-12)
    assert result.value <= total * (1 + 1e-12)
    assert result.lower_bound <= result.value
    assert result.lower_bound == pytest.approx(result.value, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("scope", ["layer", "neuron"])
@pytest.mark.parametrize("form", FORMS)
def test_no_rescaling_moves_it(entry: Entry, form: Any, scope: Any) -> None:
    net = network(entry)
    data = entry.data()
    before = ms.measures.normalized_sharpness(net, data, objective=form, curvature="ggn")
    scales = ms.symmetries(net, data[0], scope).random(3, 100.0)
    after = ms.measures.normalized_sharpness(rescaled(net, scales), data, objective=form, curvature="ggn")
    assert after.value == pytest.approx(before.value, rel=1e-8)


class Kinds(nn.Module):
    """The same map of four inputs to six outputs, its matrix stored in five ways."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Parameter(torch.randn(6, 4))
        self.right = nn.Parameter(torch.randn(4, 6))
        self.turned = nn.Parameter(torch.randn(6, 4))
        self.table = nn.Embedding(4, 6)
        self.added = nn.Parameter(torch.randn(1, 6))

    def forward(self, x: Tensor) -> Tensor:
        ids = x.argmax(1)
        return nn.functional.linear(x, self.plain) + x @ self.right + x @ self.turned.T + self.table(ids) + self.added


def test_matrices_have_outputs_by_inputs() -> None:
    model = Kinds()
    graph = ms.read(model, torch.randn(3, 4)).graph
    for name in ("plain", "right", "turned", "table.weight"):
        parameter = dict(model.named_parameters())[name].detach()
        matrices = as_matrices(graph, name)
        assert matrices is not None
        expected = parameter if parameter.shape[0] == 6 else parameter.T
        assert torch.equal(matrices(parameter), expected.unsqueeze(0)), name
    assert as_matrices(graph, "added") is None


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(4, 6, 3, groups=2), (2, 3, 2)),
        (nn.Conv1d(4, 6, 3), (1, 6, 4)),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 3, 2)),
        (nn.ConvTranspose1d(4, 6, 3), (1, 6, 4)),
    ],
    ids=str,
)
def test_convolutions_are_summed_over_taps(layer: Any, shape: tuple[int, ...]) -> None:
    x = torch.randn(2, 4, *[5] * (layer.weight.dim() - 2))
    graph = ms.read(nn.Sequential(layer, nn.Flatten()), x).graph
    matrices = as_matrices(graph, "0.weight")
    assert matrices is not None
    weight = layer.weight.detach().double()
    found = matrices(weight)
    assert found.shape == shape
    assert float(found.sum()) == pytest.approx(float(weight.sum()))
    taps = weight[2, 1] if isinstance(layer, nn.Conv1d | nn.Conv2d) else weight[1, 2]  # from input 1 to output 2
    assert float(found[0, 2, 1]) == pytest.approx(float(taps.sum()))


def test_closed_forms_for_one_row() -> None:
    h, w = np.array([[[2.0, 3.0]]]), np.array([[[5.0, 7.0]]])
    # pairs: each column has a scale of its own, 2 sqrt(h w) each; products: one row, (sum_j sqrt(h_j w_j))^2
    expected = 2 * (10**0.5 + 21**0.5)
    assert minimise_pairs(h, w).value == pytest.approx(expected, rel=1e-14)
    assert minimise_products(h, w).value == pytest.approx(expected / 2, rel=1e-14)


@pytest.mark.parametrize("minimise", [minimise_pairs, minimise_products])
def test_what_can_be_scaled_away_is(minimise: Any) -> None:
    rng = np.random.default_rng(0)
    H, W = rng.exponential(size=(2, 1, 4, 5))
    whole = minimise(H, W)
    dead = H.copy()
    dead[0, 2] = 0  # a row without curvature: its weights cost nothing
    dead[0, :, 3] = 0
    rest = minimise(np.delete(np.delete(H, 2, 1), 3, 2), np.delete(np.delete(W, 2, 1), 3, 2))
    result = minimise(dead, W)
    assert not result.attained
    assert whole.attained
    if minimise is minimise_pairs:
        assert result.value == pytest.approx(rest.value, rel=1e-12)
    assert 0 < result.value < whole.value
    assert result.lower_bound == pytest.approx(result.value, rel=1e-9)
    assert minimise(0 * H, W).value == 0


@pytest.mark.parametrize("minimise", [minimise_pairs, minimise_products])
@pytest.mark.parametrize("exponent", [1, 4, 12])
def test_badly_scaled_entries(minimise: Any, exponent: int) -> None:
    rng = np.random.default_rng(exponent)
    H, W = rng.exponential(size=(2, 1, 12, 9)) ** exponent
    form = "arxiv" if minimise is minimise_pairs else "icml"
    plain = minimise(H, W)
    assert plain.lower_bound == pytest.approx(plain.value, rel=1e-8)
    far = minimise(H * np.exp(20 * rng.standard_normal((1, 12, 1))), W)  # another problem, but as bad as it gets
    assert far.lower_bound == pytest.approx(far.value, rel=1e-6)
    left, right = np.exp(5 * rng.standard_normal((1, 12, 1))), np.exp(5 * rng.standard_normal((1, 1, 9)))
    scaled = minimise(H * left * right, W / left / right)
    assert scaled.value == pytest.approx(plain.value, rel=1e-9), form


def test_approximations_of_the_diagonal() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    data = (torch.randn(40, 5).double(), torch.randint(3, (40,)))
    exact = ms.measures.normalized_sharpness(model, data)
    for kind in FORMS:
        approximate = ms.measures.normalized_sharpness(model, data, diagonal=kind)
        assert approximate.value == pytest.approx(exact.value, rel=0.5)
        assert approximate.value != exact.value
    given = ms.measures.normalized_sharpness(ms.read(model, data[0]), tsuzuku_arxiv_diagonal(model, data))
    assert given.value == ms.measures.normalized_sharpness(model, data, diagonal="arxiv").value


def test_dead_layers_have_none() -> None:
    first = nn.Linear(3, 4)
    nn.init.constant_(first.bias, -100.0)
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(4, 2))
    result = ms.measures.normalized_sharpness(model, torch.rand(5, 3))
    assert result.by_layer == {"0.weight": 0.0, "2.weight": 0.0}
    assert result.status.startswith("zero")


def test_bad_input() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    with pytest.raises(ms.InputError, match="objective='ICML': expected 'arxiv' or 'icml'"):
        ms.measures.normalized_sharpness(model, x, objective="ICML")  # type: ignore[arg-type]
    with pytest.raises(ms.InputError, match="diagonal='rough': expected 'exact', 'arxiv' or 'icml'"):
        ms.measures.normalized_sharpness(model, x, diagonal="rough")  # type: ignore[arg-type]
    with pytest.raises(ms.LossError, match="needs targets"):
        ms.measures.normalized_sharpness(model, x, diagonal="arxiv")
    with pytest.raises(ms.InputError, match="not of this network"):
        ms.measures.normalized_sharpness(ms.read(nn.Sequential(model), x), ms.hessian_diagonal(model, x))


class Flattened(nn.Module):
    """A parameter with two axes that goes in as a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.weight = nn.Parameter(torch.randn(1, 2)), nn.Parameter(torch.randn(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias.flatten(), x, self.weight)


def test_a_vector_is_no_matrix() -> None:
    model, x = Flattened().double(), torch.randn(5, 3, dtype=torch.float64)
    assert set(ms.measures.normalized_sharpness(model, x).by_layer) == {"weight"}
