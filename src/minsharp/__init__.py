"""How sharp is your minimum? Exact curvature of PyTorch networks, and the sharpness that no rescaling can fool."""

from .curvature.hessian import hessian_diagonal, hessian_trace
from .curvature.results import Diagonal, Trace
from .errors import InputError, LossError, MinsharpError, NonFiniteError, NotExactError, ReadError
from .network.reader import Network, read

__version__ = "0.1.0"

__all__ = [
    "Diagonal",
    "InputError",
    "LossError",
    "MinsharpError",
    "Network",
    "NonFiniteError",
    "NotExactError",
    "ReadError",
    "Trace",
    "hessian_diagonal",
    "hessian_trace",
    "read",
]
