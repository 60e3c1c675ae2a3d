"""The number is the Hessian of that very criterion, whatever its options and however the data is cut."""

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
        with pytest.raises(ms.LossError, match=r"which axis runs over the classes cannot be told.*transpose\(1, 2\)"):
            ms.hessian_trace(model, ids, curvature=curvature)
    with pytest.raises(ms.LossError, match=r"classes have to be on axis 1.*transpose\(1, 2\)"):
        ms.hessian_trace(Language(False), (ids, ids), curvature=curvature)
    assert ms.hessian_trace(Language(True), (ids, ids), curvature=curvature).total > 0


def test_a_second_input_is_not_a_target() -> None:
    x = torch.randn(4, 6)
    with pytest.raises(ms.LossError, match=r"if that is a second input, pass \(\(a, b\), None\)"):
        ms.hessian_trace(nn.Linear(6, 3), (x, x))
