"""The second story: the Hessian trace of a transformer, with an error bar that the exact trace is held against."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..curvature.hessian import hessian_trace
from ..measures.full import FullMinimumSharpness
from ..measures.minimum import minimum_sharpness
from ..reference.estimators import Estimate, baseline_diagonal, hutchinson_trace
from ..results.curvature import Trace
from .networks import Reader, accuracy, drawn, train
from .steps import Within

if TYPE_CHECKING:
    from ..data.dataset import Dataset

TOLERANCE, PROBES = 0.01, 100
BEFORE = 0.2
"""The share of the time that is gone when the exact trace begins, about."""


@dataclass(frozen=True)
class Transformer:
    """A transformer, its trace in three ways, and the least over all its equivalents."""

    accuracy: float
    weights: int
    samples: int
    trace: Trace
    hutchinson: Estimate
    exact: float
    full: FullMinimumSharpness


def estimate(digits: "Dataset", within: Within) -> Transformer:
    """Train it, estimate its trace, and have the exact one entry by entry."""
    data = (digits.train_x, digits.train_y)
    model = train(drawn(Reader, 0), *data, epochs=40, lr=0.01)
    full: Any = minimum_sharpness(model, data, scope="full", curvature="ggn")
    return Transformer(
        accuracy(model, digits.test_x, digits.test_y),
        sum(p.numel() for p in model.parameters()),
        len(digits.train_x),
        hessian_trace(model, data, tolerance=TOLERANCE),
        hutchinson_trace(model, data, probes=PROBES),
        _exact(model, data, within),
        full,
    )


def _exact(model: nn.Module, data: tuple[Tensor, Tensor], within: Within) -> float:
    """The trace of one parameter after the other, and how far that is: most of the time of the story."""
    weights, total, done = sum(p.numel() for p in model.parameters()), 0.0, 0
    for name, parameter in model.named_parameters():
        within(BEFORE + (1 - BEFORE) * done / weights)
        total += baseline_diagonal(model, data, parameters=name).total
        done += parameter.numel()
    return total
