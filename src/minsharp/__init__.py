"""How sharp is your minimum? Exact curvature of PyTorch networks, and the sharpness that no rescaling can fool."""

from .curvature.hessian import hessian_diagonal, hessian_trace
from .curvature.results import Diagonal, Trace
from .errors import InputError, LossError, MinsharpError, NonFiniteError, NotExactError, ReadError
from .measures.compare import Comparison, compare
from .measures.minimum import MinimumSharpness, flattest, minimum_sharpness
from .measures.normalized import NormalizedSharpness, normalized_sharpness
from .measures.registry import measure
from .measures.relative import (
    RelativeMinimumSharpness,
    RelativeSensitivity,
    relative_minimum_sharpness,
    relative_sensitivity,
)
from .measures.robustness import NoiseRobustness, noise_robustness
from .measures.score import Score
from .measures.verify import Verification, verify
from .network.reader import Network, read
from .network.rescale import fold_batchnorm, rescale
from .network.symmetry import Symmetries, symmetries
from .report.html import write_report

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Diagonal",
    "InputError",
    "LossError",
    "MinimumSharpness",
    "MinsharpError",
    "Network",
    "NoiseRobustness",
    "NonFiniteError",
    "NormalizedSharpness",
    "NotExactError",
    "ReadError",
    "RelativeMinimumSharpness",
    "RelativeSensitivity",
    "Score",
    "Symmetries",
    "Trace",
    "Verification",
    "compare",
    "flattest",
    "fold_batchnorm",
    "hessian_diagonal",
    "hessian_trace",
    "measure",
    "minimum_sharpness",
    "noise_robustness",
    "normalized_sharpness",
    "read",
    "relative_minimum_sharpness",
    "relative_sensitivity",
    "rescale",
    "symmetries",
    "verify",
    "write_report",
]
