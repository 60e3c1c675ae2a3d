"""How sharp is your minimum? Exact curvature of PyTorch networks, and the sharpness that no rescaling can fool.

What a user calls is here. The rival measures are in `minsharp.measures`, losses of one's own in `minsharp.losses`, the
laws that operations and losses obey in `minsharp.laws`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    InputError,
    LossError,
    MinsharpError,
    NegativeError,
    NonFiniteError,
    NotExactError,
    RankError,
    ReadError,
)
from .version import __version__ as __version__

if TYPE_CHECKING:  # loaded when they are first used: see __getattr__
    from . import laws, losses, measures
    from .curvature.gram import hessian_grams
    from .curvature.hessian import hessian_diagonal, hessian_trace
    from .measures.bits import allocate_bits
    from .measures.compare import compare
    from .measures.load import load
    from .measures.margin import margin_sensitivity
    from .measures.minimum import flattest, minimum_sharpness
    from .measures.monitor import Monitor
    from .measures.predicted import predicted_accuracy
    from .measures.pruning import pruning_masks
    from .measures.registry import measure
    from .measures.relative import relative_minimum_sharpness, relative_sensitivity
    from .measures.robustness import noise_robustness
    from .measures.verify import verify
    from .network.fold import fold_batchnorm
    from .network.network import Network
    from .network.reader import read
    from .network.rescale import rescale
    from .network.symmetry import FullSymmetries, Symmetries, Transformation, symmetries
    from .operations.teach import operation
    from .report.html import write_report
    from .results.curvature import Diagonal, Trace
    from .results.gram import Grams
    from .results.reduce import all_reduce
    from .subject.shards import shard

__all__ = [
    "Diagonal",
    "FullSymmetries",
    "Grams",
    "InputError",
    "LossError",
    "MinsharpError",
    "Monitor",
    "NegativeError",
    "Network",
    "NonFiniteError",
    "NotExactError",
    "RankError",
    "ReadError",
    "Symmetries",
    "Trace",
    "Transformation",
    "all_reduce",
    "allocate_bits",
    "compare",
    "flattest",
    "fold_batchnorm",
    "hessian_diagonal",
    "hessian_grams",
    "hessian_trace",
    "laws",
    "load",
    "losses",
    "margin_sensitivity",
    "measure",
    "measures",
    "minimum_sharpness",
    "noise_robustness",
    "operation",
    "predicted_accuracy",
    "pruning_masks",
    "read",
    "relative_minimum_sharpness",
    "relative_sensitivity",
    "rescale",
    "shard",
    "symmetries",
    "verify",
    "write_report",
]

_PACKAGES = ("laws", "losses", "measures")
_LATER = {
    "curvature.gram": ("hessian_grams",),
    "curvature.hessian": ("hessian_diagonal", "hessian_trace"),
    "measures.bits": ("BitAllocation", "allocate_bits"),
    "measures.compare": ("Comparison", "compare"),
    "measures.full": ("FullMinimumSharpness",),
    "measures.load": ("load",),
    "measures.margin": ("MarginSensitivity", "margin_sensitivity"),
    "measures.minimum": ("MinimumSharpness", "flattest", "minimum_sharpness"),
    "measures.monitor": ("Monitor",),
    "measures.normalized": ("NormalizedSharpness", "normalized_sharpness"),
    "measures.predicted": ("PredictedAccuracy", "predicted_accuracy"),
    "measures.pruning": ("pruning_masks",),
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
    "network.symmetry": ("FullSymmetries", "Symmetries", "Transformation", "symmetries"),
    "report.html": ("write_report",),
    "results.curvature": ("Diagonal", "Trace"),
    "results.gram": ("Grams",),
    "results.reduce": ("all_reduce",),
    "subject.shards": ("shard",),
}
"""Where each name is defined. Of those in `measures` some are not in ``__all__``: they answer here as before."""


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: importing minsharp stays light."""
    if name in _PACKAGES:
        return import_module(f".{name}", __name__)
    for module, names in _LATER.items():
        if name in names:
            globals()[name] = getattr(import_module(f".{module}", __name__), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
