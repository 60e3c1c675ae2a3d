"""What a rule about an operation is, and the rules that are always right.

A pullback (`Pullback`) says how cotangents pass back, a `Contraction` how they contract with a parameter, a rule for
channels (`Rule`) how scales pass through; a `Row` holds them together with the formula.
"""

from .channels import Rule, UnfitError, Walk, entrywise, moved, reduced
from .contraction import Contraction, Elementwise, Outer, PerSampleVJP, Use
from .pullback import Cotangents, Pull, Pullback, by_autograd, by_derivative, by_slope, stacked, unbroadcast
from .row import Row

__all__ = [
    "Contraction",
    "Cotangents",
    "Elementwise",
    "Outer",
    "PerSampleVJP",
    "Pull",
    "Pullback",
    "Row",
    "Rule",
    "UnfitError",
    "Use",
    "Walk",
    "by_autograd",
    "by_derivative",
    "by_slope",
    "entrywise",
    "moved",
    "reduced",
    "stacked",
    "unbroadcast",
]
