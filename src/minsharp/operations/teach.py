"""Teaching the table an operation at run time."""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypedDict, TypeVar, Unpack, overload

import torch

from ..errors import InputError
from ..graph.formula import parse
from ..graph.records import table_name
from ..rules.channels import Rule
from ..rules.contraction import Contraction
from ..rules.pullback import Pullback
from ..rules.row import Row
from .table import BUILT_IN, TABLE

T = TypeVar("T")


class Rules(TypedDict, total=False):
    """What may be said of an operation beside its formula; `operation` explains it."""

    pull: Pullback
    contract: Mapping[str, Contraction]
    channels: Rule
    rearranges: bool
    detaches: bool
    ignores: tuple[str, ...]
    unless: str


class Taught:
    """A row that was taught: `forget` takes it back, as does the end of a ``with`` block."""

    def __init__(self, name: str, row: Row):
        self.name, self.row = name, row
        self._before = TABLE.get(name)
        TABLE[name] = row

    def forget(self) -> None:
        """Leave the table as it was before; nothing happens if the operation has been taught anew since."""
        if TABLE.get(self.name) is not self.row:
            return
        if self._before is None:
            del TABLE[self.name]
        else:
            TABLE[self.name] = self._before

    def __enter__(self) -> "Taught":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.forget()

    def __repr__(self) -> str:
        return f"Taught({self.name!r}, {self.row.formula!r})"


@overload
def operation(target: Any, formula: str, *, replace: bool = ..., **rules: Unpack[Rules]) -> Taught: ...


@overload
def operation(*, formula: str, replace: bool = ..., **rules: Unpack[Rules]) -> Callable[[T], T]: ...


def operation(target: Any = None, formula: str = "", *, replace: bool = False, **rules: Unpack[Rules]) -> Any:
    """Teach minsharp an operation: from then on it knows what the formula says, also of networks read before.

    Only the formula is required: from it follow which parameters are exact and which rescalings keep the function. It
    is taken at your word, so hold it to the laws: `minsharp.laws.check`. Returns a handle with ``forget()``, for a
    ``with`` block too; as a decorator, the operation itself.

    Args:
        target: what `torch.library.custom_op` made, one of ``torch.ops``, or its name, ``"library::name"``, with all
            its overloads. Without it, a decorator to put above ``torch.library.custom_op``.
        formula: how the result depends on the arguments, by their names in the schema. ``"x*weight + bias"`` is
            piecewise linear in each of the three; ``f(x)`` bends; ``step(x)`` is piecewise constant; ``1`` is a
            constant that does not scale along (relu6 is ``"x + 1"``); ``sum(tensors)`` is the sum over a list. An
            argument that it does not name counts as bent.
        replace: teach it even if minsharp knows the operation by itself.
        pull: how cotangents pass back, ``(operation, bound, wanted) -> (output, G -> cotangents by argument)``. Without
            it autograd does it.
        contract: by argument, how cotangents contract with a parameter there: a `minsharp.rules.Contraction`. Without
            it, autograd does it, sample by sample.
        channels: how scales pass through entry by entry, such as `minsharp.rules.entrywise`. Without it, all entries of
            a tensor are scaled alike.
        rearranges: the result holds the entries of its only tensor, each once.
        detaches: no derivative passes.
        ignores: arguments of which only shape, type or device is used.
        unless: an argument that, if it is given, changes the meaning: then nothing is known.

    >>> import torch, minsharp as ms
    >>> @ms.operation(formula="x*scale")
    ... @torch.library.custom_op("doctest::scaled_relu", mutates_args=())
    ... def scaled_relu(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    ...     return x.relu() * scale
    >>> with ms.operation("doctest::scaled_relu", "f(x)*scale") as other:
    ...     print(other)
    Taught('doctest::scaled_relu', 'f(x)*scale')
    """
    return _decorator(formula, replace, rules) if target is None else _teach(target, formula, replace, rules)


def _decorator(formula: str, replace: bool, rules: Rules) -> Callable[[T], T]:
    def decorate(found: T) -> T:
        _teach(found, formula, replace, rules)
        return found

    return decorate


def _teach(target: Any, formula: str, replace: bool, rules: Rules) -> Taught:
    name, schemas = _name_and_schemas(_packet_of(target))
    _check_rules(name, {a.name: str(a.type) for schema in schemas for a in schema.arguments}, formula, rules)
    if name in BUILT_IN and not replace:
        raise InputError(
            f"operation({name!r}, {formula!r}): minsharp knows {name} already, by the formula "
            f"{TABLE[name].formula!r}. To put another in its place: operation({name!r}, {formula!r}, replace=True)"
        )
    return Taught(name, Row(formula, **rules))


def named(target: Any) -> tuple[str, Callable[..., Any]]:
    """What the table calls an operation, given in any way, and what to call."""
    packet = _packet_of(target)
    return _name_and_schemas(packet)[0], packet


def _name_and_schemas(packet: Any) -> tuple[str, list[Any]]:
    overloads = [getattr(packet, overload) for overload in packet.overloads()]
    return table_name(overloads[0]), [overload._schema for overload in overloads]


def _packet_of(target: Any) -> Any:
    """An operation of torch with all its overloads, given in any way."""
    packet = target
    if isinstance(target, torch._library.custom_ops.CustomOpDef):
        packet = target._opoverload
    elif isinstance(target, str):
        packet = _packet_called(target)
    if isinstance(packet, torch._ops.OpOverload):
        packet = packet.overloadpacket
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        raise InputError(
            f"operation({target!r}): expected an operation as torch.library.custom_op returns it, one "
            'of torch.ops, or its name, as in operation("mylib::scaled_relu", "x*scale"). A plain Python function has '
            "no name in a network: make it an operation with torch.library.custom_op first"
        )
    return packet


def _packet_called(name: str) -> Any:
    """An operation by its name: ``library::name``; of torch's own the name will do."""
    library, _, rest = name.rpartition("::")
    try:
        return getattr(getattr(torch.ops, library or "aten"), rest.split(".")[0])
    except (AttributeError, RuntimeError):
        raise InputError(
            f"operation({name!r}): torch has no such operation. Define it first, or import the module that does; names "
            'are written "library::name", as in operation("mylib::scaled_relu", "x*scale")'
        ) from None


def _check_rules(name: str, arguments: Mapping[str, str], formula: str, rules: Rules) -> None:
    """Refuse rules about arguments, given with their types, that the operation does not have."""
    unknown = sorted(set(rules) - set(Rules.__annotations__))
    if unknown:
        raise InputError(f"operation({name!r}): no rule is called {unknown}; there are {list(Rules.__annotations__)}")
    lists = tuple((argument, 1) for argument, kind in arguments.items() if kind.startswith("List"))
    try:
        named = {slot.argument for slot in parse(formula, lists).slots}
    except (AttributeError, ValueError) as error:
        raise InputError(_wrong(name, arguments, f"cannot read the formula {formula!r}: {error}")) from None
    given: dict[str, Iterable[str]] = {f"the formula {formula!r}": named, "contract": rules.get("contract", {})}
    given |= {"ignores": rules.get("ignores", ()), "unless": [u] if (u := rules.get("unless")) else []}
    for what, names in given.items():
        strange = sorted(set(names) - set(arguments))
        if strange:
            raise InputError(_wrong(name, arguments, f"{what} names {', '.join(strange)}"))


def _wrong(name: str, arguments: Iterable[str], what: str) -> str:
    example = " + ".join([*arguments][:2]) or "0"
    return (
        f"operation({name!r}): {what}. Its arguments are {', '.join(arguments) or 'none'}; a formula is a sum of "
        f"products of those, of f(...), step(...) and 1, as in operation({name!r}, {example!r})"
    )
