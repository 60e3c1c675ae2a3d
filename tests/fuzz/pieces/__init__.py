"""All pieces that networks are made of."""

from . import activations, forbidden, layers, merges, norms, selection, sequences, shapes, spatial, structure
from .registry import PIECES

__all__ = [
    "PIECES",
    "activations",
    "forbidden",
    "layers",
    "merges",
    "norms",
    "selection",
    "sequences",
    "shapes",
    "spatial",
    "structure",
]
