"""Where the Hessian trace is exact: which parameters the outputs are piecewise linear in.

If the outputs o are piecewise linear in a parameter P alone, then d²o/dP² = 0 almost everywhere, and the block
of P on the diagonal of the Hessian is that of the Gauss-Newton matrix, J_P^T (d²loss/do²) J_P.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from ..graph.formula import Product
from ..graph.records import Graph, Operation
from ..graph.slots import Slot
from ..operations import TABLE, passing, row


@dataclass(frozen=True)
class Exactness:
    """Whether the outputs are piecewise linear in one parameter, and if not, which operation is to blame."""

    exact: bool
    blame: Operation | None = None

    def __bool__(self) -> bool:
        return self.exact


Dependence = Mapping[str, Operation | None]
"""The parameters a value depends on, each with the first operation that is not linear in it, if any."""


def _nonlinear_in(product: Product, depends: Mapping[Slot, set[str]]) -> set[str]:
    """The parameters in which this product of arguments is not piecewise linear."""
    bent = {p for slot in product.nonlinear for p in depends.get(slot, ())}
    seen: set[str] = set()
    for slot in product.linear:
        bent |= seen & depends.get(slot, set())
        seen |= depends.get(slot, set())
    return bent


def _through(operation: Operation, known: Mapping[str, Dependence]) -> Dependence:
    """What the outputs of one operation depend on; what is detached has no derivative in anything."""
    formula = row(operation).formula_of(operation)
    if not formula.products:
        return {}
    depends: dict[Slot, set[str]] = {}
    blame: dict[str, Operation | None] = {}
    for slot, value in passing(operation):
        for parameter, culprit in known.get(value, {}).items():
            depends.setdefault(slot, set()).add(parameter)
            blame[parameter] = blame.get(parameter) or culprit
    bent = {p for product in formula.products for p in _nonlinear_in(product, depends)}
    bent |= {p for slot, ps in depends.items() if slot not in formula.slots for p in ps}
    return {p: culprit or (operation if p in bent else None) for p, culprit in blame.items()}


_known: WeakKeyDictionary[Graph, tuple[int, dict[str, Exactness]]] = WeakKeyDictionary()
"""With the edition of the table that it holds for."""


def exactness(graph: Graph) -> dict[str, Exactness]:
    """For each parameter of the graph, whether its block of the Hessian is exact; remembered while the table stands."""
    edition, found = _known.get(graph, (-1, {}))
    if edition != TABLE.edition:
        _known[graph] = TABLE.edition, (found := _exactness(graph))
    return found


def _exactness(graph: Graph) -> dict[str, Exactness]:
    known: dict[str, Dependence] = {name: {name: None} for name in graph.parameters}
    for operation in graph.operations:
        depends = _through(operation, known)
        for output in operation.outputs:
            if output in graph.values and graph.values[output].dtype.is_floating_point:
                known[output] = depends
    logits = known.get(graph.output, {})
    return {name: Exactness(logits.get(name) is None, logits.get(name)) for name in graph.parameters}
