"""What the draws of a random estimate tell about its error."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..rules.contraction import squares_of_columns
from .plan import Group
from .quantities import Measured, Place, Quantity


class Watched(Quantity[Any]):
    """A quantity, and beside it the squared gradients of each sample and column, parameter by parameter: (n, R)."""

    def __init__(self, inner: Quantity[Any]):
        self.inner = inner
        self.squares: dict[str, Tensor] = {}

    def zero(self, parameter: str, like: Tensor) -> Tensor:
        """That of the quantity."""
        return self.inner.zero(parameter, like)

    def of_gradients(self, parameter: str, gradients: Tensor) -> Tensor:
        """Squares of what is there anyway."""
        self.squares[parameter] = squares = squares_of_columns(gradients)
        made = self.inner.of_squares(squares)
        return self.inner.of_gradients(parameter, gradients) if made is None else made

    def contract(self, place: Place, G: Tensor) -> Tensor:
        """One contraction where squares are all that is asked for, else two."""
        self.squares[place.leaf.parameter] = squares = place.squares(G)
        made = self.inner.of_squares(squares)
        return self.inner.contract(place, G) if made is None else made

    def of_last_layer(self, D: Tensor, x: Tensor | None) -> Tensor | None:
        """That of the quantity: no draw takes part."""
        return self.inner.of_last_layer(D, x)

    def result(self, measured: Measured) -> Any:
        """That of the quantity."""
        return self.inner.result(measured)


@dataclass
class Spread:
    """The covariance of sums over samples, one for each of the parameters."""

    parameters: tuple[str, ...]
    matrix: Tensor

    @staticmethod
    def none(parameters: tuple[str, ...]) -> "Spread":
        """Of sums without an error."""
        return Spread(parameters, torch.zeros(len(parameters), len(parameters), dtype=torch.float64))

    @property
    def total(self) -> float:
        """The variance of the sum of all."""
        return max(float(self.matrix.sum()), 0.0)

    def add(self, squares: Mapping[str, Tensor], group: Group) -> None:
        """The draws of a group, (n, mixes) for each parameter, already divided by their number.

        Of m summands x_j / m the sum has the variance m s², s² their sample variance. A sample that was drawn twice
        with probability a stands for (1 - a) / a samples that were drawn once, with twice its variance each.
        """
        if not squares or (group.mixes < 2 and group.chance is None):
            return
        zero = torch.zeros_like(next(iter(squares.values())))
        draws = torch.stack([squares.get(name, zero) for name in self.parameters])  # (parameters, n, columns)
        if group.chance is not None:
            self._add_rows(_among(draws.sum(2), group.chance))
        if group.mixes > 1:
            apart = draws - draws.mean(2, keepdim=True)
            self._add_rows((apart * _weight(group, draws).sqrt().unsqueeze(1)).flatten(1))

    def _add_rows(self, rows: Tensor) -> None:
        self.matrix += rows @ rows.mT

    def __add__(self, other: "Spread") -> "Spread":
        return Spread(self.parameters, self.matrix + other.matrix)

    def times(self, factor: float) -> "Spread":
        """Of sums that are multiplied by the root of the factor."""
        return Spread(self.parameters, factor * self.matrix)


def _weight(group: Group, draws: Tensor) -> Tensor:
    """How much the squared differences between the draws of each sample count: (n,)."""
    weight = torch.full((draws.shape[1],), group.mixes / (group.mixes - 1), dtype=draws.dtype)
    if group.audit is not None:
        weight = weight * (1 + 2 * (1 - group.audit) / group.audit)
    return weight if group.chance is None else weight * group.chance


def _among(sums: Tensor, chance: Tensor) -> Tensor:
    """What samples that were drawn with these probabilities, and divided by them, add to the variance: (parameters, n).

    Hajek's estimate for a fixed number of samples: squared distances from their mean, weighted with 1 - q.
    """
    weight = 1 - chance
    part = weight / weight.sum()
    mean = (sums * part).sum(1, keepdim=True)
    return (sums - mean) * (weight / (1 - part.square().sum())).sqrt()
