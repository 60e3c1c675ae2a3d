"""Random inputs of the shapes, types and sizes of the data."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..subject.batches import Batch
from ..subject.modes import seeded

FRESH = 8
"""Samples of a draw."""
SIZES = (1.0, 10.0, 100.0)
"""Of noise, relative to the data."""


def draws(like: Batch, seed: int) -> Iterator[Batch]:
    """Random inputs of the data's shapes: its entries in disorder, and noise of several sizes."""
    generator = seeded(seed)

    def drawn(draw: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(pytree.tree_map_only(Tensor, lambda t: draw(t.cpu()).to(t.device), like.inputs), None)

    yield drawn(lambda t: _shuffled(t, generator))
    for size in SIZES:
        yield drawn(lambda t, size=size: _noise(t, size, generator))  # type: ignore[misc]


def _shuffled(t: Tensor, generator: torch.Generator) -> Tensor:
    """Entries of a tensor, drawn at random: (FRESH, ...)."""
    chosen = torch.randint(max(t.numel(), 1), (FRESH, *t.shape[1:]), generator=generator)
    return t.flatten()[chosen] if t.numel() else t.new_zeros(chosen.shape)


def _noise(t: Tensor, size: float, generator: torch.Generator) -> Tensor:
    """Normal noise around the mean, as large as the data times a size; whole numbers between those that occur."""
    shape = (FRESH, *t.shape[1:])
    if not t.dtype.is_floating_point:
        return _shuffled(t, generator) if t.dtype == torch.bool else _whole(t, shape, generator)
    spread = float(t.std()) if t.numel() > 1 else 0.0
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (size * (float(t.mean()) + (spread or 1.0) * noise)).to(t.dtype)


def _whole(t: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    low, high = (int(t.min()), int(t.max())) if t.numel() else (0, 0)
    return torch.randint(low, high + 1, shape, generator=generator).to(t.dtype)
