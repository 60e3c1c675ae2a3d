"""Every rival measure against brute force on small networks, and what rescaling does to each."""

from collections.abc import Callable
from itertools import combinations, product
from math import inf, log, sqrt
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

import minsharp as ms
from minsharp.measures.corruption import parameter_corruption
from minsharp.measures.eigenvalue import lanczos, largest_eigenvalue
from minsharp.measures.fisher_rao import _along_itself, fisher_rao_norm
from minsharp.measures.keskar import keskar_sharpness
from minsharp.measures.pacgen import pacgen
from minsharp.measures.rangamani import rangamani_flatness
from minsharp.measures.relative_flatness import relative_flatness
from minsharp.measures.sam import asam_sharpness, sam_sharpness
from minsharp.measures.score import Score
from minsharp.measures.training_loss import training_loss
from tests.support import oracles
from tests.support.zoo import BY_NAME

Measure = Callable[..., Score]
CE = nn.CrossEntropyLoss()


class Dense:
    """The criterion as a function of one vector of parameters, with dense derivatives."""

    def __init__(self, model: nn.Module, data: tuple[Any, Tensor], criterion: Any = CE, names: Any = None):
        self.model, self.criterion = model.eval(), criterion
        self.inputs, self.targets = data
        held = dict(model.named_parameters())
        self.held = {
            n: p.detach().clone() for n, p in held.items() if (p.requires_grad if names is None else n in names)
        }
        self.t = torch.cat([p.flatten() for p in self.held.values()])

    def split(self, t: Tensor) -> dict[str, Tensor]:
        parts = t.split([p.numel() for p in self.held.values()])
        return {n: part.view(p.shape) for part, (n, p) in zip(parts, self.held.items(), strict=True)}

    def outputs(self, t: Tensor) -> Tensor:
        args = (
            (self.inputs,) if isinstance(self.inputs, Tensor) else () if isinstance(self.inputs, dict) else self.inputs
        )
        return functional_call(self.model, self.split(t), args, self.inputs if isinstance(self.inputs, dict) else {})

    def __call__(self, t: Tensor) -> Tensor:
        return self.criterion(self.outputs(t), self.targets)

    def many(self, points: Tensor) -> Tensor:
        """The loss at many points."""
        with torch.no_grad():
            return torch.func.vmap(self, chunk_size=20000)(points)

    @property
    def value(self) -> float:
        return float(self(self.t))

    @property
    def gradient(self) -> Tensor:
        return torch.func.grad(self)(self.t).detach()

    @property
    def hessian(self) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the faster ones have no second derivative
            return torch.autograd.functional.hessian(self, self.t).detach()


def small(seed: int = 0, bias: bool = True) -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    """A network of a few dozen parameters, away from any minimum."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.ReLU(), nn.Linear(4, 3, bias=bias)).double()
        return model, (torch.randn(9, 3).double(), torch.randint(3, (9,)))


def three(seed: int = 0) -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    """Three parameters: few enough to search all directions."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh(), nn.Linear(1, 2, bias=False)).double()
        return model, (torch.randn(7, 1).double(), torch.randint(2, (7,)))


def sphere(count: int = 200) -> Tensor:
    """Directions of three-dimensional space, close together."""
    polar, around = torch.meshgrid(
        torch.linspace(0, torch.pi, count).double(), torch.linspace(0, 2 * torch.pi, 2 * count).double(), indexing="ij"
    )
    return torch.stack([polar.sin() * around.cos(), polar.sin() * around.sin(), polar.cos()], -1).view(-1, 3)


# The training loss


@pytest.mark.parametrize(
    ("criterion", "targets"),
    [
        (nn.CrossEntropyLoss(label_smoothing=0.1), torch.arange(1300) % 3),
        (nn.CrossEntropyLoss(reduction="sum", weight=torch.tensor([1.0, 2.0, 3.0]).double()), torch.arange(1300) % 3),
        (nn.MSELoss(), torch.linspace(-1, 1, 3900).double().view(1300, 3)),
        (nn.BCEWithLogitsLoss(), torch.linspace(0, 1, 3900).double().view(1300, 3)),
    ],
)
def test_training_loss_is_the_criterion(criterion: Any, targets: Tensor) -> None:
    model, _ = small()
    x = torch.randn(1300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        expected = float(criterion(model(x), targets))
    assert training_loss(model, (x, targets), criterion).value == pytest.approx(expected, rel=1e-12)
    split = [(x[:3], targets[:3]), (x[3:700], targets[3:700]), (x[700:], targets[700:])]
    assert training_loss(model, split, criterion).value == pytest.approx(expected, rel=1e-12)


# The largest eigenvalue

DEEP = [
    "mlp",
    "gelu",
    "residual_batch_norm",
    "dict_input",
    "tied_in_a_row",
    "lstm",
    "transformer",
    "frozen",
    "segmenter",
]


@pytest.mark.parametrize("name", DEEP)
def test_largest_eigenvalue_is_that_of_the_dense_hessian(name: str) -> None:
    entry = BY_NAME[name]
    score = largest_eigenvalue(entry.model(), entry.data(), iterations=1000, tolerance=1e-9)
    expected = torch.linalg.eigvalsh(Dense(entry.model(), entry.data()).hessian)[-1]
    assert score.value == pytest.approx(float(expected), rel=1e-9)
    assert score.details["converged"]


def test_largest_eigenvalue_over_some_parameters_and_batches() -> None:
    model, (x, y) = small()
    expected = torch.linalg.eigvalsh(Dense(model, (x, y), names=["0.weight", "0.bias"]).hessian)[-1]
    split = [(x[i : i + 2], y[i : i + 2]) for i in range(0, len(x), 2)]  # more than are kept between products
    score = largest_eigenvalue(model, split, parameters="0.*", tolerance=1e-9)
    assert score.value == pytest.approx(float(expected), rel=1e-9)


def test_largest_is_algebraic() -> None:
    """A concave criterion: eigenvalues -10 and 0, and 0 is the larger."""
    model = nn.Linear(2, 1, bias=False).double()
    data = (torch.tensor([[1.0, 2.0]]).double(), torch.zeros(1, 1).double())
    score = largest_eigenvalue(model, data, lambda o, y: -(o - y).square().mean())
    assert abs(score.value) < 1e-14
    assert score.details["converged"]


def test_residual_is_a_bound() -> None:
    """However early it stops, an eigenvalue lies within the residual; and it says that it stopped early."""
    model, data = small()
    eigenvalues = torch.linalg.eigvalsh(Dense(model, data).hessian)
    for iterations in (1, 2, 4):
        score = largest_eigenvalue(model, data, iterations=iterations, tolerance=1e-12)
        assert not score.details["converged"]
        assert score.details["iterations"] == iterations
        assert float((eigenvalues - score.value).abs().min()) <= score.details["residual"]
    loose, tight = (largest_eigenvalue(model, data, tolerance=t) for t in (1e-3, 1e-9))
    assert loose.details["iterations"] < tight.details["iterations"]
    assert loose.details["residual"] <= 1e-3 * loose.value
    assert loose.value == pytest.approx(tight.value, rel=1e-3)


def test_lanczos_on_matrices() -> None:
    """Degenerate, indefinite, zero and one-dimensional operators."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(40, generator=generator, dtype=torch.float64)
    Q = torch.linalg.qr(torch.randn(40, 40, generator=generator, dtype=torch.float64)).Q
    for spectrum in ([3.0] * 40, [-5.0] * 39 + [1.0], [0.0] * 40, list(range(-20, 20)), [-(2.0**k) for k in range(40)]):
        values = torch.tensor(spectrum).double()
        A = Q @ torch.diag(values) @ Q.T
        found = lanczos(A.mv, start, 100, 1e-10)
        assert found.value == pytest.approx(float(values.max()), rel=1e-8, abs=1e-12 * float(values.abs().max()))
        assert found.converged
    assert lanczos(lambda v: -2 * v, torch.ones(1).double(), 9, 1e-3).value == -2


# Keskar


@pytest.mark.parametrize("epsilon", [1e-3, 0.5])
@pytest.mark.parametrize("seed", range(4))
def test_keskar_against_a_search_of_the_box(seed: int, epsilon: float) -> None:
    """All the corners, and many points in between, find nothing higher; and the corners come close."""
    model, data = three(seed)
    dense = Dense(model, data)
    corners = torch.tensor(list(product([-1.0, 0.0, 1.0], repeat=3))).double()
    inside = 2 * torch.rand(20000, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
    points = dense.t + epsilon * (dense.t.abs() + 1) * torch.cat([corners, inside])
    most = 100 * (float(dense.many(points).max()) - dense.value) / (1 + dense.value)
    score = keskar_sharpness(model, data, epsilon=epsilon)
    assert score.value >= most * (1 - 1e-9)
    assert score.value <= most * 1.02


@pytest.mark.parametrize("seed", range(3))
def test_keskar_beats_random_corners(seed: int) -> None:
    model, data = small(seed)
    dense = Dense(model, data)
    signs = torch.randint(2, (20000, dense.t.numel()), generator=torch.Generator().manual_seed(seed)).double() * 2 - 1
    corner = dense.gradient.sign()[None]
    for epsilon in (1e-3, 0.1):
        width = epsilon * (dense.t.abs() + 1)
        score = keskar_sharpness(model, data, epsilon=epsilon)
        found = score.value * (1 + dense.value) / 100
        assert found >= float(dense.many(dense.t + width * torch.cat([signs, corner])).max()) - dense.value - 1e-12
        if epsilon == 1e-3:  # to first order <|g|, width>, and curvature adds little
            assert found == pytest.approx(float(dense.gradient.abs() @ width), rel=0.1)


def test_keskar_where_the_gradient_is_zero() -> None:
    """Squared error with the outputs as targets: a minimum, which the ascent has to leave by itself."""
    model, (x, _) = three()
    data = (x, model(x).detach())
    dense = Dense(model, data, nn.MSELoss())
    assert float(dense.gradient.abs().max()) == 0
    corners = torch.tensor(list(product([-1.0, 1.0], repeat=3))).double()
    most = 100 * float(dense.many(dense.t + 1e-2 * (dense.t.abs() + 1) * corners).max())
    score = keskar_sharpness(model, data, nn.MSELoss(), epsilon=1e-2)
    assert 0.2 * most < score.value <= most * (1 + 1e-9)


def test_keskar_of_a_constant() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    data = (torch.zeros(3, 2).double(), torch.ones(3, 1).double())
    assert keskar_sharpness(model, data, nn.MSELoss()).value == 0


# SAM and ASAM


@pytest.mark.parametrize(("measure", "rho"), [(sam_sharpness, 0.05), (sam_sharpness, 1.0), (asam_sharpness, 0.5)])
@pytest.mark.parametrize("seed", range(4))
def test_sam_against_a_search_of_the_ball(measure: Measure, rho: float, seed: int) -> None:
    """A dense grid of directions and radii finds nothing higher than many steps do, and one step is Foret's."""
    model, data = three(seed)
    dense = Dense(model, data)
    unit = dense.t.abs() if measure is asam_sharpness else torch.ones(3).double()
    directions = sphere()
    most = max(float(dense.many(dense.t + unit * rho * r * directions).max()) for r in (1.0, 0.7, 0.4)) - dense.value
    found = measure(model, data, rho=rho, steps=100)
    assert found.value >= most * (1 - 1e-6)
    assert found.value <= most * (1 + 1e-3)
    slope = unit * dense.gradient
    step = rho * unit * slope / slope.norm()
    expected = float(dense(dense.t + step)) - dense.value
    assert measure(model, data, rho=rho).value == pytest.approx(max(expected, 0), rel=1e-9)
    assert found.value >= expected
    assert found.details == {"rho": rho, "steps": 100}


@pytest.mark.parametrize("measure", [sam_sharpness, asam_sharpness])
def test_average_sharpness_against_quadrature(measure: Measure) -> None:
    """Gauss and Hermite integrate the three Gaussians exactly; the draws come within their standard error."""
    model, data = three(3)
    dense = Dense(model, data)
    unit = dense.t.abs() if measure is asam_sharpness else torch.ones(3).double()
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    grid = torch.tensor(list(product(nodes, repeat=3))).double()
    weight = torch.tensor([a * b * c for a, b, c in product(weights, repeat=3)]).double() / sqrt(2 * torch.pi) ** 3
    expected = float(weight @ dense.many(dense.t + 0.3 * unit * grid)) - dense.value
    found = measure(model, data, rho=0.3, average=True, samples=3000, seed=5)
    assert found.standard_error is not None
    assert 0 < found.standard_error < 0.2 * abs(expected)
    assert abs(found.value - expected) < 4 * found.standard_error
    assert measure(model, data, rho=0.3, average=True, samples=20, seed=5) == measure(
        model, data, rho=0.3, average=True, samples=20, seed=5
    )
    assert (
        measure(model, data, rho=0.3, average=True).value != measure(model, data, rho=0.3, average=True, seed=1).value
    )


def test_sam_where_the_gradient_is_zero() -> None:
    """From a minimum the first step is random, and the next ones find the top eigenvalue: rho^2 / 2 of it."""
    model, (x, _) = three()
    data = (x, model(x).detach())
    top = float(torch.linalg.eigvalsh(Dense(model, data, nn.MSELoss()).hessian)[-1])
    found = sam_sharpness(model, data, nn.MSELoss(), rho=1e-4, steps=200)
    assert found.value == pytest.approx(top * 1e-8 / 2, rel=1e-3)
    assert sam_sharpness(model, data, nn.MSELoss(), rho=1e-4).value > 0


# Parameter corruption


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


# The Fisher-Rao norm

FISHER = [
    "mlp",
    "gelu",
    "lstm",
    "transformer",
    "segmenter",
    "dict_input",
    "embedding",
    "pools",
    "weight_norm",
    "frozen",
]


@pytest.mark.parametrize("name", [name for name in FISHER if name in BY_NAME])
def test_fisher_rao_is_the_dense_form(name: str) -> None:
    """Over every label that the model could draw: E <grad log p(y), t>^2. Without targets, but to tell the axes."""
    entry = BY_NAME[name]
    inputs, targets = entry.data()
    dense = Dense(entry.model(), (inputs, targets))
    found = fisher_rao_norm(entry.model(), (inputs, targets if targets.dim() > 1 else None))
    outputs = dense.outputs(dense.t).detach()
    along = torch.autograd.functional.jacobian(dense.outputs, dense.t) @ dense.t
    p = outputs.softmax(1)
    by_label = along - (p * along).sum(1, keepdim=True)  # <grad log p(y), t> for each y
    expected = float((p * by_label.square()).sum() / targets.numel())
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert fisher_rao_norm(entry.model(), (inputs, targets)).value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("criterion", "kind"),
    [
        (nn.CrossEntropyLoss(label_smoothing=0.2, weight=torch.tensor([1.0, 2.0, 0.5]).double()), "classes"),
        (nn.CrossEntropyLoss(ignore_index=0, reduction="sum"), "classes"),
        (nn.MSELoss(), "numbers"),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 1.0, 3.0]).double()), "numbers"),
        (lambda o, y: F.softplus(o).sum(1).mean() - (o * y).sum(1).mean(), "numbers"),
    ],
)
def test_fisher_rao_of_other_losses(criterion: Any, kind: str) -> None:
    """t^T J^T H J t with the dense Hessian of the criterion over the outputs."""
    model, (x, y) = small()
    data = (x, y if kind == "classes" else torch.rand(9, 3, generator=torch.Generator().manual_seed(0)).double())
    dense = Dense(model, data, criterion)
    outputs = dense.outputs(dense.t).detach()
    H = torch.autograd.functional.hessian(lambda o: criterion(o.view(9, 3), data[1]), outputs.flatten())
    along = torch.autograd.functional.jacobian(dense.outputs, dense.t).flatten(0, 1) @ dense.t
    score = fisher_rao_norm(model, [(x[:4], data[1][:4]), (x[4:], data[1][4:])], criterion)
    assert score.value == pytest.approx(float(along @ H @ along), rel=1e-10)


def test_fisher_rao_of_one_number_per_sample() -> None:
    x, linear = torch.randn(5, 3).double(), nn.Linear(3, 1).double()
    flat = nn.Sequential(linear, nn.Flatten(0))
    scores = [fisher_rao_norm(model, (x, y), nn.MSELoss()).value for model, y in ((linear, x[:, :1]), (flat, x[:, 0]))]
    assert scores[0] == pytest.approx(scores[1], rel=1e-12)


def test_fisher_rao_over_some_parameters() -> None:
    """Outputs that are linear in the last layer: J t is what the layer itself adds."""
    model, (x, _) = small()
    with torch.no_grad():
        hidden = model[:2](x)
        along = hidden @ model[2].weight.T
        p = model(x).softmax(1)
    expected = float(((p * along.square()).sum(1) - (p * along).sum(1).square()).mean())
    assert fisher_rao_norm(model, x, parameters="2.weight").value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["mlp", "transformer", "lstm"])
def test_both_ways_along_the_parameters_agree(name: str) -> None:
    from minsharp.reference.objective import Objective

    entry = BY_NAME[name]
    objective = Objective(entry.model(), entry.data())
    with objective.prepared():
        batch = objective.batches[0]
        forward, backward = _along_itself(objective, batch), objective.tangent(objective.parameters, batch)
    for a, b in zip(forward, backward, strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


# Rangamani


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


# pacGen


@pytest.mark.parametrize(("gamma", "epsilon", "rho"), [(0.1, 0.1, 1.0), (0.5, 2.0, 0.0), (0.0, 3.0, 0.1)])
def test_pacgen_is_its_formula(gamma: float, epsilon: float, rho: float) -> None:
    entry = BY_NAME["mlp"]
    inputs, targets = entry.data()
    model = entry.model().eval()
    m = sum(p.numel() for p in model.parameters())
    expected, curved = 0.0, 0
    for name, parameter in model.named_parameters():
        H = oracles.hessian_diagonal(model, inputs, targets, CE, name)
        for t, h in zip(parameter.flatten().tolist(), H.flatten().tolist(), strict=True):
            k = gamma * abs(t) + epsilon
            curved += sqrt(h + rho * sqrt(m) * k) > 1 / k
            expected += log((abs(t) + k) * max(sqrt(h + rho * sqrt(m) * k), 1 / k))
    score = pacgen(model, (inputs, None), gamma=gamma, epsilon=epsilon, rho=rho)
    assert score.value == pytest.approx(expected, rel=1e-10)
    assert score.details["m"] == m
    assert curved or gamma == 0.1, "some entries take the other side of the maximum"


def test_pacgen_from_a_diagonal() -> None:
    entry = BY_NAME["gelu"]
    inputs, _ = entry.data()
    model = entry.model()
    diagonal = ms.hessian_diagonal(model, inputs, curvature="ggn")
    whole = pacgen(model, inputs, curvature="ggn")
    assert pacgen(model, (), diagonal=diagonal) == whole
    with pytest.raises(ms.NotExactError, match='curvature="ggn"'):
        pacgen(model, inputs)
    with pytest.raises(ms.InputError, match=r"the diagonal is not of this model: \['2.weight', '2.bias'\]"):
        pacgen(nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3)), inputs, diagonal=diagonal)


# Relative flatness


@pytest.mark.parametrize(
    ("name", "layer"),
    [("mlp", None), ("mlp", "0"), ("residual", "a"), ("sequence", "0"), ("sequence", None), ("pools", None)],
)
def test_relative_flatness_against_the_dense_hessian(name: str, layer: str | None) -> None:
    entry = BY_NAME[name]
    inputs, targets = entry.data()
    model = entry.model()
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    chosen = linear[-1] if layer is None else layer
    dense = Dense(model, (inputs, targets), names=[f"{chosen}.weight"])
    W = dense.held[f"{chosen}.weight"]
    H = dense.hessian.view(*W.shape, *W.shape)
    expected = float(torch.einsum("sj,tj,sktk->", W, W, H))
    score = relative_flatness(entry.model(), (inputs, None), layer=layer)
    assert score.value == pytest.approx(expected, rel=1e-9)
    assert score.details["layer"] == chosen


def test_relative_flatness_where_it_cannot_be() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(2, 1, 4, 4)
    with pytest.raises(
        ms.InputError, match=r"layer='0' is a Conv2d: expected an nn\.Linear, one of layer=\['2', '4'\]"
    ):
        relative_flatness(model, x, layer="0")
    with pytest.raises(ms.InputError, match="layer='head' is not there"):
        relative_flatness(model, x, layer="head")
    with pytest.raises(ms.InputError, match="the model holds none"):
        relative_flatness(nn.Sequential(nn.Conv2d(1, 2, 4), nn.Flatten()), x)
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    with pytest.raises(ms.InputError, match=r"is shared: \['0\.weight', '1\.weight'\]"):
        relative_flatness(tied, torch.randn(2, 3))


# What rescaling does

INVARIANT: dict[str, Callable[[Any, Any], Score]] = {
    "training loss": training_loss,
    "fisher-rao": fisher_rao_norm,
    "rangamani": lambda m, d: rangamani_flatness(m, d, iterations=1000, tolerance=1e-11),
    "asam": asam_sharpness,
    "asam, 5 steps": lambda m, d: asam_sharpness(m, d, steps=5),
    "asam, average": lambda m, d: asam_sharpness(m, d, average=True),
    "relative flatness": relative_flatness,
}
MOVED: dict[str, Callable[[Any, Any], Score]] = {
    "eigenvalue": largest_eigenvalue,
    "keskar": keskar_sharpness,
    "sam": sam_sharpness,
    "sam, 5 steps": lambda m, d: sam_sharpness(m, d, steps=5),
    "sam, average": lambda m, d: sam_sharpness(m, d, average=True),
    "corruption": parameter_corruption,
}


def _changes(measure: Callable[[Any, Any], Score], name: str) -> list[float]:
    """The relative change of a measure under three random rescalings."""
    entry = BY_NAME[name]
    model, data = entry.model(), entry.data()
    symmetries = ms.symmetries(model, data[0])
    assert symmetries.dimension
    before = measure(model, data).value
    rescaled = [ms.rescale(model, symmetries.random(seed, spread=10)) for seed in range(3)]
    return [abs(measure(other, data).value - before) / abs(before) for other in rescaled]


@pytest.mark.parametrize("name", ["mlp", "residual", "pools"])
@pytest.mark.parametrize("measure", INVARIANT)
def test_no_rescaling_changes_it(measure: str, name: str) -> None:
    assert max(_changes(INVARIANT[measure], name)) < 1e-8


@pytest.mark.parametrize("measure", MOVED)
def test_rescaling_changes_it(measure: str) -> None:
    assert max(_changes(MOVED[measure], "mlp")) > 0.5


def test_neuron_rescaling_leaves_asam_and_fisher_rao() -> None:
    model, data = small()
    scales = ms.symmetries(model, data[0], scope="neuron").random(0, spread=10)
    other = ms.rescale(model, scales)
    for measure in (asam_sharpness, fisher_rao_norm):
        assert measure(other, data).value == pytest.approx(measure(model, data).value, rel=1e-8)


# What every one of them has to do

ALL: dict[str, Measure] = {
    "training_loss": training_loss,
    "largest_eigenvalue": largest_eigenvalue,
    "keskar_sharpness": keskar_sharpness,
    "sam_sharpness": sam_sharpness,
    "asam_sharpness": asam_sharpness,
    "parameter_corruption": parameter_corruption,
    "fisher_rao_norm": fisher_rao_norm,
    "rangamani_flatness": rangamani_flatness,
    "pacgen": pacgen,
    "relative_flatness": relative_flatness,
}
LABEL_FREE = {"fisher_rao_norm", "pacgen", "relative_flatness"}


@pytest.mark.parametrize("name", ALL)
def test_the_model_comes_back_as_it_was(name: str) -> None:
    model, data = small()
    model = nn.Sequential(*model, nn.Dropout(0.5)).double().train()
    model[2].eval()
    model[0].weight.requires_grad_(False)
    nn.Module.zero_grad(model)
    CE(model(data[0]), data[1]).backward()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    state = torch.get_rng_state()
    score = ALL[name](model, data)
    assert score.measure == name
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == [True, True, True, False, True]
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    for p, g in zip(model.parameters(), gradients, strict=True):
        assert (p.grad is None) == (g is None)
        assert g is None or torch.equal(p.grad, g)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ALL)
def test_single_precision_network_and_batches(name: str) -> None:
    """float32 agrees with float64, a network that was read with its module, batches with the whole."""
    model, (x, y) = small()
    expected = ALL[name](model, (x, y)).value
    assert ALL[name](ms.read(model, x), [(x[:4], y[:4]), (x[4:], y[4:])]).value == pytest.approx(expected, rel=1e-3)
    single = ALL[name](model.float(), (x.float(), y))
    assert single.value == pytest.approx(expected, rel=5e-3)
    assert isinstance(single.value, float)
    assert single.to_dict()["measure"] == name


@pytest.mark.parametrize("name", ALL)
def test_labels_where_they_are_needed(name: str) -> None:
    model, (x, _) = small()
    if name in LABEL_FREE:
        assert ALL[name](model, x).value > 0 or name == "pacgen"
    else:
        with pytest.raises(ms.LossError, match=r"needs targets: pass data=\(inputs, targets\)"):
            ALL[name](model, x)


@pytest.mark.parametrize("name", ALL)
def test_bad_data_and_models(name: str) -> None:
    model, (x, y) = small()
    with pytest.raises(ms.InputError, match=r"expected a torch\.nn\.Module"):
        ALL[name](x, (x, y))
    with pytest.raises(ms.InputError, match=r"Sequential does not run on a tensor of shape \(9, 2\)"):
        ALL[name](model, (x[:, :2], y))
    with pytest.raises(ms.InputError, match="the data is empty"):
        ALL[name](model, [])
    with pytest.raises(ms.LossError, match="weighs nothing"):
        ALL[name](model, (x, torch.full_like(y, -100)))
    broken, _ = small()
    next(broken.parameters()).data[0, 0] = float("nan")
    with pytest.raises(ms.NonFiniteError, match=r"not finite|holds 1 NaN"):
        ALL[name](broken, (x, y))


@pytest.mark.parametrize(
    ("measure", "options", "text"),
    [
        (largest_eigenvalue, {"iterations": 0}, "iterations=0: expected at least 1"),
        (largest_eigenvalue, {"tolerance": 0.0}, r"tolerance=0\.0: expected a positive number"),
        (rangamani_flatness, {"tolerance": float("nan")}, "tolerance=nan: expected a positive number"),
        (keskar_sharpness, {"epsilon": -1.0}, r"epsilon=-1\.0: expected a positive number"),
        (keskar_sharpness, {"iterations": 0}, "iterations=0: expected at least 1"),
        (sam_sharpness, {"rho": 0.0}, r"rho=0\.0: expected a positive radius"),
        (sam_sharpness, {"steps": 0}, "steps=0: expected at least 1"),
        (asam_sharpness, {"samples": 1}, "samples=1: expected at least 2"),
        (parameter_corruption, {"epsilon": 0.0}, r"epsilon=0\.0: expected a positive size"),
        (parameter_corruption, {"p": 0.5}, r"p=0\.5: expected the order of a norm"),
        (parameter_corruption, {"k": 0}, "k=0: expected between 1 and 31"),
        (parameter_corruption, {"k": 32}, "k=32: expected between 1 and 31"),
        (pacgen, {"epsilon": 0.0}, r"epsilon=0\.0, rho=1\.0: expected gamma and rho not negative and epsilon positive"),
        (fisher_rao_norm, {"parameters": "head.*"}, r"nothing matches \['head\.\*'\]"),
    ],
)
def test_bad_options(measure: Measure, options: dict[str, Any], text: str) -> None:
    model, data = small()
    with pytest.raises(ms.InputError, match=text):
        measure(model, data, **options)


def test_rangamani_of_nothing_but_zeros() -> None:
    model, data = small()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    with pytest.raises(ms.InputError, match="every parameter that is measured is zero"):
        rangamani_flatness(model, data)


def test_overflow_is_named() -> None:
    """Finite outputs, but second derivatives beyond float32."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    data = (torch.full((1, 1), 1e19), torch.zeros(1, 1))
    with pytest.raises(ms.NonFiniteError, match="Hessian-vector product is not finite"):
        largest_eigenvalue(model, (data[0] * 10, data[1]), nn.MSELoss())
