"""Sums over samples, which those of other samples can be added to."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..frozen import Frozen


@dataclass(frozen=True, eq=False)
class CurvatureSum(Frozen):
    """Sums over samples, not yet divided: those of two halves of the data add up to that of the whole.

    ``energy`` is the sum of the squared norms of the centred outputs, for ``curvature="jacobian"``.
    """

    sums: Mapping[str, Tensor]
    weight: float
    samples: int
    energy: float = 0.0

    def __add__(self, other: "CurvatureSum") -> "CurvatureSum":
        sums = {name: value + other.sums[name].to(value.device) for name, value in self.sums.items()}
        return CurvatureSum(sums, self.weight + other.weight, self.samples + other.samples, self.energy + other.energy)
