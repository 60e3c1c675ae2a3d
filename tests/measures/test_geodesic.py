"""Geodesic sharpness against dense linear algebra on the metric, and under the whole group."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.measures.geodesic import Block, geodesic_sharpness, raised
from minsharp.measures.normalized_logits import normalized_logits_sharpness
from minsharp.measures.sam import asam_sharpness
from minsharp.network.symmetry import FullSymmetries
from tests.support.dense import Dense, small
from tests.support.framed import Attention, built


def energy(U: Tensor, x: Tensor) -> Tensor:
    """Half the square of a velocity in tr((U U^T)^-1 dU dU^T)."""
    return (torch.linalg.inv(U @ U.mT) @ x @ x.mT).trace() / 2


def test_the_curve_obeys_the_equation_of_geodesics() -> None:
    """d/dt dE/dx = dE/dU at the start, for the velocity S D and the acceleration that comes with it."""
    torch.manual_seed(0)
    U, D = torch.randn(2, 3, 5, dtype=torch.float64)
    places = torch.arange(15).view(3, 5)
    x, a = (t.view(3, 5) for t in raised({"w": U}, {"w": D}, [Block("w", places)]))
    assert torch.allclose(x, U @ U.mT @ D)
    momentum = torch.func.grad(energy, 1)
    _, change = torch.autograd.functional.jvp(momentum, (U, x), (x, a))  # along the curve: U moves by x, x by a
    assert torch.allclose(change, torch.func.grad(energy, 0)(U, x), rtol=1e-9, atol=1e-9)


def joint_metric(group: FullSymmetries, t: dict[str, Tensor]) -> Tensor:
    """G^-1 as a dense matrix: w² of each entry, and (U U^T) x 1 of each block."""
    offsets, total = {}, 0
    for name, w in t.items():
        offsets[name], total = total, total + w.numel()
    inverse = torch.diag(torch.cat([w.flatten() for w in t.values()]).square())
    for frame in group.frames:
        for name in frame.parameters:
            for side in (False, True):
                parts = [
                    m.read(torch.arange(t[name].numel()).view(t[name].shape))
                    for m in frame.members
                    if m.parameter == name and m.inverse == side
                ]
                if parts:
                    places = torch.cat(parts, 1)
                    U = t[name].flatten()[places]
                    for column in (places + offsets[name]).T:
                        inverse[column.unsqueeze(1), column] = U @ U.mT
    return inverse


@pytest.mark.parametrize("order", [1, 2])
def test_against_the_steepest_direction_in_the_dense_metric(order: int) -> None:
    model, x = built("separate")
    data = (x, torch.arange(7) % 3)
    dense, group = Dense(model, data), ms.symmetries(model, x, scope="full")
    assert isinstance(group, FullSymmetries)
    inverse, g = joint_metric(group, dense.held), dense.gradient
    direction = 0.1 * inverse @ g / (g @ inverse @ g).sqrt()
    rise = 0.1 * float((g @ inverse @ g).sqrt())
    found = geodesic_sharpness(model, data, rho=0.1, order=order)
    assert found.details == {"rho": 0.1, "order": order}
    if order == 1:
        assert found.value == pytest.approx(float(dense(dense.t + direction)) - dense.value, rel=1e-9)
    torch.manual_seed(1)
    root = torch.linalg.eigh(inverse)  # no direction of that length rises faster
    for _ in range(200):
        z = torch.randn(len(g), dtype=torch.float64)
        other = root.eigenvectors @ (root.eigenvalues.clamp_min(0).sqrt() * z) / z.norm()
        assert float(g @ other) * 0.1 <= rise * (1 + 1e-9)
    gentle = geodesic_sharpness(model, data, rho=1e-4, order=order).value
    assert gentle == pytest.approx(rise * 1e-3, rel=1e-2)


@pytest.mark.parametrize("name", ["separate", "joint, no bias", "grouped, repeat", "linear bottleneck", "LoRA"])
def test_no_element_of_the_whole_group_changes_it(name: str) -> None:
    model, x = built(name)
    data: Any = (x, torch.arange(7) % 3)
    group = ms.symmetries(model, x, scope="full")
    for order in (1, 2):
        before = geodesic_sharpness(model, data, order=order, rho=0.3).value
        assert before > 0
        for seed in range(3):
            other = ms.rescale(model, group.random(seed, 100))
            assert geodesic_sharpness(other, data, order=order, rho=0.3).value == pytest.approx(before, rel=1e-7)
    moved = [ms.rescale(model, group.random(seed, 100)) for seed in range(3)]
    for rival in (asam_sharpness, normalized_logits_sharpness):
        start = rival(model, data).value
        assert max(abs(rival(other, data).value / start - 1) for other in moved) > 1e-3


def test_without_frames_it_is_asam_in_one_step() -> None:
    model, data = small()
    with torch.no_grad():
        dict(model.named_parameters())["0.bias"].zero_()
    assert geodesic_sharpness(model, data, rho=0.2).value == asam_sharpness(model, data, rho=0.2).value


def test_where_the_gradient_is_zero_nothing_grows() -> None:
    model, data = small()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert geodesic_sharpness(model, data).value == 0.0


def test_chosen_parameters_have_the_frames_that_are_left() -> None:
    model, x = built("separate")
    assert isinstance(model, Attention)
    data = (x, torch.arange(7) % 3)
    some = geodesic_sharpness(model, data, parameters=["q.*", "k.*"], rho=0.1)
    group = ms.symmetries(model, x, scope="full", fixed=[n for n, _ in model.named_parameters() if n[0] not in "qk"])
    other = ms.rescale(model, group.random(0, 100))
    assert geodesic_sharpness(other, data, parameters=["q.*", "k.*"], rho=0.1).value == pytest.approx(
        some.value, rel=1e-8
    )


def test_normalized_logits_against_a_network_that_normalizes() -> None:
    class Loud(nn.Module):
        def __init__(self, inner: nn.Module):
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            o = self.inner(x)
            return o / o.var(1, correction=0, keepdim=True).sqrt()

    model, data = small()
    choices: tuple[dict[str, Any], ...] = ({"steps": 1}, {"steps": 20}, {"steps": 20, "average": True})
    for options in choices:
        expected = asam_sharpness(Loud(model), data, **options)
        found = normalized_logits_sharpness(model, data, **options)
        assert found.value == pytest.approx(expected.value, rel=1e-9)
        assert found.details == expected.details


def test_a_ball_in_the_fisher_matrix_says_nothing_of_the_weights() -> None:
    """With more weights than outputs of samples, g^T F^+ g is r^T H^+ r of the outputs alone: docs/transformers.md."""
    model, (x, y) = small()
    x, y = x[:3], y[:3]
    dense = Dense(model, (x, y))
    J = torch.func.jacrev(lambda t: dense.outputs(t))(dense.t).detach()  # (n, K, weights)
    p = dense.outputs(dense.t).detach().softmax(1)
    r, H = p - nn.functional.one_hot(y, p.shape[1]), torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    F = torch.einsum("nka,nkl,nlb->ab", J, H, J) / 3
    g = dense.gradient
    expected = sum(float(r[i] @ torch.linalg.pinv(H[i]) @ r[i]) for i in range(3)) / 3
    assert float(g @ torch.linalg.pinv(F, rtol=1e-10) @ g) == pytest.approx(expected, rel=1e-6)
