"""What stands in for operations that torch differentiates once: the same numbers and slopes, and a slope of those."""

from collections.abc import Callable
from math import inf

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minsharp as ms
from minsharp.operations.distances import distances
from minsharp.operations.elementwise import hard_sigmoid
from minsharp.operations.embedding import bags
from minsharp.operations.table import TABLE
from tests.support.oracles import hessian_diagonal

aten = torch.ops.aten
A = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
B = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
TABLE_OF_ROWS = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
TOKENS = torch.tensor([5, 1, 1, 0, 2, 5, 4])
BAGS = torch.tensor([0, 2, 2, 6])  # the second is empty
FACTORS = torch.linspace(-1, 1, 7, dtype=torch.float64)


def bagged(mode: int, last: bool = False, padding: int | None = None, ends: bool = False) -> tuple[object, ...]:
    offsets = torch.tensor([0, 2, 2, 7]) if ends else BAGS
    return (TABLE_OF_ROWS, TOKENS, offsets, False, mode, False, FACTORS if last else None, ends, padding)


CALLS: list[tuple[Callable[..., object], Callable[..., object], tuple[object, ...]]] = [
    (aten.hardsigmoid, hard_sigmoid, (torch.linspace(-5, 5, 8, dtype=torch.float64),)),
    *((aten.cdist, distances, (A, B, p)) for p in (0.0, 1.0, 1.5, 2.0, 3.0, inf)),
    (aten.cdist, distances, (A, A[:, :2].clone())),  # some are zero
    *((aten.embedding_bag, bags, bagged(mode)) for mode in (0, 1, 2)),
    *((aten.embedding_bag, bags, bagged(mode, padding=padding)) for mode in (0, 1, 2) for padding in (1, -1)),
    (aten.embedding_bag, bags, bagged(0, last=True)),
    (aten.embedding_bag, bags, bagged(1, ends=True)),
]


def test_every_row_that_has_one_is_here() -> None:
    assert {row.twice for row in TABLE.values() if row.twice} == {made_of for _, made_of, _ in CALLS}


@pytest.mark.parametrize("which", range(len(CALLS)))
def test_numbers_and_slopes_are_those_of_torch(which: int) -> None:
    own, made_of, given = CALLS[which]
    found = []
    for call in (own, made_of):
        leaves = [g.clone().requires_grad_() if isinstance(g, Tensor) and g.is_floating_point() else g for g in given]
        made = call(*leaves)
        first = made if isinstance(made, Tensor) else made[0]  # type: ignore[index]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        grads = torch.autograd.grad(first.sin().sum() + sum(0 * t.sum() for t in tensors), tensors)
        found.append([first.detach(), *grads])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, inf])
def test_distances_have_second_derivatives(p: float) -> None:
    x, y = A.clone().requires_grad_(), B.clone().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x, y: distances(x, y, p).square(), (x, y))
    same = x.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(distances(same, same.detach(), p).sum(), same, create_graph=True)
    (again,) = torch.autograd.grad(slope.sum(), same)
    assert bool(again.isfinite().all()) or p < 2  # where rows are the same


class Points(nn.Module):
    """Distances to points, gates and bags, bent before and after."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.rows, self.layer, self.points = nn.EmbeddingBag(6, 4, mode="mean"), nn.Linear(4, 4), nn.Linear(4, 3)
        self.head, self.plain = nn.Linear(3, 3), plain

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.rows.weight[tokens].mean(1) if self.plain else self.rows(tokens)
        h = torch.tanh(self.layer(h))
        h = h * (((h + 3).clamp(0, 6) / 6) if self.plain else F.hardsigmoid(h))
        apart = h.unsqueeze(1) - self.points.weight
        return self.head(apart.square().sum(-1).sqrt() if self.plain else torch.cdist(h, self.points.weight))


def test_the_hessian_of_networks_with_them() -> None:
    """Also of more samples than torch.cdist takes in the same way."""
    torch.manual_seed(0)
    model, plain = Points(False).double(), Points(True).double()
    plain.load_state_dict(model.state_dict())
    tokens, labels = torch.randint(6, (40, 5)), torch.randint(3, (40,))
    found = ms.hessian_trace(model, (tokens, labels), tolerance=0.02, seed=1)
    for name, value in found.by_parameter.items():
        expected = float(hessian_diagonal(plain, tokens, labels, nn.CrossEntropyLoss(), name).sum())
        assert abs(value - expected) <= 4 * found.standard_errors[name] + 1e-9, name
