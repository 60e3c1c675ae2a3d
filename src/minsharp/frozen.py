"""Results that cannot be changed: their mappings are dicts that refuse to."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor


def _refuse(self: object, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError("a result cannot be changed: take a copy of the mapping, dict(mapping)")


class FrozenDict(dict[str, Any]):
    """A dict that stays as it is. It prints, compares, pickles and goes into json like any other; a copy is plain.

    >>> FrozenDict(a=1)["a"] = 2
    Traceback (most recent call last):
    TypeError: a result cannot be changed: take a copy of the mapping, dict(mapping)
    """

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> "FrozenDict":
        return FrozenDict(deepcopy(dict(self), memo))


_FROZEN = {FrozenDict, float, int, bool, str, type(None), Tensor}


class Frozen:
    """What a frozen dataclass holds of mappings and lists becomes read-only as it is made."""

    def __post_init__(self) -> None:
        held = self.__dict__
        held.update({name: frozen(value) for name, value in held.items() if type(value) not in _FROZEN})

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and _same(self, other)

    def __hash__(self) -> int:
        return hash(repr(self))


def _same(a: Any, b: Any) -> bool:
    """Whether two things are equal, tensors entry by entry."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if is_dataclass(a) and type(a) is type(b):
        return all(_same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a) if f.compare)
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and list(a) == list(b) and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


class Handed:
    """A field that holds tensors, in a mapping or a tuple or not, and hands out copies: `held` is the way to them."""

    def __init__(self, default: Any = ...) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            if self._default is ...:
                raise AttributeError("a field without a default")
            return self._default
        return _copied(instance.__dict__[self._name])

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self._name] = frozen(value)


class Copied(Handed):
    """The same for a tensor that others may hold: it takes a copy, too."""

    def __set__(self, instance: Any, value: Tensor) -> None:
        instance.__dict__[self._name] = value.detach().clone()


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, tuple):
        return tuple(map(_copied, value))
    return FrozenDict({name: _copied(item) for name, item in value.items()}) if isinstance(value, Mapping) else value


def held(record: Any, name: str) -> Any:
    """What a field that hands out copies holds: to be read, never written."""
    return record.__dict__[f"_{name}"]


def frozen(value: Any) -> Any:
    """Mappings and lists as they cannot be changed, all the way down; anything else as it is."""
    if type(value) in _FROZEN or isinstance(value, Frozen):
        return value
    if isinstance(value, Mapping):
        return FrozenDict({name: frozen(item) for name, item in value.items()})
    if isinstance(value, list):
        return tuple(map(frozen, value))
    return value
