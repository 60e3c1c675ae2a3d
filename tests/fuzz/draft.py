"""A network under construction: every line runs on real tensors as soon as it is written."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from .program import Given, Step, fill, names

SAMPLES = 7  # more than any other size: an axis of this length is the batch
LARGEST = 72  # entries per sample of any value


class Rejected(Exception):  # noqa: N818
    """A piece that does not fit here."""


@dataclass(frozen=True)
class Piece:
    """A way to go on: what it writes is returned as an expression for the new value."""

    name: str
    kind: str
    ranks: str
    make: Callable[["Draft"], str]


class Draft:
    """The lines so far, the values they have on a test batch, and a current value to go on from."""

    def __init__(self, seed: int, given: tuple[Given, ...]) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.given = given
        self.module_ = nn.Module()
        self.module_.eval()
        self.scope: dict[str, Any] = {**names(), "self": self.module_}
        self.steps: list[Step] = []
        self.tags: set[str] = set()
        self.live: list[tuple[str, tuple[int, ...]]] = []
        self.frozen: list[str] = []
        self.earlier: list[str] = []
        self._filled: set[str] = set()
        self._inits: list[str] = []
        self._lines: list[str] = []
        self._count = 0
        self._before: set[str] = set()
        generator = torch.Generator().manual_seed(seed)
        for item in given:
            self.scope[item.name] = item.draw(SAMPLES, generator)
        self.h = given[0].name
        self.errors: list[str] = []
        self.keep_unused = False

    # what a piece asks

    @property
    def value(self) -> Tensor:
        found: Tensor = self.scope[self.h]
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def width(self) -> int:
        return self.shape[-1]

    def size(self, low: int = 2, high: int = 5) -> int:
        return self.rng.randint(low, high)

    def coin(self, probability: float = 0.5) -> bool:
        return self.rng.random() < probability

    def pick(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def axis(self) -> int:
        """Any axis but the samples', counted from either end."""
        axis = self.rng.randint(1, self.rank - 1)
        return axis - self.rank if self.coin(0.3) else axis

    def length(self, axis: int) -> int:
        return self.shape[axis]

    def permutation(self, count: int) -> list[int]:
        return self.rng.sample(range(count), count)

    def indices(self, count: int, below: int) -> list[int]:
        return [self.rng.randrange(below) for _ in range(count)]

    def divisor(self, number: int) -> int:
        """A proper divisor, to fold an axis in two."""
        found = [k for k in range(2, number) if number % k == 0]
        if not found:
            raise Rejected(f"{number} has no divisor")
        return self.rng.choice(found)

    def number(self) -> float:
        return round(self.rng.uniform(0.3, 1.7), 1)

    # what a piece writes

    def _name(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def init(self, line: str) -> None:
        """A line of ``__init__``."""
        exec(line, self.scope)
        self._inits.append(line)
        self.module_.double().eval()
        fill(self.module_, self.seed, self._filled)
        held = dict(self.module_.named_parameters())
        self.live += [(f"self.{name}", tuple(p.shape)) for name, p in held.items() if name not in self._filled]
        self._filled |= {name for name, _ in [*held.items(), *self.module_.named_buffers()]}

    def module(self, code: str) -> str:
        """A submodule; returns how to refer to it."""
        name = self._name("m")
        self.init(f"self.{name} = {code}")
        return f"self.{name}"

    def param(self, *shape: int) -> str:
        name = self._name("p")
        self.init(f"self.{name} = nn.Parameter(torch.empty({shape}))")
        return f"self.{name}"

    def buffer(self, *shape: int) -> str:
        name = self._name("b")
        self.init(f"self.register_buffer('{name}', torch.empty({shape}))")
        return f"self.{name}"

    def kept_buffer(self, code: str) -> str:
        """A buffer that holds just what the code says."""
        name = self._name("kept")
        self.init(f"self.register_buffer('{name}', {code})")
        return f"self.{name}"

    def line(self, statement: str) -> None:
        """A line of ``forward``."""
        with torch.no_grad():
            exec(statement, self.scope)
        self._lines.append(statement)

    def let(self, expression: str) -> str:
        """A new variable; returns its name."""
        name = self._name("v")
        self.line(f"{name} = {expression}")
        return name

    def of(self, name: str) -> Tensor:
        """The value of a variable on the test batch."""
        found: Tensor = self.scope[name]
        return found

    def go(self, expression: str) -> None:
        """Continue from another value, within a piece."""
        self.h = self.let(expression)

    def other(self, *, like: bool = True) -> str:
        """An earlier value of the same shape (``like``), or of the same but for the last axis."""
        shape = self.shape
        fits = [
            n for n in self.earlier if (tuple(self.of(n).shape) == shape if like else self.of(n).dim() == len(shape))
        ]
        if not fits:
            raise Rejected("no earlier value fits")
        return self.rng.choice(fits)

    def tag(self, *tags: str) -> None:
        self.tags |= set(tags)

    # steps

    def attempt(self, piece: Piece) -> bool:
        """Add a piece if it fits: runs, is finite, neither too large nor all zero."""
        if str(self.rank) not in piece.ranks:
            return False
        self._before = {name for name, _ in self.live}
        kept = (self.h, len(self.live), set(self.tags), len(self.frozen))
        self._inits, self._lines, self.keep_unused = [], [], False
        try:
            result = self.let(piece.make(self))
            self._check(self.of(result))
        except Exception as error:
            self.h, live, self.tags, frozen = kept
            del self.live[live:], self.frozen[frozen:]
            if not isinstance(error, Rejected):
                self.errors.append(f"{piece.name} on {self.shape}: {type(error).__name__}: {str(error)[:200]}")
            return False
        if not self.keep_unused:
            self._prune(result)
        self.steps.append(Step(piece.name, kept[0], result, tuple(self._inits), tuple(self._lines)))
        self.earlier.append(result)
        self.h = result
        return True

    def _prune(self, result: str) -> None:
        """Leave out variables and parts that were prepared for ways not taken."""
        kept: list[str] = []
        used = {result}
        for line in reversed(self._lines):
            made = re.match(r"(v\d+) = ", line)
            if made is None or made[1] in used:
                kept.insert(0, line)
                used |= set(re.findall(r"\w+", line))
        parts: list[str] = []
        for line in reversed(self._inits):
            made = re.match(
                r"self\.(\w+) = |self\.register_buffer\('(\w+)'|self\.(\w+)\.register|\w+\.register\w+\(self.(\w+),",
                line,
            )
            own = next(filter(None, made.groups())) if made else None
            if own is None or own in used:
                parts.insert(0, line)
                used |= set(re.findall(r"\w+", line))
        self._lines, self._inits = kept, parts
        self.live = [(name, shape) for name, shape in self.live if name.split(".")[1] in used or name in self._before]

    def _check(self, value: Any) -> None:
        if not isinstance(value, Tensor) or value.dim() < 1 or value.shape[0] != SAMPLES:
            raise TypeError(f"a piece returned {getattr(value, 'shape', type(value))}")
        if value.dtype != torch.float64:
            raise TypeError(f"a piece returned {value.dtype}")
        if prod(value.shape[1:]) > LARGEST or value.numel() == 0 or value.dim() > 5:
            raise Rejected("too large, or empty")
        if not bool(torch.isfinite(value).all()) or float(value.abs().max()) > 300 or float(value.abs().max()) < 1e-3:
            raise Rejected("not finite, too large or zero")
