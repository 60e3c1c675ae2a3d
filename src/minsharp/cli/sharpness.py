"""What the commands say of a minimum sharpness, and of its verification."""

from typing import Any

from torch import Tensor

from ..measures.minimum import MinimumSharpness
from ..measures.verify import Verification
from ..network.symmetry import Transformation
from ..text import magnitude
from ..text.terminal import rich_table
from .output import console


def summary(result: MinimumSharpness) -> dict[str, Any]:
    """A result for JSON: of a factor per neuron, the range; of matrices, their sizes."""
    change = result.scales
    scales = {name: _range(factor) for name, factor in change.items()}
    plain = {name: getattr(result, name) for name in ("value", "lower_bound", "trace", "status", "attained", "scope")}
    plain |= {"standard_error": result.standard_error} if result.standard_error else {}
    told = {**plain, "by_parameter": result.by_parameter, "scales": scales, "pinned": result.pinned}
    if isinstance(change, Transformation):
        sizes = [{"name": f.name, "size": f.size, "parameters": f.parameters} for f in change.frames]
        told |= {"frames": sizes, "condition": change.condition}
    return told


def _range(factor: float | Tensor) -> float | dict[str, float]:
    if isinstance(factor, Tensor):
        return {"least": float(factor.min()), "largest": float(factor.max())}
    return float(factor)


def print_checks(checks: dict[str, Verification]) -> None:
    """Verifications as tables."""
    for name, verification in checks.items():
        rows = [
            [c.claim, magnitude(c.error), magnitude(c.allowed), "holds" if c.holds else "FAILS"]
            for c in verification.checks
        ]
        console().print(rich_table(f"Verification, scope {name}", ["claim", "error", "allowed", "verdict"], rows))
