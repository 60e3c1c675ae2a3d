"""How one operation depends on its tensor arguments, written as a formula.

A formula is a sum of products over the operation's argument names:

    linear        input*weight + bias
    prelu         input + input*weight
    layer_norm    f(input)*weight + bias
    relu6         self + 1
    zeros_like    0
    gt            step(self, other)

``f(...)`` is any nonlinear function, ``step(...)`` one that is piecewise constant, ``1`` a constant; a ``max``
over pieces is not written, because it changes neither reading: a piecewise-linear operation is as good as a
linear one. Where it is also positively homogeneous (relu, but not relu6) it stands without the ``+ 1``.

Two things are read off a formula. *Linearity*: the result is piecewise linear in a parameter that enters no
``f`` and at most one factor of each product. *Scale*: every product has the scale of the result, and each
argument of ``f`` and ``step``, which may be a product itself, has scale one.
"""

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Product:
    """One product of a formula."""

    linear: tuple[str, ...]
    constant: bool = False
    smooth: tuple[tuple[str, ...], ...] = ()
    steps: tuple[tuple[str, ...], ...] = ()

    @property
    def nonlinear(self) -> tuple[str, ...]:
        """The arguments inside ``f``."""
        return tuple(name for group in self.smooth for name in group)

    @property
    def step(self) -> tuple[str, ...]:
        """The arguments inside ``step``."""
        return tuple(name for group in self.steps for name in group)

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

    @property
    def flat(self) -> frozenset[str]:
        """The arguments that enter steps alone: no derivative passes."""
        steep = {name for product in self.products for name in product.linear + product.nonlinear}
        return self.names - steep


_NAME = r"\w+(?:\[\d+\])?"
_FACTOR = re.compile(rf"\s*(?:(f|step)\(([^()]*)\)|({_NAME}))\s*(\*|$)")


def _group(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split("*"))


def _product(text: str) -> Product:
    linear: list[str] = []
    constant = False
    opaque: dict[str, list[tuple[str, ...]]] = {"f": [], "step": []}
    if not text.strip() or text.rstrip().endswith("*"):
        raise ValueError(f"a term or a factor is missing in {text.strip()!r}")
    at = 0
    while at < len(text):
        match = _FACTOR.match(text, at)
        if match is None:
            raise ValueError(f"cannot read the factor {text[at:].strip()!r}")
        function, inside, name, _ = match.groups()
        if function:
            opaque[function] += [_group(part) for part in inside.split(",")]
        elif name == "1":
            constant = True
        else:
            linear.append(name)
        at = match.end()
    return Product(tuple(linear), constant, tuple(opaque["f"]), tuple(opaque["step"]))


@cache
def parse(text: str) -> Formula:
    """Read a formula.

    >>> [product.linear for product in parse("input*weight + bias").products]
    [('input', 'weight'), ('bias',)]
    >>> parse("f(query*key, mask)*value").products[0].smooth
    (('query', 'key'), ('mask',))
    """
    return Formula(tuple(_product(part) for part in text.split("+")) if text != "0" else ())
