"""Losses with outputs and targets that fit: what the head of a network has to return."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Targets = Callable[[tuple[int, ...], torch.Generator], Tensor]


@dataclass(frozen=True)
class Loss:
    """A criterion as text, the criterion itself, how targets are drawn, and whether outputs are classes."""

    text: str
    criterion: Any
    targets: Targets
    classes: bool = False
    optional: bool = False  # the Hessian does not depend on the targets


def log_cosh(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).cosh().log().mean()


def squared_sum(outputs: Tensor, targets: Tensor) -> Tensor:
    """Convex, not a sum over entries; a mean over samples."""
    return (
        (outputs - targets).reshape(len(outputs), -1).sum(1) ** 2 + outputs.reshape(len(outputs), -1).square().sum(1)
    ).mean()


def softplus_margin(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.softplus(-outputs * targets).reshape(len(outputs), -1).sum(1).mean()


def _labels(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)


def _some_ignored(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    labels = _labels(shape, generator)
    ignored = torch.rand(labels.shape, generator=generator) < 0.3
    ignored.view(-1)[:1] = False
    return torch.where(ignored, -100, labels)


def _soft(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64).softmax(1)


def _unit(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def _real(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(2, shape, generator=generator).double() * 2 - 1


def _cross_entropy(rng: random.Random, K: int) -> Loss:
    weights = [round(rng.uniform(0.2, 2), 1) for _ in range(K)]
    options, targets, optional = rng.choice(
        [
            ("", _labels, True),
            ("", _labels, True),
            ("reduction='sum'", _labels, True),
            ("label_smoothing=0.2", _labels, True),
            (f"weight=torch.tensor({weights}, dtype=torch.float64)", _labels, False),
            (f"weight=torch.tensor({weights}, dtype=torch.float64), label_smoothing=0.1", _labels, False),
            ("", _some_ignored, False),
            ("reduction='sum'", _some_ignored, False),
            (f"weight=torch.tensor({weights}, dtype=torch.float64)", _some_ignored, False),
            ("label_smoothing=0.3", _some_ignored, False),
            ("", _soft, False),
            ("label_smoothing=0.1", _soft, False),
            (f"weight=torch.tensor({weights}, dtype=torch.float64)", _soft, False),
        ]
    )
    text = f"nn.CrossEntropyLoss({options})"
    return Loss(text, _made(text), targets, classes=True, optional=optional)


def _made(text: str) -> Any:
    return eval(text, {"nn": nn, "torch": torch})


def draw(rng: random.Random, K: int) -> Loss:
    """A loss: cross-entropy more often than not."""
    if rng.random() < 0.6:
        return _cross_entropy(rng, K)
    number = round(rng.uniform(0.3, 3), 1)
    text, targets, optional = rng.choice(
        [
            ("nn.MSELoss()", _real, True),
            ("nn.MSELoss(reduction='sum')", _real, True),
            ("nn.BCEWithLogitsLoss()", _unit, True),
            ("nn.BCEWithLogitsLoss(reduction='sum')", _unit, True),
            (f"nn.BCEWithLogitsLoss(pos_weight=torch.tensor({number}, dtype=torch.float64))", _unit, False),
            (f"nn.BCEWithLogitsLoss(weight=torch.tensor({number}, dtype=torch.float64))", _unit, True),
            ("nn.HuberLoss()", _real, False),
            (f"nn.HuberLoss(delta={number})", _real, False),
            (f"nn.SmoothL1Loss(beta={number}, reduction='sum')", _real, False),
            ("nn.SoftMarginLoss()", _signs, False),
            ("nn.PoissonNLLLoss()", _unit, False),
            ("log_cosh", _real, False),
            ("squared_sum", _real, False),
            ("softplus_margin", _signs, False),
        ]
    )
    own: dict[str, Any] = {"log_cosh": log_cosh, "squared_sum": squared_sum, "softplus_margin": softplus_margin}
    return Loss(text, own[text] if text in own else _made(text), targets, optional=optional)
