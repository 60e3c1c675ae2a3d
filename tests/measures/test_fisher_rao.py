"""The Fisher-Rao norm against the dense form."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minsharp.measures.fisher_rao import _along_itself, fisher_rao_norm
from tests.support.dense import Dense, small
from tests.support.zoo import BY_NAME

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
