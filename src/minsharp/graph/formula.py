"""How one operation depends on its tensor arguments, written as a formula.

A formula is a sum of products over the operation's argument names:

    linear        input*weight + bias
    prelu         input + input*weight
    layer_norm    f(input)*weight + bias
    relu6         self + 1
    zeros_like    0
    einsum        prod(tensors)
    gt            step(self, other)

``f(...)`` is any nonlinear function, ``step(...)`` one that is piecewise constant, ``1`` a constant; a ``max``
over pieces is not written, because it changes neither reading: a piecewise-linear operation is as good as a
linear one. Where it is also positively homogeneous (relu, but not relu6) it stands without the ``+ 1``.

Two things are read off a formula. *Linearity*: the result is piecewise linear in a parameter that enters no
``f`` and at most one factor of each product. *Scale*: every product has the scale of the result, and each
argument of ``f`` and ``step``, which may be a product itself, has scale one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from .slots import Slot

Slots = tuple[Slot, ...]


@dataclass(frozen=True)
class Product:
    """One product of a formula."""

    linear: Slots
    constant: bool = False
    smooth: tuple[Slots, ...] = ()
    steps: tuple[Slots, ...] = ()

    @property
    def nonlinear(self) -> Slots:
        """The arguments inside ``f``."""
        return tuple(slot for group in self.smooth for slot in group)

    @property
    def step(self) -> Slots:
        """The arguments inside ``step``."""
        return tuple(slot for group in self.steps for slot in group)

    @property
    def slots(self) -> Slots:
        """Every argument that the product mentions."""
        return self.linear + self.nonlinear + self.step


@dataclass(frozen=True)
class Formula:
    """A sum of products of arguments."""

    products: tuple[Product, ...]

    @property
    def slots(self) -> frozenset[Slot]:
        """Every argument that the formula mentions."""
        return frozenset(slot for product in self.products for slot in product.slots)

    @property
    def flat(self) -> frozenset[Slot]:
        """The arguments that enter steps alone: no derivative passes."""
        steep = {slot for product in self.products for slot in product.linear + product.nonlinear}
        return self.slots - steep


Lists = tuple[tuple[str, int], ...]
"""The lists among the arguments of a call, and their lengths."""

_FACTOR = re.compile(r"\s*(?:(f|step|prod)\(([^()]*)\)|(\w+))\s*(\*|$)")
_SUM = re.compile(r"\s*sum\((\w+)\)\s*")


def _items(name: str, lengths: Mapping[str, int]) -> Slots:
    """All places of a list argument: tensors -> tensors[0], tensors[1], ..."""
    if name not in lengths:
        raise ValueError(f"{name} is not a list")
    return tuple(Slot(name, i) for i in range(lengths[name]))


def _product(text: str, lengths: Mapping[str, int]) -> Product:
    linear: list[Slot] = []
    constant = False
    opaque: dict[str, list[Slots]] = {"f": [], "step": []}
    if not text.strip() or text.rstrip().endswith("*"):
        raise ValueError(f"a term or a factor is missing in {text.strip()!r}")
    at = 0
    while at < len(text):
        match = _FACTOR.match(text, at)
        if match is None:
            raise ValueError(f"cannot read the factor {text[at:].strip()!r}")
        function, inside, name, _ = match.groups()
        if function == "prod":
            linear += _items(inside.strip(), lengths)
        elif function:
            groups = [tuple(Slot(part.strip()) for part in group.split("*")) for group in inside.split(",")]
            opaque[function] += groups
        elif name == "1":
            constant = True
        else:
            linear.append(Slot(name))
        at = match.end()
    return Product(tuple(linear), constant, tuple(opaque["f"]), tuple(opaque["step"]))


@cache
def parse(text: str, lists: Lists = ()) -> Formula:
    """Read a formula, for a call whose lists have these lengths.

    >>> [[str(slot) for slot in product.linear] for product in parse("input*weight + bias").products]
    [['input', 'weight'], ['bias']]
    >>> [[str(slot) for slot in group] for group in parse("f(query*key, mask)*value").products[0].smooth]
    [['query', 'key'], ['mask']]
    >>> [[str(slot) for slot in product.linear] for product in parse("sum(tensors)", (("tensors", 2),)).products]
    [['tensors[0]'], ['tensors[1]']]
    """
    products: list[Product] = []
    for part in text.split("+") if text != "0" else ():
        whole = _SUM.fullmatch(part)
        products += [Product((s,)) for s in _items(whole[1], dict(lists))] if whole else [_product(part, dict(lists))]
    return Formula(tuple(products))
