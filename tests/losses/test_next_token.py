"""Causal language models: the curvature is that of the loss which the model computes itself from unshifted labels."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minsharp as ms
from minsharp.laws import check_loss
from minsharp.losses import NextToken
from minsharp.losses.axis import OnAxis

V, T = 7, 5


class Causal(nn.Module):
    """A causal language model of the usual convention: given labels, it shifts them by one and returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(V, 4), nn.Linear(4, 4), nn.Linear(4, V)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        x = self.embed(input_ids)  # (n, T, 4)
        if attention_mask is not None:
            x = x * attention_mask.unsqueeze(-1)
        logits = self.head(torch.relu(self.mix(x.cumsum(1))))  # each position sees those before it
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return {"loss": loss, "logits": logits}


def causal() -> Causal:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Causal().double()


def collated() -> dict[str, Any]:
    """Rows of different lengths, padded: as a collator hands them over."""
    ids = torch.randint(V, (6, T), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(T) < torch.tensor([5, 3, 4, 5, 2, 1]).view(-1, 1)).long()  # the last row predicts nothing
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def own_loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    loss: Tensor = model(**batch)["loss"]
    return loss.detach()


def dense_diagonal(model: nn.Module, batch: dict[str, Any], name: str) -> Tensor:
    """The diagonal of the Hessian of the model's own loss, by autograd."""
    parameter = dict(model.named_parameters())[name]

    def loss(flat: Tensor) -> Tensor:
        returned = torch.func.functional_call(model, {name: flat.view_as(parameter)}, (), batch)
        own: Tensor = returned["loss"]
        return own

    hessian: Tensor = torch.autograd.functional.hessian(loss, parameter.detach().flatten())
    return hessian.diagonal().view_as(parameter)


def test_the_curvature_is_that_of_the_models_own_loss() -> None:
    model, batch = causal(), collated()
    found = ms.hessian_diagonal(model, batch, NextToken())
    for name, diagonal in found.by_parameter.items():
        assert torch.allclose(diagonal, dense_diagonal(model, batch, name), rtol=1e-9, atol=1e-12), name
    assert ms.measures.training_loss(model, batch, NextToken()).value == pytest.approx(float(own_loss(model, batch)))


def test_it_is_not_what_unshifted_labels_give() -> None:
    model, batch = causal(), collated()
    shifted, plain = (ms.hessian_trace(model, batch, loss).total for loss in (NextToken(), nn.CrossEntropyLoss()))
    assert abs(shifted - plain) > 1e-3 * plain


def test_in_batches_of_any_size() -> None:
    model, batch = causal(), collated()
    parts = [{name: t[i : i + 4] for name, t in batch.items()} for i in (0, 4)]
    whole, apart = (ms.hessian_trace(model, data, NextToken()).total for data in (batch, parts))
    assert apart == pytest.approx(whole, rel=1e-12)


def test_every_measure_takes_it() -> None:
    model, batch = causal(), collated()
    result = ms.minimum_sharpness(model, batch, NextToken())
    assert ms.verify(model, batch, result, NextToken()).holds
    assert ms.hessian_trace(model, batch, NextToken(), class_axis=-1).total == pytest.approx(result.trace, rel=1e-12)


def test_accuracy_counts_the_tokens_that_are_predicted() -> None:
    model, batch = causal(), collated()
    logits, labels = model(**batch)["logits"][:, :-1], batch["labels"][:, 1:]
    counts = labels != -100
    expected = float(((logits.argmax(-1) == labels) & counts).sum() / counts.sum())
    found = ms.noise_robustness(model, batch, NextToken(), sigmas=[0.0], trials=2).levels[0].accuracy
    assert found is not None
    assert found.mean == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "criterion",
    [None, nn.CrossEntropyLoss(reduction="sum", label_smoothing=0.1), nn.CrossEntropyLoss(torch.arange(1.0, V + 1))],
)
def test_the_laws_hold(criterion: Any) -> None:
    outputs = torch.randn(3, T, V, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = collated()["labels"][:3]
    assert check_loss(NextToken(criterion), outputs.mT.contiguous(), labels) == []
    assert check_loss(OnAxis(NextToken(criterion), -1), outputs, labels) == []


BAD: list[tuple[Any, str]] = [
    (None, r"NextToken\(\).* needs the labels, -100 where nothing is to be predicted"),
    (collated()["labels"][:, 1:], "cannot be told"),
    (collated()["labels"].double(), r"expects labels \(n, positions\), whole numbers"),
    (torch.full((6, T), V), f"target {V} is not a class"),
]


@pytest.mark.parametrize(("labels", "text"), BAD)
def test_what_is_refused(labels: Any, text: str) -> None:
    axis = None if labels is not None and labels.shape[1] < T else -1
    with pytest.raises(ms.LossError, match=text):
        ms.hessian_trace(causal(), (collated()["input_ids"], labels), NextToken(), class_axis=axis)


def test_labels_that_are_shifted_already() -> None:
    with pytest.raises(
        ms.LossError, match=r"label for each of 5 positions, unshifted, got \(6, 4\) torch.int64; labels"
    ):
        NextToken().check(torch.zeros(6, V, T), collated()["labels"][:, 1:])
    with pytest.raises(ms.LossError, match=r"logits \(n, classes, positions\) of two positions or more"):
        NextToken().check(torch.zeros(6, V), collated()["labels"])


@pytest.mark.parametrize("criterion", [nn.MSELoss(), NextToken()])
def test_only_of_cross_entropy(criterion: Any) -> None:
    with pytest.raises(ms.LossError, match=r"NextToken takes an nn\.CrossEntropyLoss"):
        NextToken(criterion)


def test_labels_that_are_the_tokens_are_told() -> None:
    """Labels of a causal language model go with a loss that shifts them; without a loss they are taken as they are."""
    model, batch = causal(), collated()
    told = r"a causal language model .*loss=minsharp\.losses\.NextToken\(\).*loss=nn\.CrossEntropyLoss\(\)"
    with pytest.warns(ms.errors.MinsharpWarning, match="(?i)" + told):
        unnamed = ms.hessian_trace(model, batch)
    with pytest.warns(ms.errors.MinsharpWarning, match="(?i)" + told):
        ms.measures.training_loss(model, batch)
    assert ms.hessian_trace(model, batch, nn.CrossEntropyLoss()).total == unnamed.total  # as they are, and not a word
    assert ms.hessian_trace(model, batch, NextToken()).total != unnamed.total


@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor([[1, 2, 3], [3, 1, 2]]),  # shifted, as it were
        torch.tensor([[-100, -100, 0], [-100, -100, -100]]),  # one label that happens to be its token
        torch.zeros(2, 3, dtype=torch.int64),
    ],
)
def test_other_labels_are_taken_without_a_word(labels: Tensor) -> None:
    ids = torch.zeros(2, 3, dtype=torch.int64) if not labels.any() else torch.tensor([[0, 1, 0], [2, 3, 1]])
    ms.hessian_trace(causal(), {"input_ids": ids, "labels": labels})
