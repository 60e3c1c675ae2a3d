"""How sharp is your minimum? Exact curvature of PyTorch networks, and the sharpness that no rescaling can fool."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import InputError, LossError, MinsharpError, NonFiniteError, NotExactError, ReadError
from .version import __version__ as __version__

if TYPE_CHECKING:  # loaded when they are first used: see __getattr__
    from .curvature.hessian import hessian_diagonal, hessian_trace
    from .curvature.results import Diagonal, Trace
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
    from .network.reader import Network, read
    from .network.rescale import rescale
    from .network.symmetry import Symmetries, symmetries
    from .report.html import write_report

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

_LATER = {
    "curvature.hessian": ("hessian_diagonal", "hessian_trace"),
    "curvature.results": ("Diagonal", "Trace"),
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
    "network.fold": ("fold_batchnorm",),
    "network.reader": ("Network", "read"),
    "network.rescale": ("rescale",),
    "network.symmetry": ("Symmetries", "symmetries"),
    "report.html": ("write_report",),
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing minsharp stays light."""
    for module, names in _LATER.items():
        if name in names:
            globals()[name] = getattr(import_module(f".{module}", __name__), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
