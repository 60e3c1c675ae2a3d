"""Frozen records as plain documents and tensors, and back: field by field, by name, guided by the types of the fields.

A field that is added to a record goes in and comes back without a change here, as long as its type is one of these:
numbers, text, tensors, records, and tuples and mappings of them. A document without it is taken where it has a default.
Fields that do not count in a comparison (``compare=False``) are left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from math import isfinite, prod
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from ..solve.status import Status, StatusText

Keep = Callable[[str, Tensor], Any]
"""From the place of a tensor and the tensor to what stands for it in the document."""
Fetch = Callable[[Any], Tensor]
"""The way back."""

_TYPES = {
    str(t).removeprefix("torch."): t for t in (torch.float64, torch.float32, torch.int64, torch.int32, torch.bool)
}


def document_of(value: Any, keep: Keep, place: str = "") -> Any:
    """A value as JSON can say it; ``keep`` says what stands for its tensors."""
    if isinstance(value, Tensor):
        return keep(place, value.detach())
    if isinstance(value, StatusText):
        return {"text": str(value), "case": value.case.name}
    if is_dataclass(value):
        return {f.name: document_of(getattr(value, f.name), keep, _below(place, f.name)) for f in _saved(type(value))}
    if isinstance(value, Mapping):
        return {str(name): document_of(item, keep, _below(place, str(name))) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [document_of(item, keep, _below(place, str(i))) for i, item in enumerate(value)]
    if isinstance(value, float):
        return value if isfinite(value) else {"float": str(value)}
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"'{place}' is a {type(value).__name__}, which no file can hold")


def _below(place: str, name: str) -> str:
    return f"{place}/{name}" if place else name


def _saved(kind: Any) -> tuple[Field[Any], ...]:
    """The fields of a record that are part of it."""
    return tuple(f for f in fields(kind) if f.compare and f.init)


def value_of(hint: Any, document: Any, fetch: Fetch, place: str = "") -> Any:
    """A value of some type from its document; a ValueError names the place of what does not fit."""
    if hint is Tensor:
        return fetch(document)
    if hint is StatusText:
        return _status(document, place)
    if is_dataclass(hint):
        return _record(hint, document, fetch, place)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _alternative(get_args(hint), document, fetch, place)
    if origin is Literal:
        return _expected(document in get_args(hint), f"one of {get_args(hint)}", document, place)
    if origin is tuple:
        return _items(get_args(hint), document, fetch, place)
    if origin is not None and issubclass(origin, Mapping):
        _expected(isinstance(document, dict), "names and values", document, place)
        inner = get_args(hint)[1]
        return {name: value_of(inner, item, fetch, _below(place, name)) for name, item in document.items()}
    return _plain(hint, document, place)


def _record(kind: Any, document: Any, fetch: Fetch, place: str) -> Any:
    _expected(isinstance(document, dict), f"the fields of a {kind.__name__}", document, place)
    known = {f.name: f for f in _saved(kind)}
    unknown = [name for name in document if name not in known]
    missing = [n for n, f in known.items() if n not in document and f.default is f.default_factory is MISSING]
    if unknown or missing:
        trouble = f"does not know {unknown}" if unknown else f"needs {missing}"
        raise ValueError(f"a {kind.__name__} of this version of minsharp {trouble}")
    hints = get_type_hints(kind)
    return kind(**{n: value_of(hints[n], item, fetch, _below(place, n)) for n, item in document.items()})


def _alternative(hints: tuple[Any, ...], document: Any, fetch: Fetch, place: str) -> Any:
    """The first of several types that fits."""
    if document is None and NoneType in hints:
        return None
    failures = []
    for hint in hints:
        try:
            return value_of(hint, document, fetch, place)
        except ValueError as error:
            failures.append(error)
    raise failures[0]


def _items(hints: tuple[Any, ...], document: Any, fetch: Fetch, place: str) -> tuple[Any, ...]:
    _expected(isinstance(document, list), "a list", document, place)
    each = [hints[0]] * len(document) if hints[1:] == (...,) else list(hints)
    _expected(len(each) == len(document), f"{len(each)} items", document, place)
    pairs = enumerate(zip(each, document, strict=True))
    return tuple(value_of(h, item, fetch, _below(place, str(i))) for i, (h, item) in pairs)


def _status(document: Any, place: str) -> StatusText:
    fits = isinstance(document, dict) and set(document) == {"text", "case"} and isinstance(document["text"], str)
    _expected(fits and document["case"] in Status.__members__, "a status", document, place)
    return StatusText(document["text"], Status[document["case"]])


def _plain(hint: Any, document: Any, place: str) -> Any:
    """Numbers and text; of no stated type, whatever JSON can say."""
    if isinstance(document, dict) and set(document) == {"float"} and hint in (float, Any):
        _expected(document["float"] in ("nan", "inf", "-inf"), "nan or inf", document, place)
        return float(document["float"])
    if hint is Any:
        return document
    kinds = (int, float) if hint is float else hint
    fits = isinstance(document, kinds) and (hint is bool or not isinstance(document, bool))
    _expected(fits, f"a {getattr(hint, '__name__', hint)}", document, place)
    return float(document) if hint is float else document


def _expected(fits: bool, what: str, document: Any, place: str) -> Any:
    if not fits:
        raise ValueError(f"'{place}' is {str(document)[:60]!r}, expected {what}")
    return document


def listed(place: str, tensor: Tensor) -> dict[str, Any]:
    """A tensor as lists of numbers, each with all its digits."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in _TYPES:
        raise TypeError(f"'{place}' has type {tensor.dtype}, which no file can hold")
    values = [document_of(value, listed) for value in tensor.flatten().tolist()]
    return {"type": kind, "shape": list(tensor.shape), "values": values}


def unlisted(document: Any) -> Tensor:
    """The way back from `listed`; the numbers have to be as many as the shape says."""
    if not isinstance(document, dict) or set(document) != {"type", "shape", "values"}:
        raise ValueError(f"{str(document)[:60]!r} is no tensor, expected its type, shape and values")
    kind, shape, values = document["type"], document["shape"], document["values"]
    whole = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not isinstance(kind, str) or kind not in _TYPES or not whole or not isinstance(values, list):
        raise ValueError(f"a tensor of type {str(kind)[:20]!r} and shape {str(shape)[:60]} is not one that was saved")
    if prod(shape) != len(values):
        raise ValueError(f"a tensor of shape {tuple(shape)} has {len(values):,} numbers")
    hint: Any = {torch.bool: bool}.get(_TYPES[kind], float if kind.startswith("float") else int)
    numbers = [_plain(hint, value, "a tensor") for value in values]
    return torch.tensor(numbers, dtype=_TYPES[kind]).reshape(shape)
