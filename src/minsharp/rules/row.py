"""What is known about one operation: a row of the table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..graph.formula import Formula, parse
from ..graph.records import Operation
from .apart import Apart
from .channels import Rule
from .contraction import Contraction
from .frames import FrameRule
from .narrowing import Narrowing
from .pullback import Pullback, by_autograd


@dataclass(frozen=True)
class Row:
    """What is known about one operation. ``rearranges``: the result holds the same entries, each once."""

    formula: str
    pull: Pullback = by_autograd
    contract: Mapping[str, Contraction] = field(default_factory=dict)
    channels: Rule | None = None
    rearranges: bool = False
    unless: str = ""
    """An argument that, if it is given, makes the row not apply."""
    otherwise: "Row | None" = None
    """What applies then; without it, nothing is known."""
    ignores: tuple[str, ...] = ()
    """Arguments of which only shape, type or device is used."""
    detaches: bool = False
    """No derivative passes."""
    in_order: bool = False
    """The same entries in the same order under another shape."""
    joins: bool = False
    """Tensors end to end along one axis."""
    copies: Literal["", "blocks", "entries"] = ""
    """The same entries several times: an axis as a whole again and again, or each of its entries in a row."""
    statistics: bool = False
    """Only the first result follows the formula; the others are made of what has scale one, and have it too."""
    target: Callable[..., Any] | None = None
    """What runs in place of torch's own operation, with the same arguments."""
    twice: Callable[..., Any] | None = None
    """The same of operations that torch differentiates twice, where it has no such derivative; same arguments."""
    frames: FrameRule | None = None
    """How frames pass; what only moves entries needs no rule."""
    narrows: Narrowing | None = None
    """How a part of the result along one axis is made of parts of what goes in."""
    apart: Apart | None = None
    """Whether a call treats samples one by one, from its record; without it, that is tried."""
    compares: bool = False
    """The result tells only which argument is larger: it stays if both are scaled alike."""

    def formula_of(self, operation: Operation) -> Formula:
        """The formula with the lists of this very call written out: ``sum(tensors)`` as ``tensors[0] + ...``."""
        if "(" not in self.formula:
            return parse(self.formula)
        lists = ((name, len(given)) for name, given in operation.arguments.items() if isinstance(given, tuple))
        return parse(self.formula, tuple(lists))
