"""The second story: the Hessian trace of a transformer, with an error bar that the exact trace is held against."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..curvature.hessian import hessian_trace
from ..measures.full import FullMinimumSharpness
from ..measures.minimum import minimum_sharpness
from ..reference.estimators import Estimate, baseline_diagonal, hutchinson_trace
from ..results.curvature import Trace
from .networks import Reader, accuracy, drawn, train

if TYPE_CHECKING:
    from ..data.dataset import Dataset

TOLERANCE, PROBES = 0.01, 100


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


def estimate(digits: "Dataset") -> Transformer:
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
        baseline_diagonal(model, data).total,
        full,
    )
