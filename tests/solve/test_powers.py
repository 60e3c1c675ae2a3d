"""Powers of two as factors: the lattice they form, the search over it, and the networks that come of it."""

from dataclasses import replace
from itertools import product
from math import log
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import minsharp as ms
from minsharp.solve import powers
from minsharp.solve.geometric import log_sum, minimise
from minsharp.solve.lattice import lattice
from minsharp.solve.powers import minimise_powers
from tests.support.zoo import ZOO, Entry, call, network

Array = np.ndarray[Any, Any]


def is_power(factor: float | Tensor) -> bool:
    """Whether factors are exact powers of two."""
    return bool((torch.frexp(torch.as_tensor(factor, dtype=torch.float64))[0] == 0.5).all())


# The lattice

coefficients = st.sampled_from([0, 1, -1, 2, 0.5, -0.5, 1 / 3])
matrices = st.integers(1, 3).flatmap(
    lambda d: st.lists(st.lists(coefficients, min_size=d, max_size=d), min_size=1, max_size=5)
)


@settings(max_examples=30, deadline=None)
@given(matrices)
def test_the_lattice_is_all_of_it(rows: list[list[float]]) -> None:
    """Every z on a fine grid with A z whole is B k, up to what A does not see; and A B is whole."""
    A = np.array(rows, dtype=float)
    M = A @ lattice(scipy.sparse.csr_array(A)).toarray()
    assert np.abs(M - M.round()).max() < 1e-9
    grid = np.stack(np.meshgrid(*[np.arange(-6, 7) / 6] * A.shape[1], indexing="ij"), -1).reshape(-1, A.shape[1])
    t = grid @ A.T
    wanted = {tuple(row) for row in t[np.abs(t - t.round()).max(1) < 1e-9].round()}
    near = max(2, int(np.abs(np.linalg.pinv(M)).sum(1).max() * max(map(max, wanted), default=1)) + 1)
    k = np.array(list(product(range(-near, near + 1), repeat=A.shape[1])))
    assert wanted <= {tuple(row) for row in (k @ M.T).round()}


def test_differences_need_no_finer_lattice() -> None:
    A = scipy.sparse.csr_array(np.array([[1.0, 0], [-1, 1], [0, -1]]))
    assert np.array_equal(lattice(A).toarray(), np.eye(2))


def test_a_number_that_comes_with_both_signs_may_be_half() -> None:
    """z_1 - z_2 and z_1 + z_2 are whole for z = (1/2, 1/2) too."""
    M = np.array([[1.0, -1], [1, 1]])
    assert abs(np.linalg.det(lattice(scipy.sparse.csr_array(M)).toarray())) == pytest.approx(0.5)


# The search


def chain(layers: int, biases: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """A chain of layers, some of them with a bias: t = z_i - z_{i-1}, and z_i."""
    A = np.zeros((layers + biases, layers - 1))
    for i in range(layers - 1):
        A[i, i], A[i + 1, i] = 1, -1
    for row in A[layers:]:
        row[rng.integers(layers - 1)] = 1
    return rng.normal(size=len(A)) * rng.choice([0.5, 2.0, 5.0]), A


def dense(rng: np.random.Generator) -> tuple[Array, Array]:
    """Three layers with two neurons between each, entry by entry."""
    rows = [[int(j == i) for j in range(4)] for i in (0, 1) for _ in range(3)]
    rows += [[-(j == i) + (j == 2 + o) for j in range(4)] for i in (0, 1) for o in (0, 1)]
    rows += [[-(j == 2 + i) for j in range(4)] for i in (0, 1) for _ in range(2)]
    return rng.normal(size=len(rows)) * 2, np.array(rows, dtype=float)


@pytest.mark.parametrize("seed", range(60))
def test_the_search_finds_the_best(seed: int) -> None:
    """Against all whole numbers around the minimum: exhaustive for small chains and small dense networks."""
    rng = np.random.default_rng(seed)
    log_c, A = dense(rng) if seed % 3 == 0 else chain(2 + seed % 4, seed % 5, rng)
    z = minimise(log_c, scipy.sparse.csr_array(A)).z
    found = minimise_powers(log_c, scipy.sparse.csr_array(A), z)
    around = np.array(list(product(range(-2, 3), repeat=A.shape[1]))) + np.round(z / log(2))
    values = [log_sum(log_c - 2 * log(2) * (A @ k)) for k in around]
    assert log_sum(log_c - 2 * (A @ found)) <= min(values) + 1e-12
    assert np.abs(found / log(2) - np.round(found / log(2))).max() < 1e-12


def test_pairs_get_where_singles_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two numbers tied by a large term: moving either alone costs, moving both gains."""
    log_c, A = np.log([8.0, 1e3, 1e3, 1.0]), np.array([[1.0, 0], [1, -1], [-1, 1], [0, -1]])
    search = powers._Search(log_c, scipy.sparse.csc_array(A))
    assert list(search.descend(np.zeros(2))) == [1, 1]
    monkeypatch.setattr(powers, "PAIRS", 0)
    assert list(powers._Search(log_c, scipy.sparse.csc_array(A)).descend(np.zeros(2))) == [0, 0]


def test_what_shrinks_for_ever_stops() -> None:
    found = minimise_powers(np.zeros(1), scipy.sparse.csr_array(np.ones((1, 1))), np.zeros(1))
    assert 0 < found[0] <= 64 * log(2)


def test_many_numbers_are_fast_and_close() -> None:
    """200 neurons between 200 and 200: within 15 % of the bound over all factors."""
    rng = np.random.default_rng(0)
    h = 200
    o, i = np.divmod(np.arange(h * h), h)
    eye, none = scipy.sparse.eye_array(h), scipy.sparse.csr_array((h, h))
    middle = scipy.sparse.csr_array((np.ones(h * h), (np.arange(h * h), o)), shape=(h * h, h))
    minus = scipy.sparse.csr_array((-np.ones(h * h), (np.arange(h * h), i)), shape=(h * h, h))
    A = scipy.sparse.vstack([scipy.sparse.hstack(p) for p in ((eye, none), (minus, middle), (none, -eye))]).tocsr()
    log_c = 2 * rng.normal(size=A.shape[0])
    solution = minimise(log_c, A)
    found = minimise_powers(log_c, A, solution.z)
    assert log_sum(log_c - 2 * (A @ found)) < solution.log_bound + 0.15


# Networks


@pytest.mark.parametrize("entry", ZOO, ids=lambda e: e.name)
@pytest.mark.parametrize("scope", ["layer", "neuron"])
def test_a_result_and_its_network_are_one(entry: Entry, scope: Any) -> None:
    """The value is the trace of the very network that comes back, which is no sharper than before, bit for bit."""
    net, (inputs, targets) = network(entry), entry.data()
    measured = ms.hessian_diagonal(net, (inputs, targets), curvature="ggn")
    result = ms.minimum_sharpness(net, measured, scope=scope, power_of_two=True)
    flat = ms.flattest(net, measured, scope=scope, power_of_two=True)
    trace = ms.hessian_trace(replace(net, module=flat), (inputs, targets), curvature="ggn")
    assert all(map(is_power, result.scales.values()))
    assert trace.by_parameter == pytest.approx(dict(result.by_parameter), rel=1e-9)
    assert result.value == pytest.approx(trace.total, rel=1e-9)
    assert result.value <= result.trace
    free = ms.minimum_sharpness(net, measured, scope=scope)
    assert result.lower_bound == free.lower_bound <= result.value
    assert result.attained
    with torch.no_grad():
        assert torch.equal(call(flat.eval(), inputs), call(entry.model().eval(), inputs))


@pytest.mark.parametrize("seed", range(10))
def test_never_sharper_than_before(seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    x = torch.randn(6, 6).double()
    for _ in range(2):  # the second time from the best: nothing may get worse
        trace = ms.hessian_trace(model, x).total
        model = ms.flattest(model, x, scope="layer", power_of_two=True)  # type: ignore[assignment]
        assert ms.hessian_trace(model, x).total <= trace * (1 + 1e-12)


def test_it_says_so_where_nothing_is_flatter() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double(), torch.randn(9, 3).double()
    best = ms.flattest(model, x, power_of_two=True)
    result = ms.minimum_sharpness(best, x, scope="neuron", power_of_two=True)
    assert result.status.startswith("powers of two: none that was tried is flatter than the network as it is; at most")
    assert result.value == result.trace
    assert all(bool((torch.as_tensor(f) == 1).all()) for f in result.scales.values())
    assert "powers of two" in repr(result)
    assert result.to_dict()["power_of_two"] is True


def test_halves_of_powers_are_not_powers() -> None:
    """A weight that is used twice has half the freedom: its factor is a power of two all the same."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(4, 4)), nn.Parameter(100 * torch.randn(4, 2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(torch.relu(x @ self.a) @ self.a) @ self.b

    torch.manual_seed(0)
    model, x = Twice().double(), 0.01 * torch.randn(8, 4).double()
    result = ms.minimum_sharpness(model, x, curvature="ggn", power_of_two=True)
    a, b = result.scales["a"], result.scales["b"]
    assert is_power(a)
    assert a != 1
    assert b == a**-2
    assert torch.equal(ms.rescale(model, result.scales)(x), model(x))


def test_bits_that_do_not_fit_are_refused() -> None:
    """In half precision the smallest numbers have fewer bits."""
    model = nn.Sequential(nn.Linear(3, 4, bias=False)).half()
    nn.init.constant_(model[0].weight, 1 / 3)  # type: ignore[arg-type]
    assert ms.rescale(model, {"0.weight": 2.0**-14}) is not None
    assert ms.rescale(model, {"0.weight": 2.0**-10}, exact=True) is not None
    with pytest.raises(ms.InputError, match=r"'0\.weight' does not fit to the bit in torch\.float16 after"):
        ms.rescale(model, {"0.weight": 2.0**-14}, exact=True)
    with pytest.raises(ms.InputError, match="does not fit to the bit"):
        ms.rescale(model, {"0.weight": 3.0}, exact=True)


def test_an_infimum_gets_a_network_of_its_own() -> None:
    """A neuron that nothing listens to can grow for ever: the value is of the network that is returned."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        model.get_parameter("2.weight")[:, 0] = 0
    x = torch.randn(9, 3).double()
    free = ms.minimum_sharpness(model, x, scope="neuron")
    assert not free.attained
    result = ms.minimum_sharpness(model, x, scope="neuron", power_of_two=True)
    flat = ms.flattest(model, x, power_of_two=True)
    assert result.attained
    assert result.lower_bound == free.lower_bound
    assert result.lower_bound <= result.value == pytest.approx(ms.hessian_trace(flat, x).total, rel=1e-9)
    assert ms.verify(model, x, result).holds
