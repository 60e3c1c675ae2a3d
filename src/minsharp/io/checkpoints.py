"""Which of the tensors in a file are the weights of a model: found by names and shapes, never guessed.

Training scripts save state dicts inside of other dicts, beside optimizers and averages, and under the names of wrappers
around the model. A *place* is a dict in the file and a prefix of its names; the weights are at the place that has them
all and nothing else. Where two places would do, or where there are other tensors beside them, the user is asked.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError

_WRAPPERS = ("module", "_orig_mod")
"""What wrappers (parallel, averaged, compiled) put into the names of what they hold."""
_COUNT = "n_averaged"
"""What torch's AveragedModel keeps for itself."""
_LISTED = 8
"""Names that an error lists; the others are counted."""
_DEEPEST = 8
"""Keys that may lead to a state dict."""
_PARTS = 64
"""Parts of a name that may be a prefix."""
_TRIED = 1000
"""Places that are looked at closely; beyond the outermost, they are the parts of an optimizer's state."""


@dataclass(frozen=True)
class Place:
    """Tensors by name, and where they were found: keys of dicts from outside in, and what their names began with."""

    keys: tuple[str, ...]
    prefix: str
    tensors: Mapping[str, Tensor]
    beside: int = 0
    """Tensors of the same dict whose names begin with something else."""

    @property
    def key(self) -> str:
        """As the user names it."""
        return "/".join((*self.keys, self.prefix) if self.prefix else self.keys)

    def is_called(self, key: str) -> bool:
        """Whether the user means this place; the dot after what names begin with may be left out."""
        return key == self.key or f"{key}." == self.key

    def __str__(self) -> str:
        return f"'{self.key}'" if self.key else "the names as they are"


def dicts_of(held: Any) -> Iterator[tuple[tuple[str, ...], dict[str, Tensor]]]:
    """Every dict in what a file holds that has tensors by name, the outermost first, with the keys that lead to it.

    Each is looked at once, none too deep inside: a small file can hold lists in lists without end.
    """
    waiting: list[tuple[tuple[str, ...], Any]] = [((), held)]
    seen = {id(held)}
    for keys, item in waiting:  # grows while it is walked
        if isinstance(item, dict):
            tensors = {key: value for key, value in item.items() if isinstance(key, str) and isinstance(value, Tensor)}
            if tensors:
                yield keys, tensors
        for key, value in _pairs(item) if len(keys) < _DEEPEST else ():
            if isinstance(value, dict | list) and id(value) not in seen:
                seen.add(id(value))
                waiting.append(((*keys, str(key)), value))


def _pairs(item: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(item, dict):
        return item.items()
    return enumerate(item) if isinstance(item, list) else ()


def bare(name: str) -> str:
    """A name without the parts that wrappers put into it.

    >>> bare("module.encoder._orig_mod.weight")
    'encoder.weight'
    """
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


class Expected:
    """The names and shapes of a model's weights; tensors with several names are one."""

    def __init__(self, state: Mapping[str, Tensor], idle: frozenset[str] = frozenset()):
        self.state, self.idle = {name: t for name, t in state.items() if isinstance(t, Tensor)}, idle
        self.own = {bare(name): name for name in self.state}
        self.told_apart = len(self.own) == len(self.state)  # else the model itself needs those parts in its names
        shared: dict[int, list[str]] = {}
        for name, tensor in self.state.items():
            shared.setdefault(id(tensor), []).append(name)
        self.groups = list(shared.values())

    def renamed(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Under the model's own names, where only wrappers make the difference."""
        if not self.told_apart or all(name in self.state for name in tensors):
            return tensors
        held = {name: tensor for name, tensor in tensors.items() if name != _COUNT}
        found = {self.own.get(bare(name), bare(name)): tensor for name, tensor in held.items()}
        return found if len(found) == len(held) else tensors

    def missing(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Names of the model without a tensor, under this or another of their names."""
        known = {name for group in self.groups if any(n in tensors for n in group) for name in group}
        return [name for name in self.state if name not in known and name not in self.idle]

    def misfits(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Tensors of another shape."""
        return [
            f"{name} {tuple(tensors[name].shape)} instead of {tuple(tensor.shape)}"
            for name, tensor in self.state.items()
            if name in tensors and tensors[name].shape != tensor.shape
        ]

    def unexpected(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Names that the model does not have."""
        return [name for name in tensors if name not in self.state]

    def fits(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether these are the weights of the model, all of them and nothing else."""
        return not (self.missing(tensors) or self.unexpected(tensors) or self.misfits(tensors))

    def prefixes(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """What may stand before every name of the model: told by the longest of them, under any of its names."""
        ends = [f".{bare(name)}" for name in max(self.groups, key=lambda group: len(group[0]), default=[])]
        found = {name[: -len(end) + 1]: None for name in map(bare, tensors) for end in ends if name.endswith(end)}
        return list(found)

    def trouble(self, tensors: Mapping[str, Tensor]) -> str:
        """What does not fit, with the nearest names beside those that are missing."""
        missing, unexpected = self.missing(tensors), self.unexpected(tensors)
        near = [_beside(name, get_close_matches(name, unexpected, 1)) for name in missing[:_LISTED]]
        parts = [
            _listed("missing", near, len(missing)),
            _listed("unexpected", unexpected[:_LISTED], len(unexpected)),
            _listed("of another shape", self.misfits(tensors)[:_LISTED], len(self.misfits(tensors))),
        ]
        return "; ".join(filter(None, parts))


def _beside(name: str, near: list[str]) -> str:
    return f"{name} (nearest: {near[0]})" if near else name


def _listed(what: str, names: list[str], count: int) -> str:
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return f"{what}: {', '.join(names)}{more}" if names else ""


def places(held: Any, expected: Expected) -> Iterator[Place]:
    """Every place in a file where the weights of the model could be: whole dicts, and parts of them under a prefix."""
    for keys, tensors in islice(dicts_of(held), _TRIED):
        yield Place(keys, "", expected.renamed(tensors))
        for prefix, part in _under(expected.prefixes(tensors), tensors).items():
            yield Place(keys, prefix, expected.renamed(part), len(tensors) - len(part))


def _under(prefixes: list[str], tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors whose names begin with each prefix, without it; every name is looked at once."""
    found: dict[str, dict[str, Tensor]] = {prefix: {} for prefix in prefixes}
    for name, tensor in tensors.items():
        inside = bare(name)
        ends = [i + 1 for i, letter in enumerate(inside) if letter == "."]
        for end in ends[:_PARTS]:
            if inside[:end] in found:
                found[inside[:end]][inside[end:]] = tensor
    return found


def weights_in(held: Any, expected: Expected, key: str | None, path: object) -> Place:
    """The place that has the model's weights; an error says what does not fit, or which places there are to choose."""
    found = list(places(held, expected))
    if not found:
        raise InputError(f"'{path}' holds a {type(held).__name__}, expected a state dict: names and tensors")
    if key is not None:
        found = [place for place in found if place.is_called(key)] or _no_such(key, found, expected, path)
    fitting = [place for place in found if expected.fits(place.tensors)]
    if fitting:
        return fitting[0] if key is not None else _only(fitting, path)
    nearest = min(found, key=lambda place: _distance(expected, place.tensors))
    where = f" at {nearest}" if nearest.key else ""
    raise InputError(f"the weights in '{path}'{where} do not fit the model: {expected.trouble(nearest.tensors)}")


def _only(fitting: list[Place], path: object) -> Place:
    """The one place that fits, or the first of several with the same numbers; else the user is asked."""
    whole = [place for place in fitting if not place.beside]
    if not whole:
        beside = (
            f"with {fitting[0].beside} other tensors beside them" if len(fitting) == 1 else "each beside the others"
        )
        raise InputError(f"'{path}' holds weights for this model at {_all(fitting)}, {beside}. {_say(fitting)}")
    if not all(_same(whole[0].tensors, other.tensors) for other in whole[1:]):
        raise InputError(f"'{path}' holds weights for this model more than once: {_all(whole)}. {_say(whole)}")
    return whole[0]


def _all(found: list[Place]) -> str:
    return " and ".join(map(str, found[:_LISTED]))


def _say(found: list[Place]) -> str:
    keys = [f"--weights-key {place.key}" for place in found if place.key]
    return f"Say which: {' or '.join(keys[:2])}" if len(found) > 1 else f"If that is it: {keys[0]}"


def _no_such(key: str, found: list[Place], expected: Expected, path: object) -> list[Place]:
    near = sorted(found, key=lambda place: _distance(expected, place.tensors))[:_LISTED]
    raise InputError(f"'{path}' holds no weights at '{key}': expected one of {', '.join(map(str, near))}")


def _distance(expected: Expected, tensors: Mapping[str, Tensor]) -> int:
    """How many names would have to change."""
    return len(expected.missing(tensors)) + len(expected.unexpected(tensors)) + len(expected.misfits(tensors))


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two places hold the same numbers, so that it does not matter which is taken."""
    return set(one) == set(other) and all(torch.equal(t, other[name]) for name, t in one.items())
