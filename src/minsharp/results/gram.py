"""Sums of g g^T of the gradients in each frame: what a minimum over matrices is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..frozen import held
from .curvature import Trace, _Curvature


@dataclass(frozen=True, repr=False, eq=False)
class Grams(_Curvature):
    """For each parameter, M = sum of g g^T, (h, h), of the gradients g (h, m) of all that a frame acts on in it.

    ``layout`` holds, parameter by parameter, the sizes of its matrices in the order of its frames' members; what lies
    in no frame has a trace.
    """

    layout: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def check_whole(self) -> None:
        """Numbers for all matrices of a parameter, and one more."""
        super().check_whole()
        for name, numbers in held(self.sum, "sums").items():
            if tuple(numbers.shape) != (sum(h * h for h in self.layout.get(name, ())) + 1,):
                raise ValueError(f"the matrices of {name!r} are not of the sizes that it says")

    def __add__(self, other: "Grams") -> "Grams":
        return replace(super().__add__(other), layout=self.layout)

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "frames": dict(self.layout)}

    def matrices(self, parameter: str) -> list[Tensor]:
        """The matrices of a parameter, (h, h) in float64."""
        numbers, found = held(self.sum, "sums")[parameter] / self._divisor, []
        for size in self.layout.get(parameter, ()):
            block, numbers = numbers[: size * size].view(size, size), numbers[size * size :]
            found.append((block + block.mT) / 2)
        return found

    def rest(self, parameter: str) -> float:
        """The trace of what lies in no frame."""
        return float(held(self.sum, "sums")[parameter].flatten()[-1]) / self._divisor

    @property
    def trace(self) -> Trace:
        """The traces that the matrices add up to."""
        whole = replace(self.sum, sums={name: self._whole(name) for name in held(self.sum, "sums")})
        return Trace(whole, self.kind, self.loss, self.mean, self.exact, self.graph, self.weights)

    def _whole(self, name: str) -> Tensor:
        numbers, total = held(self.sum, "sums")[name].flatten(), held(self.sum, "sums")[name].flatten()[-1].clone()
        for size in self.layout.get(name, ()):
            total += numbers[: size * size].view(size, size).trace()
            numbers = numbers[size * size :]
        return total

    @property
    def by_parameter(self) -> Mapping[str, float]:
        """Tr[H_P] for each parameter P."""
        return self.trace.by_parameter

    @property
    def _totals(self) -> Mapping[str, float]:
        return self.by_parameter

    @property
    def total(self) -> float:
        """Tr[H]."""
        return self.trace.total

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json."""
        matrices = {name: [matrix.tolist() for matrix in self.matrices(name)] for name in self.layout}
        return {"total": self.total, "by_parameter": dict(self.by_parameter), "matrices": matrices, **self._facts()}
