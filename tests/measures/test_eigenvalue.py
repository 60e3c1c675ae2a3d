"""The largest eigenvalue against the dense Hessian."""

import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.measures.eigenvalue import lanczos, largest_eigenvalue
from tests.support.dense import Dense, small
from tests.support.zoo import BY_NAME

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


def test_overflow_is_named() -> None:
    """Finite outputs, but second derivatives beyond float32."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    data = (torch.full((1, 1), 1e19), torch.zeros(1, 1))
    with pytest.raises(ms.NonFiniteError, match="Hessian-vector product is not finite"):
        largest_eigenvalue(model, (data[0] * 10, data[1]), nn.MSELoss())
