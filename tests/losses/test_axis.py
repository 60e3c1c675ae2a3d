"""Classes on another axis than 1: the numbers are those of the permuted network, and nothing is guessed."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.laws import check_loss
from minsharp.losses import as_loss
from minsharp.losses.axis import OnAxis

TOKENS = torch.randint(7, (6, 5), generator=torch.Generator().manual_seed(0))
LABELS = torch.where(torch.arange(30).view(6, 5) % 4 == 0, -100, TOKENS.roll(-1, 1))


class Language(nn.Module):
    """Logits (n, positions, classes), or moved to where torch's criteria have them."""

    def __init__(self, moved: bool = False) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)
        self.moved = moved

    def forward(self, input_ids: Tensor) -> Tensor:
        logits = self.head(self.embed(input_ids).relu())
        return logits.mT if self.moved else logits


def language(moved: bool = False) -> Language:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Language(moved).double()


@pytest.mark.parametrize(
    "criterion",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="sum", label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=torch.arange(1.0, 8.0).double()),
    ],
)
def test_the_targets_tell(criterion: nn.Module) -> None:
    expected = ms.hessian_diagonal(language(True), (TOKENS, LABELS), criterion)
    for data in ((TOKENS, LABELS), {"input_ids": TOKENS, "labels": LABELS}):
        found = ms.hessian_diagonal(language(), data, criterion)
        for name, diagonal in expected.by_parameter.items():
            assert torch.allclose(found.by_parameter[name], diagonal, rtol=1e-12)
    assert ms.measures.training_loss(language(), (TOKENS, LABELS), criterion).value == pytest.approx(
        ms.measures.training_loss(language(True), (TOKENS, LABELS), criterion).value, rel=1e-12
    )


@pytest.mark.parametrize("curvature", ["hessian", "jacobian"])
def test_the_user_tells(curvature: Any) -> None:
    expected = ms.hessian_trace(language(True), TOKENS, curvature=curvature, class_axis=1).total
    assert ms.hessian_trace(language(), TOKENS, curvature=curvature, class_axis=-1).total == pytest.approx(expected)
    assert ms.hessian_trace(language(), TOKENS, curvature=curvature, class_axis=2).total == pytest.approx(expected)


def test_the_laws_hold() -> None:
    outputs = torch.randn(3, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    check_loss(OnAxis(as_loss(nn.CrossEntropyLoss()), -1), outputs, torch.randint(6, (3, 4)))


@pytest.mark.parametrize(
    ("targets", "options", "text"),
    [
        (None, {}, r"on outputs of shape \(n, 5, 7\) without targets: which axis runs over the classes cannot be told"),
        (LABELS[:, :4], {}, r"with targets of shape \(6, 4\): which axis runs over the classes cannot be told"),
        (LABELS, {"class_axis": 0}, "class_axis=0: the outputs have the shape"),
        (LABELS, {"class_axis": 3}, "class_axis=3: the outputs have the shape"),
        (LABELS, {"class_axis": True}, "class_axis=True: expected a number; class_axis=-1"),
        (LABELS, {"class_axis": -1, "loss": nn.MSELoss()}, "MSELoss has no classes"),
    ],
)
def test_what_is_refused(targets: Tensor | None, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ms.LossError, match=text):
        ms.hessian_trace(language(), (TOKENS, targets), **options)


def test_two_axes_that_would_do() -> None:
    model, tokens = language(), TOKENS.repeat(1, 2)[:, :7]  # as many positions as classes
    labels = LABELS.repeat(1, 2)[:, :7]
    with pytest.raises(ms.LossError, match=r"the classes may be on axis 1 or on the last axis\. Say it: class_axis=-1"):
        ms.hessian_trace(model, (tokens, labels))
    expected = ms.hessian_trace(language(True), (tokens, labels), class_axis=1).total
    assert ms.hessian_trace(model, (tokens, labels), class_axis=-1).total == pytest.approx(expected, rel=1e-12)


def test_probabilities_tell_by_their_sums() -> None:
    """Targets of the outputs' own shape (n, T, V): the classes are on the axis along which they sum to one."""
    chances = torch.rand(6, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(-1)
    expected = ms.hessian_trace(language(True), (TOKENS, chances.mT), class_axis=1).total
    for criterion in (None, nn.CrossEntropyLoss()):
        for moved, targets in ((False, chances), (True, chances.mT)):
            found = ms.hessian_trace(language(moved), (TOKENS, targets), criterion).total
            assert found == pytest.approx(expected, rel=1e-12)
    coarse = ms.hessian_trace(language(), (TOKENS, chances.bfloat16().double())).total
    assert coarse == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("targets", [torch.rand(6, 5, 7), torch.full((6, 7, 7), 1 / 7), torch.ones(6, 5, 7) / 7 * 1.1])
def test_targets_that_are_no_probabilities_of_one_axis(targets: Tensor) -> None:
    tokens = TOKENS.repeat(1, 2)[:, : targets.shape[1]]
    with pytest.raises(
        ms.LossError, match=r"cannot be told, they sum to one along none of the axes, or along several\. S"
    ):
        ms.hessian_trace(language(), (tokens, targets.double()))
    assert ms.hessian_trace(language(), (tokens, targets.double()), class_axis=-1).total > 0


def test_probabilities_where_only_one_axis_will_do() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 4)).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 2, 4, 4, dtype=torch.float64, generator=generator)
    chances = torch.rand(5, 3, 1, 1, dtype=torch.float64, generator=generator)
    flat = nn.Sequential(*model, nn.Flatten())
    expected = ms.hessian_trace(flat, (x, chances.flatten(1))).total
    assert ms.hessian_trace(model, (x, chances)).total == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(reduction="sum"), ms.losses.NextToken()])
def test_one_number_for_each_sample_has_no_classes(loss: Any) -> None:
    model, x = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), torch.randn(6, 4)
    for function in (ms.hessian_trace, ms.minimum_sharpness):
        with pytest.raises(ms.LossError, match=r"expects outputs \(n, classes\), got \(n,\).*nn\.BCEWithLog"):
            function(model, (x, torch.zeros(6).long()), loss)
    assert ms.hessian_trace(model, x, nn.BCEWithLogitsLoss()).total > 0
    assert ms.hessian_trace(model, x, curvature="jacobian").total >= 0
