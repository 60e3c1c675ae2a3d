"""The third story: the same function, written so that rounding its weights costs less."""

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from torch import nn

from ..measures.minimum import flattest
from ..measures.robustness import noise_robustness
from ..network.fold import fold_batchnorm
from .networks import accuracy, convolutional, drawn, train

if TYPE_CHECKING:
    from ..data.dataset import Dataset

BITS = (8, 4, 3, 2)
NETWORKS = 3


@dataclass(frozen=True)
class Quantized:
    """Networks as trained and their flattest equivalents: mean accuracies, by the number of bits after rounding."""

    accuracy: float
    before: dict[int, float]
    after: dict[int, float]


def quantize(digits: "Dataset") -> Quantized:
    """Train networks, fold BatchNorm, flatten them for one scale per tensor, and round all of them to few bits."""
    trained = [
        fold_batchnorm(train(drawn(convolutional, seed), digits.train_x, digits.train_y, epochs=20, lr=0.003))
        for seed in range(NETWORKS)
    ]
    better = [flattest(model, digits.train_x, noise="max", curvature="margin") for model in trained]
    right = fmean(accuracy(model, digits.test_x, digits.test_y) for model in trained)
    return Quantized(right, _rounded(trained, digits), _rounded(better, digits))


def _rounded(models: list[nn.Module], digits: "Dataset") -> dict[int, float]:
    """The mean accuracy over the models for each number of bits."""
    test = (digits.test_x, digits.test_y)
    found = [noise_robustness(model, test, noise="max", bits=BITS).levels for model in models]
    return {
        bits: fmean(level.accuracy.mean for level in levels if level.accuracy is not None)
        for bits, levels in zip(BITS, zip(*found, strict=True), strict=True)
    }
