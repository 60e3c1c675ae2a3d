"""Sums over samples, which those of other samples can be added to."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..frozen import Frozen, Handed, held


@dataclass(frozen=True, eq=False)
class CurvatureSum(Frozen):
    """Sums over samples, not yet divided: those of two halves of the data add up to that of the whole.

    ``energy`` is the sum of the squared norms of the centred outputs, for ``curvature="jacobian"``. ``covariance``, in
    the order of the sums, is that of the parameters' traces where they are estimates; None where all are exact.
    """

    sums: Mapping[str, Tensor] = Handed()  # type: ignore[assignment]
    weight: float  # type: ignore[misc]  # what is before it has no default
    samples: int  # type: ignore[misc]
    energy: float = 0.0
    covariance: Tensor | None = Handed(None)  # type: ignore[assignment]  # noqa: RUF009

    @property
    def _spread(self) -> Tensor | None:
        return held(self, "covariance")

    def variance(self, weights: Mapping[str, float]) -> float:
        """The variance of a weighted sum of the parameters' traces."""
        if self._spread is None:
            return 0.0
        w = torch.tensor([weights.get(name, 0.0) for name in held(self, "sums")], dtype=torch.float64)
        return max(float(w @ self._spread @ w), 0.0)

    def __add__(self, other: "CurvatureSum") -> "CurvatureSum":
        sums = {name: value + held(other, "sums")[name].to(value.device) for name, value in held(self, "sums").items()}
        weight, samples, energy = self.weight + other.weight, self.samples + other.samples, self.energy + other.energy
        return CurvatureSum(sums, weight, samples, energy, self._joint(other))

    def _joint(self, other: "CurvatureSum") -> Tensor | None:
        """The covariance of the sums of both, which are independent."""
        if other._spread is None or self._spread is None:
            return self._spread if other._spread is None else other._in_order(self)
        return self._spread + other._in_order(self)

    def _in_order(self, like: "CurvatureSum") -> Tensor:
        """The covariance with the parameters in another's order."""
        assert self._spread is not None
        places = {name: i for i, name in enumerate(held(self, "sums"))}
        order = torch.tensor([places[name] for name in held(like, "sums")], dtype=torch.int64)
        return self._spread[order][:, order]
