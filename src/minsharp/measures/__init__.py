"""Measures of sharpness, one per file: our own, the rivals, and what compares them.

>>> import torch
>>> from minsharp import measures
>>> model = torch.nn.Linear(2, 2, bias=False)
>>> _ = torch.nn.init.zeros_(model.weight)
>>> measures.training_loss(model, (torch.ones(1, 2), torch.tensor([0])))
training_loss 0.693147 (samples 1)
"""

from .bits import BitAllocation, allocate_bits
from .compare import Comparison, compare
from .corruption import parameter_corruption
from .eigenvalue import largest_eigenvalue
from .fisher_rao import fisher_rao_norm
from .full import FullMinimumSharpness
from .geodesic import geodesic_sharpness
from .keskar import keskar_sharpness
from .margin import MarginSensitivity, margin_sensitivity
from .minimum import MinimumSharpness, flattest, minimum_sharpness
from .normalized import NormalizedSharpness, normalized_sharpness
from .normalized_logits import normalized_logits_sharpness
from .pacgen import pacgen
from .predicted import PredictedAccuracy, predicted_accuracy
from .pruning import pruning_masks
from .rangamani import rangamani_flatness
from .registry import measure
from .relative import RelativeMinimumSharpness, RelativeSensitivity, relative_minimum_sharpness, relative_sensitivity
from .relative_flatness import relative_flatness
from .robustness import NoiseRobustness, noise_robustness
from .sam import asam_sharpness, sam_sharpness
from .score import Score
from .training_loss import training_loss
from .verify import Verification, verify

__all__ = [
    "BitAllocation",
    "Comparison",
    "FullMinimumSharpness",
    "MarginSensitivity",
    "MinimumSharpness",
    "NoiseRobustness",
    "NormalizedSharpness",
    "PredictedAccuracy",
    "RelativeMinimumSharpness",
    "RelativeSensitivity",
    "Score",
    "Verification",
    "allocate_bits",
    "asam_sharpness",
    "compare",
    "fisher_rao_norm",
    "flattest",
    "geodesic_sharpness",
    "keskar_sharpness",
    "largest_eigenvalue",
    "margin_sensitivity",
    "measure",
    "minimum_sharpness",
    "noise_robustness",
    "normalized_logits_sharpness",
    "normalized_sharpness",
    "pacgen",
    "parameter_corruption",
    "predicted_accuracy",
    "pruning_masks",
    "rangamani_flatness",
    "relative_flatness",
    "relative_minimum_sharpness",
    "relative_sensitivity",
    "sam_sharpness",
    "training_loss",
    "verify",
]
