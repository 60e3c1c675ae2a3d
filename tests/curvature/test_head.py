"""The last layer in closed form, and fewer columns behind it: as the dense oracle has it, tied or not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.curvature.engine import Engine
from minsharp.curvature.head import LastLayer, find_head
from minsharp.curvature.quantities import DIAGONAL, DiagonalSum
from minsharp.curvature.schedule import fast_schedule
from minsharp.losses import as_loss
from tests.support import oracles
from tests.support.language import Language, language, tokens

D = torch.float64


def last_axis(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.movedim(-1, 1), targets)


def expected(model: nn.Module, x: Tensor, criterion: Any, y: Tensor) -> dict[str, Tensor]:
    return {name: oracles.ggn_diagonal(model, x, y, criterion, name) for name, _ in model.named_parameters()}


def assert_same(result: ms.Diagonal, oracle: dict[str, Tensor]) -> None:
    assert set(result.by_parameter) == set(oracle)
    for name, diagonal in oracle.items():
        torch.testing.assert_close(result.by_parameter[name], diagonal, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("n", [3, 1])
def test_language_models_need_no_more_columns_than_the_head_is_wide(tied: bool, bias: bool, n: int) -> None:
    model, x = language(tied=tied, bias=bias), tokens(n)
    oracle = expected(model, x, last_axis, x)
    for memory in (None, 4000):
        options: Any = {"curvature": "ggn", "class_axis": -1, "memory": memory}
        assert_same(ms.hessian_diagonal(model, x, **options), oracle)
        trace = ms.hessian_trace(model, x, **options)
        assert trace.by_parameter == pytest.approx({k: float(d.sum()) for k, d in oracle.items()}, rel=1e-9)


@pytest.mark.parametrize("tied", [False, True])
def test_a_quantity_without_a_closed_form_sees_all_columns(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = language(tied=tied), tokens()
    monkeypatch.setattr(DiagonalSum, "of_last_layer", lambda self, D, x: None)
    assert_same(ms.hessian_diagonal(model, x, curvature="ggn", class_axis=-1), expected(model, x, last_axis, x))


CRITERIA: dict[str, tuple[Any, Any]] = {
    "cross-entropy": (nn.CrossEntropyLoss(), lambda n: torch.arange(n) % 9),
    "class weights": (nn.CrossEntropyLoss(torch.arange(9.0).double()), lambda n: torch.arange(n) % 9),
    "squared error": (nn.MSELoss(), lambda n: torch.zeros(n, 9, dtype=D)),
    "binary": (nn.BCEWithLogitsLoss(), lambda n: torch.ones(n, 9, dtype=D)),
    "own": (lambda o, y: ((o - y) ** 4).mean(), lambda n: torch.zeros(n, 9, dtype=D)),
}


@pytest.mark.parametrize("criterion", CRITERIA)
def test_many_classes_behind_a_narrow_layer(criterion: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 9)).double()
    x = torch.randn(6, 4, dtype=D)
    loss, make = CRITERIA[criterion]
    assert_same(ms.hessian_diagonal(model, (x, make(6)), loss), expected(model, x, loss, make(6)))


def test_the_columns_are_as_many_as_the_input_is_wide() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 9)), torch.randn(6, 4)
    network = ms.read(model, x)
    engine = Engine(network, list(network.parameters), as_loss(None), DIAGONAL)
    assert engine.rank == 3
    assert Engine(network, list(network.parameters), as_loss(lambda o, y: o.sum()), DIAGONAL).rank == 9


class Normed(nn.Module):
    """The weight of the last layer is made of others, or rearranged, or used twice in a row."""

    def __init__(self, how: str):
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.weight = nn.Parameter(torch.randn(3, 9) if how == "turned" else torch.randn(9, 3))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        weight = {"turned": lambda w: w.t(), "normed": lambda w: w / w.norm(), "plain": lambda w: w}[self.how](
            self.weight
        )
        return nn.functional.linear(self.first(x).relu(), weight)


@pytest.mark.parametrize("how", ["turned", "normed", "plain"])
def test_a_weight_that_is_made_of_a_parameter(how: str) -> None:
    torch.manual_seed(0)
    model, x = Normed(how).double(), torch.randn(5, 4, dtype=D)
    y = torch.arange(5) % 9
    assert_same(ms.hessian_diagonal(model, x, curvature="ggn"), expected(model, x, nn.CrossEntropyLoss(), y))


def test_a_head_that_is_frozen_still_narrows() -> None:
    model, x = language(), tokens()
    model.head.requires_grad_(False)
    oracle = expected(model, x, last_axis, x)
    result = ms.hessian_diagonal(model, x, curvature="ggn", class_axis=-1)
    assert "head.weight" not in result.by_parameter
    assert_same(result, {name: d for name, d in oracle.items() if not name.startswith("head")})


def test_what_is_no_plain_linear_layer_at_the_end_is_no_head() -> None:
    x = torch.randn(2, 4)
    for model in (
        nn.Sequential(nn.Linear(4, 9), nn.Tanh()),
        nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 1)),
    ):
        network = ms.read(model, x)
        assert find_head(fast_schedule(network.graph, tuple(network.parameters))) is None


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("scope", ["layer", "neuron", "full"])
def test_a_layer_without_any_input(scope: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 0), nn.Linear(0, 4)).double()
    with torch.no_grad():
        model.get_parameter("1.bias").copy_(torch.arange(4.0))
    for curvature in ("hessian", "ggn", "margin"):
        result = ms.hessian_diagonal(model, torch.randn(5, 3, dtype=D), curvature=curvature)
        assert {n: d.shape for n, d in result.by_parameter.items()} == {n: p.shape for n, p in model.named_parameters()}
    least = ms.minimum_sharpness(model, torch.randn(5, 3, dtype=D), scope=scope)
    assert least.value == pytest.approx(float(least.before["1.bias"]))


def test_positions_on_other_axes_are_left_alone() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(2, 9).double(), torch.randn(3, 4, 2, dtype=D)  # outputs (n, 4, 9): classes on axis 1
    y = torch.zeros(3, 9, dtype=torch.int64)
    assert_same(ms.hessian_diagonal(model, (x, y)), expected(model, x, nn.CrossEntropyLoss(), y))


def test_broken_closed_forms_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = language(tied=True), tokens()
    own = LastLayer.own
    monkeypatch.setattr(LastLayer, "own", lambda self, quantity: [(n, 1.01 * v) for n, v in own(self, quantity) or ()])
    with pytest.raises(AssertionError):
        assert_same(ms.hessian_diagonal(model, x, curvature="ggn", class_axis=-1), expected(model, x, last_axis, x))
    assert isinstance(model, Language)
