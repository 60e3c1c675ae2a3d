"""Calls that write in place, replaced by those that return the result: where nobody else looks at the memory.

torch.export can do so for every program, by tracing it once more, which takes longer than the first time. The usual
case, an activation or a sum in place on what the layer before has made, is a matter of renaming.
"""

from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from ..operations import TABLE
from ..rules.apart import by_entry
from ..subject.nodes import mutates

_SIZE = 101
"""Stands for a size that is free; for the next one the next number."""


def replace_writes(program: ExportedProgram) -> None:
    """Rename ``relu_(x)`` to ``relu(x)`` and the like, and let what comes after look at the result.

    That is the same unless a view of the memory that was taken before is looked at afterwards, or the memory is that of
    a parameter, a buffer or an input. Such calls are left as they are.
    """
    nodes = list(program.graph.nodes)
    places = {node: i for i, node in enumerate(nodes)}
    sharing: dict[int, list[Node]] = {}
    for node in nodes:
        for memory in _memories(node):
            sharing.setdefault(memory, []).append(node)
    for node in nodes:
        if not mutates(node) or not _is_private(node, sharing, places):
            continue
        fresh = _replaced(program, node, places)
        if fresh is not None:
            for memory in _memories(fresh):
                sharing[memory].append(fresh)


def _memories(node: Node) -> set[int]:
    """What tells the memory of a node's tensors from that of others."""
    made = node.meta.get("val")
    tensors = [t for t in (made if isinstance(made, tuple | list) else (made,)) if isinstance(t, Tensor)]
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def _is_private(node: Node, sharing: dict[int, list[Node]], places: dict[Node, int]) -> bool:
    """Whether a call writes into a tensor that no other value shares, as far as anything looks at it afterwards."""
    written: Any = node.args[0] if node.args else None
    if not isinstance(written, Node) or written not in places or _memories(written) != _memories(node):
        return False
    (memory,) = _memories(node) or {0}
    before = [other for other in sharing.get(memory, []) if places[other] < places[node]]
    if not memory or any(other.op != "call_function" for other in before):
        return False
    return all(places[user] <= places[node] for other in before if other is not written for user in other.users)


def _replaced(program: ExportedProgram, node: Node, places: dict[Node, int]) -> Node | None:
    """The call that stands there now, if one that returns the result makes the same type and shape."""
    target = _returning(node)
    if target is None or not _is_alike(target, node):
        return None
    written: Any = node.args[0]
    with program.graph.inserting_before(node):
        fresh = program.graph.call_function(target, node.args, node.kwargs)
    fresh.meta = dict(node.meta)  # its memory counts as the one that was written: it is all that is looked at from here
    places[fresh] = places[node]
    for user in [user for user in written.users if places[user] > places[node]]:
        user.replace_input_with(written, fresh)
    node.replace_all_uses_with(fresh)
    program.graph.erase_node(node)
    return fresh


def _returning(node: Node) -> Any:
    """The operation of the same name and arguments that writes nowhere; None if there is none."""
    target: Any = node.target
    packet = getattr(torch.ops.aten, target._opname.removesuffix("_"), None)
    if target.namespace != "aten" or not target._opname.endswith("_") or packet is None:
        return None
    other = getattr(packet, target._overloadname, None)
    if other is None or other._schema.is_mutable:
        return None
    names = [[(a.name, str(a.type), a.kwarg_only) for a in op._schema.arguments] for op in (target, other)]
    writes = [a for a in target._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return other if names[0] == names[1] and writes == [target._schema.arguments[0]] else None


def _is_alike(target: Any, node: Node) -> bool:
    """Whether another operation makes a tensor of the type and shape of what is written, tried without values."""
    if _is_entry_by_entry(target, node):
        return True
    sizes: dict[Any, int] = {}
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda given: _settled(given.meta.get("val"), sizes))
    expected = _settled(node.meta["val"], sizes)
    try:
        with torch.no_grad():
            made = target(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError):  # sizes that it takes for different are the same
        return False
    return isinstance(made, Tensor) and made.dtype == expected.dtype and made.shape == expected.shape


def _is_entry_by_entry(target: Any, node: Node) -> bool:
    """Whether it is known to make one number of each of tensors of one type and shape."""
    known = TABLE.get(target._opname)
    made: list[Any] = [other.meta.get("val") for other in node.all_input_nodes]
    given = [tensor for tensor in made if isinstance(tensor, Tensor)]
    if known is None or known.apart is not by_entry or known.compares or len(given) < len(made):
        return False
    kinds = {(t.dtype, tuple(map(_expression, t.shape))) for t in given}
    return len(kinds) == 1 and given[0].dtype.is_floating_point


def _expression(size: Any) -> Any:
    return size if isinstance(size, int) else size.node.expr


def _settled(value: Any, sizes: dict[Any, int]) -> Any:
    """A tensor without values, or a number, at sizes of their own for what is not a number yet; nothing is traced."""
    if isinstance(value, Tensor):
        shape = [_settled(size, sizes) for size in value.shape]
        return torch.empty(shape, dtype=value.dtype, device="meta")
    if isinstance(value, tuple | list):
        return [_settled(item, sizes) for item in value]
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        expression: Any = value.node.expr
        known = {symbol: sizes.setdefault(symbol, _SIZE + len(sizes)) for symbol in expression.free_symbols}
        return known[expression] if expression in known else value.node.pytype(expression.subs(known))
    return value
