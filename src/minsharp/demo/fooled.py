"""The first story: rescaling moves the trace wherever one likes, and not minimum sharpness."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from ..curvature.hessian import hessian_diagonal
from ..measures.compare import Comparison, compare
from ..measures.minimum import MinimumSharpness, minimum_sharpness
from ..measures.robustness import NoiseRobustness, noise_robustness
from ..measures.verify import Verification, verify
from ..network.network import Network
from ..network.reader import read
from ..network.rescale import rescale
from ..network.symmetry import symmetries
from .networks import accuracy, drawn

if TYPE_CHECKING:
    from ..data.dataset import Dataset

ABSOLUTE = (0.0, 0.01, 0.02, 0.04, 0.08, 0.16)
RELATIVE = (0.0, 0.1, 0.2, 0.4, 0.8)
COMPARED = (
    *("training loss", "trace", "minimum sharpness", "minimum sharpness (neuron)", "normalized sharpness"),
    *("relative minimum sharpness", "relative sensitivity", "Fisher-Rao norm", "SAM", "ASAM"),
)
SPREAD = 10.0
"""The random rescaling multiplies weights by factors between 1/10 and 10."""
RESCALINGS = 5


@dataclass(frozen=True)
class Fooled:
    """A network, its rescaled forms, and what is known of them."""

    accuracy: float
    layer: MinimumSharpness
    neuron: MinimumSharpness
    rescaled: tuple[MinimumSharpness, ...]
    checked: Verification
    comparison: Comparison
    noisy: dict[str, list[NoiseRobustness]]


def fool(digits: "Dataset") -> Fooled:
    """Train the paper's network to a loss of 0.01, rescale it, measure all of them."""
    network = _trained(digits)
    group = symmetries(network, digits.train_x[:2])
    rescaled = [rescale(network, group.random(seed, SPREAD)) for seed in range(1, RESCALINGS + 1)]
    diagonal = hessian_diagonal(network, digits.train_x)
    layer, neuron = (minimum_sharpness(network, diagonal, scope=scope) for scope in ("layer", "neuron"))
    versions = {"as trained": network.module, "flattest": rescale(network, neuron.scales), "rescaled": rescaled[0]}
    some = (digits.train_x[:200], digits.train_y[:200])
    return Fooled(
        accuracy(network.module, digits.test_x, digits.test_y),
        layer,
        neuron,
        tuple(minimum_sharpness(module, digits.train_x) for module in rescaled),
        verify(network, digits.train_x, neuron),
        compare(network, some, measures=COMPARED, rescalings=3),
        {name: _noise(module, digits) for name, module in versions.items()},
    )


def _trained(digits: "Dataset") -> Network:
    from ..experiments.training import Recipe, train_to_loss
    from ..models import digits_mlp

    model = drawn(digits_mlp, 0)
    recipe = Recipe(lr=0.02, epochs=0, limit=300, target=0.01, batch=16)
    train_to_loss(model, digits.train_x, digits.train_y, recipe, seed=0)
    return read(model.eval(), digits.train_x)


def _noise(model: nn.Module, digits: "Dataset") -> list[NoiseRobustness]:
    data = (digits.test_x, digits.test_y)
    return [
        noise_robustness(model, data, sigmas=ABSOLUTE, noise="absolute", trials=20),
        noise_robustness(model, data, sigmas=RELATIVE, noise="relative", trials=20),
    ]
