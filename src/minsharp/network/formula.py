"""How one operation depends on its tensor arguments, written as a formula.

A formula is a sum of products over the operation's argument names:

    linear        input*weight + bias
    prelu         input + input*weight
    layer_norm    f(input)*weight + bias
    relu6         self + 1
    gt            step(self, other)

``f(...)`` is any nonlinear function, ``step(...)`` one that is piecewise constant, ``1`` a constant; a ``max``
over pieces is not written, because it changes neither reading: a piecewise-linear operation is as good as a
linear one. Where it is also positively homogeneous (relu, but not relu6) it stands without the ``+ 1``.

Two things are read off a formula. *Linearity*: the result is piecewise linear in a parameter that enters no
``f`` and at most one factor of each product. *Scale*: every product has the scale of the result, and the
arguments of ``f`` and ``step`` have scale one.
"""

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Product:
    """One product of a formula."""

    linear: tuple[str, ...]
    nonlinear: tuple[str, ...] = ()
    step: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every argument that the product mentions."""
        return self.linear + self.nonlinear + self.step


@dataclass(frozen=True)
class Formula:
    """A sum of products of argument names."""

    products: tuple[Product, ...]

    @property
    def names(self) -> frozenset[str]:
        """Every argument that the formula mentions."""
        return frozenset(name for product in self.products for name in product.names)


def _product(text: str) -> Product:
    linear: list[str] = []
    opaque: dict[str, list[str]] = {"f": [], "step": []}
    for factor in text.split("*"):
        match = re.fullmatch(r"(?:(f|step)\(([\w, ]+)\)|(\w+(?:\[\d+\])?))", factor.strip())
        if match is None:
            raise ValueError(f"cannot read the factor {factor.strip()!r}")
        function, inside, name = match.groups()
        if function:
            opaque[function] += [part.strip() for part in inside.split(",")]
        elif name != "1":
            linear.append(name)
    return Product(tuple(linear), tuple(opaque["f"]), tuple(opaque["step"]))


@cache
def parse(text: str) -> Formula:
    """Read a formula.

    >>> [product.linear for product in parse("input*weight + bias").products]
    [('input', 'weight'), ('bias',)]
    >>> parse("f(query, key)*value").products[0].nonlinear
    ('query', 'key')
    """
    return Formula(tuple(_product(part) for part in text.split("+")))
