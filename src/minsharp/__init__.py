"""How sharp is your minimum? Exact curvature of PyTorch networks, and the sharpness that no rescaling can fool."""

from .curvature.hessian import hessian_diagonal, hessian_trace
from .curvature.results import Diagonal, Trace
from .errors import InputError, LossError, MinsharpError, NonFiniteError, NotExactError, ReadError
from .measures.minimum import MinimumSharpness, flattest, minimum_sharpness
from .measures.robustness import NoiseRobustness, noise_robustness
from .measures.verify import Verification, verify
from .network.reader import Network, read
from .network.rescale import fold_batchnorm, rescale
from .network.symmetry import Symmetries, symmetries

__version__ = "0.1.0"

__all__ = [
    "Diagonal",
    "InputError",
    "LossError",
    "MinimumSharpness",
    "MinsharpError",
    "Network",
    "NoiseRobustness",
    "NonFiniteError",
    "NotExactError",
    "ReadError",
    "Symmetries",
    "Trace",
    "Verification",
    "flattest",
    "fold_batchnorm",
    "hessian_diagonal",
    "hessian_trace",
    "minimum_sharpness",
    "noise_robustness",
    "read",
    "rescale",
    "symmetries",
    "verify",
]
