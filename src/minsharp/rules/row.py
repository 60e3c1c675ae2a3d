"""What is known about one operation: a row of the table."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..graph.formula import Formula, parse
from ..graph.records import Operation
from .channels import Rule
from .contraction import Contraction
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
    compares: bool = False
    """The result tells only which argument is larger: it stays if both are scaled alike."""

    def formula_of(self, operation: Operation) -> Formula:
        """The formula with the lists of this very call written out: ``sum(tensors)`` as ``tensors[0] + ...``."""

        def items(match: re.Match[str]) -> str:
            kind, name = match.groups()
            count = len(operation.arguments[name])
            return {"sum": " + ", "prod": "*"}[kind].join(f"{name}[{i}]" for i in range(count))

        return parse(re.sub(r"\b(sum|prod)\((\w+)\)", items, self.formula))
