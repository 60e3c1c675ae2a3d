"""How sharp is your minimum? Exact curvature of PyTorch networks, and the sharpness that no rescaling can fool."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import InputError, LossError, MinsharpError, NonFiniteError, NotExactError, ReadError

if TYPE_CHECKING:  # loaded when they are first used: see __getattr__
    from . import laws as laws
    from . import losses as losses
    from .curvature.hessian import hessian_diagonal, hessian_trace
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
    from .network.fold import fold_batchnorm
    from .network.network import Network
    from .network.reader import read
    from .network.rescale import rescale
    from .network.symmetry import Symmetries, symmetries
    from .operations.teach import operation
    from .report.html import write_report
    from .results.curvature import Diagonal, Trace

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
    "operation",
    "read",
    "relative_minimum_sharpness",
    "relative_sensitivity",
    "rescale",
    "symmetries",
    "verify",
    "write_report",
]

_LATER = {
    "curvature.hessian": ("hessian_diagonal", "hessian_trace"),
    "results.curvature": ("Diagonal", "Trace"),
    "measures.compare": ("Comparison", "compare"),
    "measures.minimum": ("MinimumSharpness", "flattest", "minimum_sharpness"),
    "measures.normalized": ("NormalizedSharpness", "normalized_sharpness"),
    "measures.registry": ("measure",),
    "measures.relative": (
        "RelativeMinimumSharpness",
        "RelativeSensitivity",
        "relative_minimum_sharpness",
        "relative_sensitivity",
    ),
    "measures.robustness": ("NoiseRobustness", "noise_robustness"),
    "measures.score": ("Score",),
    "measures.verify": ("Verification", "verify"),
    "operations.teach": ("operation",),
    "network.fold": ("fold_batchnorm",),
    "network.network": ("Network",),
    "network.reader": ("read",),
    "network.rescale": ("rescale",),
    "network.symmetry": ("Symmetries", "symmetries"),
    "report.html": ("write_report",),
}
_ROOMS = ("laws", "losses")
"""Modules that are public as a whole: ``minsharp.losses.Loss``."""


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing minsharp stays light."""
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    for module, names in _LATER.items():
        if name in names:
            globals()[name] = getattr(import_module(f".{module}", __name__), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
