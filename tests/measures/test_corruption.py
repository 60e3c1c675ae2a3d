"""Parameter corruption against all supports."""

from itertools import combinations, product
from math import inf

import pytest
import torch
from torch import Tensor, nn

from minsharp.measures.corruption import parameter_corruption
from minsharp.measures.sam import sam_sharpness
from tests.support.dense import Dense, small


def _worst_corruption(g: Tensor, epsilon: float, p: float, k: int) -> Tensor:
    """The best of all supports, and in each of a fine net of the p-sphere (k = 1 or 2, or p = inf)."""
    best, most = torch.zeros_like(g), -inf
    if p == inf:
        net = torch.tensor(list(product([-1.0, 1.0], repeat=k))).double()
    else:
        angle = torch.linspace(0, 2 * torch.pi, 200001).double()
        net = torch.stack([angle.cos(), angle.sin()], 1) if k == 2 else torch.tensor([[1.0], [-1.0]]).double()
        net = net / torch.linalg.vector_norm(net, p, dim=1, keepdim=True)
    for support in combinations(range(len(g)), k):
        gains = epsilon * net @ g[list(support)]
        i = int(gains.argmax())
        if float(gains[i]) > most:
            most, best = float(gains[i]), torch.zeros_like(g)
            best[list(support)] = epsilon * net[i]
    return best


@pytest.mark.parametrize(("p", "k"), [(1, 2), (1.5, 2), (2, 1), (2, 2), (3, 2), (inf, 1), (inf, 3), (inf, 5)])
def test_corruption_against_all_supports(p: float, k: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 3, bias=False)).double()
        data = (torch.randn(7, 1).double(), torch.arange(7) % 3)
    dense = Dense(model, data)
    first, second = dense.gradient.abs().topk(2).values
    assert first > 1.1 * second, "else every p gives the same"
    change = _worst_corruption(dense.gradient, 0.3, p, k)
    expected = float(dense(dense.t + change)) - dense.value
    score = parameter_corruption(model, data, epsilon=0.3, p=p, k=k)
    assert score.value == pytest.approx(expected, rel=1e-8 if p == inf or k == 1 else 1e-4)
    assert score.details["entries"] == (1 if p == 1 else k)


def test_corruption_of_everything_is_the_first_step_of_sam() -> None:
    model, data = small()
    assert parameter_corruption(model, data, epsilon=0.1).value == pytest.approx(
        sam_sharpness(model, data, rho=0.1).value, rel=1e-12
    )
    dense = Dense(model, data)
    expected = float(dense(dense.t + 0.1 * dense.gradient.sign())) - dense.value
    assert parameter_corruption(model, data, epsilon=0.1, p=inf).value == pytest.approx(expected, rel=1e-12)


def test_corruption_without_a_gradient() -> None:
    model, (x, _) = small()
    assert parameter_corruption(model, (x, model(x).detach()), nn.MSELoss()).value == 0
