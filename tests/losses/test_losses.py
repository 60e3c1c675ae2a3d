"""The number is the Hessian of that very criterion, whatever its options and however the data is cut."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minsharp as ms
from minsharp.losses import as_loss
from minsharp.reference import estimators
from tests.support import oracles
from tests.support.zoo import BY_NAME, Entry

MLP = BY_NAME["mlp"]
SEGMENTER = BY_NAME["segmenter"]
N = 6


class Pseudo(nn.Module):
    """A convex loss that couples the outputs, and that torch does not have."""

    reduction = "mean"

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (1 + (outputs - targets).sum(1).square() + outputs.square().sum(1)).sqrt().mean()


def classes(entry: Entry) -> Tensor:
    return entry.data(N)[1]


def indices_with_holes(entry: Entry) -> Tensor:
    targets = classes(entry).clone()
    targets.view(-1)[[0, 4]] = 2
    return targets


def probabilities(entry: Entry) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = (N, entry.classes, *entry.positions)
    return torch.randn(shape, generator=generator, dtype=torch.float64).softmax(1)


WEIGHT = torch.tensor([0.5, 2.0, 1.0, 0.0], dtype=torch.float64)
CASES: dict[str, tuple[Entry, Any, Callable[[Entry], Tensor]]] = {
    "plain": (MLP, nn.CrossEntropyLoss(), classes),
    "sum": (MLP, nn.CrossEntropyLoss(reduction="sum"), classes),
    "class_weight": (MLP, nn.CrossEntropyLoss(weight=WEIGHT), classes),
    "class_weight_sum": (MLP, nn.CrossEntropyLoss(weight=WEIGHT, reduction="sum"), classes),
    "smoothing": (MLP, nn.CrossEntropyLoss(label_smoothing=0.2), classes),
    "smoothing_weight": (MLP, nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.2), classes),
    "ignore": (MLP, nn.CrossEntropyLoss(ignore_index=2), indices_with_holes),
    "ignore_all_options": (
        MLP,
        nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=2, label_smoothing=0.1),
        indices_with_holes,
    ),
    "probabilities": (MLP, nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1), probabilities),
    "positions": (SEGMENTER, nn.CrossEntropyLoss(), classes),
    "positions_ignore": (SEGMENTER, nn.CrossEntropyLoss(weight=WEIGHT[:3], ignore_index=2), indices_with_holes),
    "positions_probabilities": (SEGMENTER, nn.CrossEntropyLoss(), probabilities),
    "function": (MLP, F.cross_entropy, classes),
    "binary": (MLP, nn.BCEWithLogitsLoss(), probabilities),
    "binary_weighted": (MLP, nn.BCEWithLogitsLoss(weight=WEIGHT, pos_weight=WEIGHT + 1), probabilities),
    "binary_positions": (SEGMENTER, nn.BCEWithLogitsLoss(reduction="sum"), probabilities),
    "squared": (MLP, nn.MSELoss(), probabilities),
    "squared_sum": (MLP, nn.MSELoss(reduction="sum"), probabilities),
    "huber": (MLP, nn.HuberLoss(delta=0.3), probabilities),
    "poisson": (MLP, nn.PoissonNLLLoss(reduction="sum"), probabilities),
    "own": (MLP, Pseudo(), probabilities),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("memory", [None, 1])
def test_equals_the_hessian_of_the_criterion(name: str, memory: int | None) -> None:
    entry, criterion, make = CASES[name]
    model = entry.model().eval()
    inputs, _ = entry.data(N)
    targets = make(entry)
    assert isinstance(inputs, Tensor)
    uneven = [(inputs[:1], targets[:1]), (inputs[1:4], targets[1:4]), (inputs[4:], targets[4:])]
    result = ms.hessian_diagonal(model, uneven, criterion, memory=memory)
    for parameter, diagonal in result.by_parameter.items():
        expected = oracles.hessian_diagonal(model, inputs, targets, criterion, parameter)
        assert torch.allclose(diagonal, expected, rtol=1e-9, atol=1e-13), parameter


@pytest.mark.parametrize("name", CASES)
def test_total_and_weight_give_the_criterion(name: str) -> None:
    """What the estimators differentiate is the criterion itself."""
    entry, criterion, make = CASES[name]
    outputs, targets = oracles.outputs(entry.model(), entry.data(N)[0]), make(entry)
    loss = as_loss(criterion)
    value = loss.total(outputs, targets) / (loss.weight(outputs, targets) if loss.mean else 1)
    assert value == pytest.approx(float(criterion(outputs, targets)), rel=1e-12)


def test_labels_do_not_matter_for_cross_entropy() -> None:
    inputs, targets = MLP.data()
    labelled = ms.hessian_trace(MLP.model(), (inputs, targets))
    assert labelled.by_parameter == ms.hessian_trace(MLP.model(), inputs).by_parameter


@pytest.mark.parametrize("scale", [1e-3, 1, 30, 300, 3000])
def test_factor_of_extreme_logits(scale: float) -> None:
    """S S^T is diag(p) - pp^T for logits from flat to hopelessly confident, and never NaN."""
    generator = torch.Generator().manual_seed(0)
    outputs = scale * torch.randn(20, 7, generator=generator, dtype=torch.float64)
    columns = as_loss(nn.CrossEntropyLoss()).columns(outputs, None)
    assert columns.rank == 6
    S = columns.slice(0, 6)  # (n, columns, K)
    p = outputs.softmax(1)
    expected = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    assert torch.allclose(S.mT @ S, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("scale", [1.0, 100.0, 1000.0, 1e6])
def test_extreme_logits_in_single_precision(scale: float) -> None:
    torch.manual_seed(0)
    outputs = scale * torch.randn(50, 6)
    columns = as_loss(nn.CrossEntropyLoss()).columns(outputs, None)
    S = columns.slice(0, columns.rank).double()  # (n, K - 1, K)
    p = outputs.double().softmax(1)
    expected = torch.diag_embed(p) - p.unsqueeze(1) * p.unsqueeze(2)
    assert torch.allclose(S.mT @ S, expected, rtol=1e-5, atol=1e-7)


def test_one_class_has_no_curvature() -> None:
    result = ms.hessian_trace(nn.Linear(3, 1), torch.randn(4, 3))
    assert result.total == 0


def test_vector_outputs() -> None:
    """Outputs of shape (n,), as a binary classifier or a regressor may have."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).squeeze(1)

    x = torch.tensor([[1.0, 2.0, 2.0], [0.0, 0.0, 1.0]])
    result = ms.hessian_trace(Flat(), x, nn.MSELoss())
    assert result.by_parameter == pytest.approx({"layer.weight": 2 * (9 + 1) / 2, "layer.bias": 2.0})


BAD: dict[str, tuple[Any, Any, str]] = {
    "class out of range": (nn.CrossEntropyLoss(), torch.tensor([0, 9, 1, 2, 3]), "target 9 is not a class"),
    "wrong shape": (nn.CrossEntropyLoss(), torch.zeros(5, 2, dtype=torch.int64), r"expected targets of shape \(5,\)"),
    "float labels": (nn.CrossEntropyLoss(), torch.zeros(5), "expected targets as class indices"),
    "no reduction": (nn.CrossEntropyLoss(reduction="none"), torch.zeros(5, dtype=torch.int64), "'mean' or 'sum'"),
    "negative weight": (nn.CrossEntropyLoss(weight=-WEIGHT), torch.zeros(5, dtype=torch.int64), "not convex"),
    "weights": (nn.CrossEntropyLoss(weight=WEIGHT[:3]), torch.zeros(5, dtype=torch.int64), "3 class weights"),
    "needs targets": (nn.CrossEntropyLoss(weight=WEIGHT), None, "needs targets"),
    "log-probabilities": (nn.NLLLoss(), torch.zeros(5, dtype=torch.int64), "use loss=nn.CrossEntropyLoss"),
    "binary integers": (nn.BCEWithLogitsLoss(), torch.zeros(5, 4, dtype=torch.int64), "targets.float"),
    "binary range": (nn.BCEWithLogitsLoss(), torch.full((5, 4), 2.0), "between 0 and 1"),
    "squared shape": (nn.MSELoss(), torch.zeros(5), r"expected targets of shape \(5, 4\)"),
    "not convex": (lambda o, y: (o.cos() - y).mean(), torch.zeros(5, 4), "not convex in the outputs"),
    "not per sample": (lambda o, y: o.mean().square(), torch.zeros(5, 4), "not a per-sample loss"),
    "fails": (nn.CosineEmbeddingLoss(), torch.zeros(5), "failed on outputs"),
    "vector": (lambda o, y: (o - y).square().sum(1), torch.zeros(5, 4), "expected one number"),
    "not callable": ("cross_entropy", torch.zeros(5), "expected a criterion"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_losses_and_targets_are_refused(name: str) -> None:
    criterion, targets, message = BAD[name]
    inputs, _ = MLP.data(5)
    with pytest.raises(ms.LossError, match=message):
        ms.hessian_trace(MLP.model(), (inputs, targets), criterion)


def test_class_weights_in_a_loss_of_ones_own_show_in_mixtures_only() -> None:
    """A mean weighted by class is not a mean over samples, even if every chunk holds one class."""
    inputs, _ = MLP.data(8)
    targets = torch.arange(4).repeat_interleave(2)
    weighted = lambda o, y: F.cross_entropy(o, y, weight=WEIGHT + 1)  # noqa: E731
    with pytest.raises(ms.LossError, match="not a per-sample loss"):
        ms.hessian_trace(MLP.model(), (inputs, targets), weighted, memory=1)
    tiny = lambda o, y: 1e-8 * F.cross_entropy(o, y, reduction="sum")  # noqa: E731
    with pytest.raises(ms.LossError, match="not a per-sample loss"):
        ms.hessian_trace(MLP.model(), (inputs, targets), tiny)


def test_a_loss_of_ones_own_on_vectors() -> None:
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double()
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    expected = oracles.hessian_diagonal(model, x, y, nn.HuberLoss(), "0.weight")
    assert torch.allclose(ms.hessian_diagonal(model, (x, y), nn.HuberLoss()).by_parameter["0.weight"], expected)


def test_many_classes_in_little_memory() -> None:
    """Columns are made a few at a time."""
    loss = as_loss(nn.CrossEntropyLoss())
    outputs = torch.randn(2, 500, dtype=torch.float64)
    columns = loss.columns(outputs, None)
    pieces = torch.cat([columns.slice(start, min(start + 100, 499)) for start in range(0, 499, 100)], dim=1)
    p = outputs.softmax(1)
    assert torch.allclose(pieces.mT @ pieces, torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1), atol=1e-15)


def test_a_byte_is_not_minus_hundred() -> None:
    """Label 156 as a byte has the bits of ignore_index -100."""
    model, x = nn.Linear(6, 200).double(), torch.randn(4, 6, dtype=torch.float64)
    y = torch.tensor([156, 3, 156, 9])
    for loss in (None, nn.CrossEntropyLoss(weight=torch.linspace(0.5, 2, 200).double())):
        assert ms.hessian_trace(model, (x, y), loss).total == ms.hessian_trace(model, (x, y.byte()), loss).total
    bytes_of = estimators.baseline_diagonal(model, (x, y.byte()), parameters="bias").by_parameter["bias"]
    assert torch.equal(bytes_of, estimators.baseline_diagonal(model, (x, y), parameters="bias").by_parameter["bias"])
    ignoring = nn.CrossEntropyLoss(ignore_index=156)
    assert ms.hessian_trace(model, (x, y.byte()), ignoring).total == ms.hessian_trace(model, (x, y), ignoring).total


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.bool])
def test_other_whole_numbers_are_refused_as_torch_does(dtype: torch.dtype) -> None:
    with pytest.raises(ms.LossError, match=r"and type torch\.int64 .* use targets\.long\(\)"):
        ms.hessian_trace(nn.Linear(6, 3), (torch.randn(4, 6), torch.zeros(4, dtype=dtype)))


class Language(nn.Module):
    """Logits of the next word at every position, classes last or first."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.words, self.head, self.first = nn.Embedding(9, 4), nn.Linear(4, 9), first

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.words(ids))
        return logits.transpose(1, 2) if self.first else logits


@pytest.mark.parametrize("curvature", ["hessian", "jacobian"])
def test_the_axis_of_classes_is_never_guessed(curvature: Any) -> None:
    ids = torch.arange(12).view(2, 6) % 9
    for model in (Language(False), Language(True)):
        with pytest.raises(ms.LossError, match=r"which axis runs over the classes cannot be told.*class_axis=-1"):
            ms.hessian_trace(model, ids, curvature=curvature)
        assert ms.hessian_trace(model, (ids, ids.flip(1)), curvature=curvature).total > 0


def test_a_second_input_is_not_a_target() -> None:
    x = torch.randn(4, 6)
    with pytest.raises(ms.LossError, match=r"if that is a second input, pass \(\(a, b\), None\)"):
        ms.hessian_trace(nn.Linear(6, 3), (x, x))


# A loss of one's own in closed form


class Metric(ms.losses.Loss):
    """(o - y)^T A A^T (o - y) / 2: S = A, whatever the targets."""

    needs_targets = False

    def __init__(self, A: Tensor):
        self.A = A

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        assert targets is not None
        return ((outputs - targets) @ self.A.to(outputs)).square().sum() / 2

    def columns(self, outputs: Tensor, targets: Tensor | None) -> ms.losses.Columns:
        return ms.losses.Columns.of(self.A.to(outputs).mT.expand(len(outputs), -1, -1))


class LogCosh(ms.losses.Separate):
    """log cosh(o - y), entry by entry."""

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        assert targets is not None
        return (outputs - targets).cosh().log().sum()

    def second_derivative(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        assert targets is not None
        return 1 - (outputs - targets).tanh().square()


def metric() -> Metric:
    return Metric(torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64))


OWN: dict[str, Callable[[], ms.losses.Loss]] = {"metric": metric, "log cosh": LogCosh}


@pytest.mark.parametrize("make", OWN.values(), ids=OWN)
@pytest.mark.parametrize("memory", [None, 1])
def test_a_loss_in_closed_form(make: Callable[[], ms.losses.Loss], memory: int | None) -> None:
    loss, (inputs, _), targets = make(), MLP.data(N), probabilities(MLP)
    assert isinstance(inputs, Tensor)
    model = MLP.model().eval()
    outputs = oracles.outputs(model, inputs)
    assert ms.laws.check_loss(loss, outputs, targets) == []
    found = ms.hessian_diagonal(model, (inputs, targets), loss, memory=memory).by_parameter
    weight = loss.weight(outputs, targets)
    for name, diagonal in found.items():
        expected = oracles.hessian_diagonal(model, inputs, targets, lambda o, y: loss.total(o, y) / weight, name)
        assert torch.allclose(diagonal, expected, rtol=1e-9, atol=1e-13)


def test_a_loss_goes_wherever_a_criterion_goes() -> None:
    loss, (inputs, _), targets = metric(), MLP.data(N), probabilities(MLP)
    model, data = MLP.model().eval(), (inputs, targets)
    criterion = lambda o, y: loss.total(o, y) / len(o)  # noqa: E731
    minimum = ms.minimum_sharpness(model, data, loss)
    assert minimum.value == pytest.approx(ms.minimum_sharpness(model, data, criterion).value)
    assert ms.verify(model, data, minimum, loss).holds
    for estimate in (estimators.baseline_diagonal, estimators.tsuzuku_icml_diagonal):
        assert estimate(model, data, loss).total == pytest.approx(estimate(model, data, criterion).total)
    for function in (ms.normalized_sharpness, ms.relative_sensitivity, ms.relative_minimum_sharpness):
        assert function(model, data, loss).value == pytest.approx(function(model, data, criterion).value, rel=1e-6)
    noisy = [ms.noise_robustness(model, data, loss=one, sigmas=[0.01], trials=2, seed=0) for one in (loss, criterion)]
    assert repr(noisy[0]) == repr(noisy[1])
    table = ms.compare(model, data, loss=loss)
    assert table["trace"].value == pytest.approx(ms.hessian_trace(model, data, criterion).total)
    flat = ms.flattest(model, data, loss, scope="layer")
    assert ms.hessian_trace(flat, data, loss).total == pytest.approx(minimum.value)


def test_the_name_of_a_loss_tells_its_options() -> None:
    assert Metric(torch.tensor([[2.0], [0.0]])).name == "Metric(A=[[2.0], [0.0]])"
    x = torch.randn(3, 2)
    one, other = (ms.hessian_trace(nn.Linear(2, 2), x, Metric(c * torch.eye(2))) for c in (1, 2))
    with pytest.raises(ms.InputError, match="different things: loss Metric"):
        one + other


def test_a_loss_in_double_is_the_same_loss() -> None:
    single = Metric(torch.eye(4))
    double = single.double()
    assert (double.A.dtype, single.A.dtype) == (torch.float64, torch.float32)
    assert double.name == single.name
    assert torch.equal(double.A, single.A.double())


def test_what_is_checked_in_double_precision_has_a_loss_in_double_precision() -> None:
    class Careless(Metric):
        """Does not convert its own tensors to the type of the outputs."""

        def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
            assert targets is not None
            return ((outputs - targets) @ self.A).square().sum() / 2

        def columns(self, outputs: Tensor, targets: Tensor | None) -> ms.losses.Columns:
            return ms.losses.Columns.of(self.A.mT.expand(len(outputs), -1, -1))

    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), (torch.randn(6, 3), torch.randn(6, 2))
    loss = Careless(torch.randn(2, 2))
    assert ms.verify(model, data, ms.minimum_sharpness(model, data, loss), loss).holds
    assert ms.compare(model, data, loss=loss, measures=["minimum sharpness"])["minimum sharpness"].value


def test_a_class_is_no_loss() -> None:
    for given in (Metric, nn.CrossEntropyLoss):
        with pytest.raises(ms.LossError, match=rf"got the class {given.__name__}.*loss={given.__name__}\(\.\.\.\)"):
            ms.hessian_trace(nn.Linear(2, 2), torch.randn(3, 2), given)  # type: ignore[arg-type]


class Broken(Metric):
    """Several ways to write a loss that is none."""

    def __init__(self, how: str):
        super().__init__(torch.eye(4, dtype=torch.float64))
        self.how = how

    def total(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        value = super().total(outputs, targets)
        if self.how == "writes":
            outputs.detach().add_(1)
        if self.how == "vector":
            return value.expand(3)
        if self.how == "between":
            return value + (outputs[0] * outputs[1]).sum()
        return value / len(outputs) if self.how == "mean" else value

    def columns(self, outputs: Tensor, targets: Tensor | None) -> ms.losses.Columns:
        right = super().columns(outputs, targets)
        if self.how == "factor":
            return ms.losses.Columns(right.rank, lambda start, stop: 2 * right.slice(start, stop))
        if self.how == "samples last":
            return ms.losses.Columns(right.rank, lambda start, stop: right.slice(start, stop)[:1])
        if self.how == "slices":
            return ms.losses.Columns(right.rank, lambda start, stop: right.slice(0, stop - start))
        if self.how == "type":
            return ms.losses.Columns(right.rank, lambda start, stop: right.slice(start, stop).double())
        if self.how == "targets" and targets is not None:
            return ms.losses.Columns.of(2 * right.slice(0, right.rank))
        return right

    def check(self, outputs: Tensor, targets: Tensor | None) -> None:
        if self.how == "refuses":
            raise ms.LossError("no")

    def weight(self, outputs: Tensor, targets: Tensor | None) -> float:
        return 1.0 if self.how == "weight" else super().weight(outputs, targets)

    def rank(self, shape: tuple[int, ...]) -> int:
        return 2 if self.how == "rank" else super().rank(shape)


HOW = {
    "vector": r"total: returns shape \(3,\), expected one number",
    "between": "factor: the total of Broken.* is no sum over samples",
    "mean": "adds up: the totals of two parts .* return a sum over samples, not a mean",
    "factor": "factor: S S.T of Broken.* is not the Hessian of its total: in sample 0 an entry is 4, autograd's 1",
    "samples last": r"columns: come as \(1, 4, 4\) torch.float64, expected \(6, 4, 4\)",
    "slices": "columns: are not the same taken 1 at a time",
    "type": r"columns: come as \(6, 4, 4\) torch.float64, expected \(6, 4, 4\) torch.float32",
    "targets": "factor: needs_targets is False, and yet S S.T is another",
    "refuses": "accepts: raised LossError: no",
    "weight": "adds up: the weights of two parts, 1 and 1, are not the 1 of the batch",
    "rank": r"columns: are 4, more than the 2 that rank\(\) promises",
    "writes": "untouched: the outputs have changed",
}


@pytest.mark.parametrize("how", HOW)
def test_a_broken_loss_is_noticed(how: str) -> None:
    outputs, targets = torch.randn(6, 4), torch.randn(6, 4)
    found = ms.laws.check_loss(Broken(how), outputs, targets)
    assert re.search(HOW[how], "\n".join(found))
    assert ms.laws.check_loss(Broken(""), outputs, targets) == []


def test_columns_of_a_wrong_shape_are_refused_in_measuring() -> None:
    with pytest.raises(ms.LossError, match=r"came as \(1, 4, 4\).*expected \(3, 4, 4\).*check_loss"):
        ms.hessian_trace(nn.Linear(2, 4), torch.randn(3, 2), Broken("samples last"))


@pytest.mark.parametrize("name", CASES)
def test_criteria_obey_the_laws_of_losses(name: str) -> None:
    entry, criterion, make = CASES[name]
    outputs = oracles.outputs(entry.model(), entry.data(N)[0])
    assert ms.laws.check_loss(criterion, outputs, make(entry)) == []


def test_a_loss_that_is_all_but_linear_is_convex_to_rounding() -> None:
    def log_cosh(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).cosh().log().mean()

    x = torch.linspace(10, 30, 12, dtype=torch.float64).view(12, 1)  # there the Hessian is what rounding leaves
    model = nn.Linear(1, 1).double()
    nn.init.ones_(model.weight)
    assert ms.hessian_trace(model, (x, torch.zeros(12, 1).double()), log_cosh).total == pytest.approx(0, abs=1e-6)


def test_a_loss_that_is_not_convex_is_refused() -> None:
    model = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(model.weight)
    with pytest.raises(ms.LossError, match="is not convex in the outputs"):
        ms.hessian_trace(model, (torch.ones(3, 2), -torch.ones(3, 2)), lambda o, y: (o - y).sin().mean())
