"""The columns of a loss factor."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Columns:
    """The columns of S for one batch, made a few at a time: ``slice(start, stop) -> (n, stop - start, *output)``.

    ``rank`` is how many there are. Where all of them fit into memory, `Columns.of` takes them as they are.
    """

    rank: int
    slice: Callable[[int, int], Tensor]

    @staticmethod
    def of(S: Tensor) -> "Columns":
        """All columns at once, (n, rank, *output).

        >>> import torch
        >>> columns = Columns.of(torch.eye(3).expand(5, 3, 3))  # five samples, three outputs
        >>> columns.rank, tuple(columns.slice(1, 3).shape)
        (3, (5, 2, 3))
        """
        return Columns(S.shape[1], lambda start, stop: S[:, start:stop])
