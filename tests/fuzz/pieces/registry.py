"""Where the pieces are kept. Kinds: layer, linear (piecewise linear), bent (smooth), odd, forbidden."""

from collections.abc import Callable, Mapping

from ..draft import Draft, Piece

Make = Callable[[Draft], str]
PIECES: list[Piece] = []
EVERY = "2345"


def register(kind: str, ranks: str, makers: Mapping[str, Make]) -> None:
    """Add pieces that go on from a value with one of these numbers of axes."""
    PIECES.extend(Piece(name, kind, ranks, make) for name, make in makers.items())


def one(*templates: str) -> Make:
    """One of some expressions; {h} is the value, {c} a number, {d} an axis."""

    def make(d: Draft) -> str:
        template = d.pick(*templates)
        return str(template.format(h=d.h, c=d.number(), d=d.axis(), w=d.width, k=d.size(2, 4), i=d.rng.randint(0, 9)))

    return make
