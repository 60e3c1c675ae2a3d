"""Distances between rows."""

from math import inf

import torch
from torch import Tensor

from ..rules.row import Row


def distances(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    """The p-norms of all differences of rows, (..., a, d) and (..., b, d) -> (..., a, b); flat where they are zero."""
    apart = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).abs()
    if p == 0:
        return (apart != 0).to(apart).sum(-1)
    if p == inf:
        return apart.amax(-1)
    if p == 1:
        return apart.sum(-1)
    sums = apart.pow(p).sum(-1)
    same = sums == 0
    roots: Tensor = sums.masked_fill(same, 1.0).pow(1 / p)
    return torch.where(same, 0.0, roots)


_distances = Row("f(x1, x2)", twice=distances)

ROWS: dict[str, Row] = {
    "cdist": _distances,
    "_cdist_forward": _distances,
}
