"""Examples of every operation in the table, by name: what the laws are checked on.

One file per family, the notation in `notation`. Nothing of this is imported by `import minsharp`.
"""

from . import convolution, elementwise, filled, linear, lookup, norms, pools, reductions, selection, shapes, smooth
from .notation import Example, Given, parse

EXAMPLES: dict[str, list[Example]] = {}
for _family in (linear, convolution, lookup, norms, elementwise, pools, shapes, selection, filled, reductions, smooth):
    EXAMPLES |= _family.EXAMPLES

__all__ = ["EXAMPLES", "Example", "Given", "parse"]
