"""The training loss is the criterion, however the data is cut."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minsharp.measures.training_loss import training_loss
from tests.support.dense import small


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
