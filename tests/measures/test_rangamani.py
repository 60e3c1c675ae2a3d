"""Rangamani's flatness against the geometry of the quotient."""

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.measures.rangamani import rangamani_flatness
from tests.support.dense import Dense, small


def _riemannian_hessian(dense: Dense) -> tuple[Tensor, Tensor]:
    """The metric, and the covariant Hessian from its Christoffel symbols: d_i d_j L - Gamma^k_ij d_k L."""

    def metric(t: Tensor) -> Tensor:
        return torch.cat([(1 / p.square().sum()).expand(p.numel()) for p in dense.split(t).values()])

    G = metric(dense.t)
    dG = torch.autograd.functional.jacobian(metric, dense.t)  # (i, k): d G_ii / d t_k
    n = len(G)
    gamma = torch.zeros(n, n, n, dtype=torch.float64)  # (k, i, j)
    index = torch.arange(n)
    lowered = torch.zeros(n, n, n, dtype=torch.float64)
    lowered[index, index, :] += dG / 2  # l = i
    lowered[index, :, index] += dG / 2  # l = j
    lowered[:, index, index] -= dG.T / 2  # i = j
    gamma = lowered / G[:, None, None]
    return G, dense.hessian - torch.einsum("kij,k->ij", gamma, dense.gradient)


def _top_on_the_quotient(dense: Dense, exponents: list[dict[str, float]]) -> float:
    """The largest eigenvalue over vectors that the metric makes orthogonal to the rescalings given by hand."""
    G, H = _riemannian_hessian(dense)
    root = G.sqrt()
    scaled = H / root[:, None] / root[None, :]
    vertical = [torch.cat([e.get(n, 0.0) * p.flatten() for n, p in dense.held.items()]) * root for e in exponents]
    if not vertical:
        return float(torch.linalg.eigvalsh(scaled)[-1])
    V = torch.stack(vertical, 1)
    Q = torch.linalg.qr(V, mode="complete").Q[:, V.shape[1] :]
    return float(torch.linalg.eigvalsh(Q.T @ scaled @ Q)[-1])


def test_rangamani_looks_at_horizontal_vectors_only() -> None:
    """Along a rescaling the curvature is zero: with a concave criterion, more than in any other direction."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).double()
    nn.init.constant_(model[0].weight, 8)  # type: ignore[arg-type]
    nn.init.constant_(model[2].weight, 1 / 8)  # type: ignore[arg-type]
    data = (torch.ones(1, 1).double(), torch.ones(1, 1).double())
    assert rangamani_flatness(model, data, lambda o, y: -(o - y).square().mean()).value == pytest.approx(-4)


CHAIN = [{"0.weight": 1.0, "0.bias": 1.0, "2.weight": -1.0}]


@pytest.mark.parametrize("seed", range(3))
def test_rangamani_against_the_christoffel_symbols(seed: int) -> None:
    model, data = small(seed)
    dense = Dense(model, data)
    assert float(dense.gradient.norm()) > 0.01, "not a critical point"
    score = rangamani_flatness(model, data, tolerance=1e-10)
    assert score.value == pytest.approx(_top_on_the_quotient(dense, CHAIN), rel=1e-9)
    scale = torch.cat([p.norm().expand(p.numel()) for p in dense.held.values()])
    flat = torch.linalg.eigvalsh(scale[:, None] * dense.hessian * scale)[-1]
    assert score.value != pytest.approx(float(flat), rel=1e-3), "the manifold is curved"
    assert score.details["dimension"] == 1
    assert score.details["converged"]


def test_rangamani_of_a_deeper_chain_without_biases() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 4, bias=False), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(4, 3, bias=False)).double()
        data = (torch.randn(9, 3).double(), torch.randint(3, (9,)))
    group = [{"0.weight": 1.0, "2.weight": -1.0}, {"2.weight": 1.0, "4.weight": -1.0}]
    expected = _top_on_the_quotient(Dense(model, data), group)
    assert rangamani_flatness(model, data, tolerance=1e-10).value == pytest.approx(expected, rel=1e-9)


def test_rangamani_leaves_zeros_where_they_are() -> None:
    """A bias of zero has no direction: the rest is measured with it fixed."""
    model, data = small()
    nn.init.zeros_(model[0].bias)  # type: ignore[arg-type]
    expected = _top_on_the_quotient(Dense(model, data, names=["0.weight", "2.weight", "2.bias"]), CHAIN)
    score = rangamani_flatness(model, data, tolerance=1e-10)
    assert score.value == pytest.approx(expected, rel=1e-9)
    assert score.details["zero"] == ("0.bias",)


def test_rangamani_without_rescalings() -> None:
    """Between saturating functions nothing may be rescaled: the whole manifold, with no vertical direction."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
        data = (torch.randn(9, 3).double(), torch.randint(3, (9,)))
    score = rangamani_flatness(model, data, tolerance=1e-10)
    assert score.value == pytest.approx(_top_on_the_quotient(Dense(model, data), []), rel=1e-9)


def test_rangamani_of_nothing_but_zeros() -> None:
    model, data = small()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    with pytest.raises(ms.InputError, match="every parameter that is measured is zero"):
        rangamani_flatness(model, data)
