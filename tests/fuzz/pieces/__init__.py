"""All pieces that networks are made of."""

from . import (
    activations,
    convolutions,
    forbidden,
    inner,
    layers,
    merges,
    norms,
    odd,
    products,
    selection,
    sequences,
    shapes,
    spatial,
    structure,
)
from .registry import PIECES

__all__ = [
    "PIECES",
    "activations",
    "convolutions",
    "forbidden",
    "inner",
    "layers",
    "merges",
    "norms",
    "odd",
    "products",
    "selection",
    "sequences",
    "shapes",
    "spatial",
    "structure",
]
