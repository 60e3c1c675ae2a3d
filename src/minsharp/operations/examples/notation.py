"""How an example of an operation is written down.

    Example(lambda x, W, b: F.linear(x, W, b), "x(n,i) W(o,i) b(o)")

The text lists the tensors of the call, in order, with their axes:

    x(n,i)      varies with the samples along the axis n, which may stand anywhere: x(i,n)
    W(o,i)      a parameter: no axis n; c() is a single number
    c(a)!       a constant; x(n,a)! varies, and is used as it comes, without a scale of its own
    i(n,a)<5    whole numbers below 5
    m(n,a)?     booleans
    v(a)+       positive numbers

An axis is a letter, a number, or a letter with a factor: 2g. Letters stand for sizes: each has a size of its own by
default, and any from 1 to 4 otherwise; `sizes` gives other ranges, and ``empty=True`` lets them be 0. The call gets the
tensors by position, and by name the letters that it names: ``lambda x, k: x.narrow(1, 0, k)``.

Only torch is imported here, and nothing imports this but the laws and the tests.
"""

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_GIVEN = re.compile(r"(\w+)\(([^()]*)\)([!?+]*)(?:<(\d+))?([!?+]*)")
_AXIS = re.compile(r"(\d*)([a-z]?)")


@dataclass(frozen=True)
class Given:
    """One tensor of an example; ``axes`` are pairs (factor, letter), the letter empty for a number."""

    name: str
    axes: tuple[tuple[int, str], ...]
    constant: bool = False
    boolean: bool = False
    positive: bool = False
    below: int | None = None

    @property
    def varies(self) -> bool:
        """Whether it differs between samples."""
        return (1, "n") in self.axes

    @property
    def axis(self) -> int:
        """Where the samples stand."""
        return self.axes.index((1, "n"))

    @property
    def enters(self) -> bool:
        """Whether it varies and can have a scale of its own."""
        return self.varies and not (self.constant or self.boolean or self.below is not None)

    def one_sample(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The sizes of all axes but that of the samples."""
        return tuple(factor * sizes.get(letter, 1) for factor, letter in self.axes if letter != "n")

    def draw(self, sizes: Mapping[str, int], generator: torch.Generator, n: int | None = None) -> Tensor:
        """Numbers at random, not near zero; where there are samples they come first."""
        shape = self.one_sample(sizes) if n is None else (n, *self.one_sample(sizes))
        if self.below is not None:
            return torch.randint(0, self.below, shape, generator=generator)
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
        if self.boolean:
            return numbers > 0
        return numbers.abs() + 0.2 if self.positive else numbers + 0.1 * numbers.sign()


def _given(name: str, axes: str, marks: str, below: str, more: str) -> Given:
    parts = [_AXIS.fullmatch(part.strip()) for part in axes.split(",") if part.strip()]
    if any(part is None or not part.group() for part in parts):
        raise ValueError(f"cannot read the axes ({axes}) of {name}: expected letters and numbers, as in (n,2g,3)")
    pairs = tuple((int(part.group(1) or 1), part.group(2)) for part in parts if part is not None)
    marks += more
    return Given(name, pairs, "!" in marks, "?" in marks, "+" in marks, int(below) if below else None)


def parse(text: str) -> tuple[Given, ...]:
    """Read the tensors of an example.

    >>> [(g.name, g.axes) for g in parse("x(n,2g) W(3,g)")]
    [('x', ((1, 'n'), (2, 'g'))), ('W', ((3, ''), (1, 'g')))]
    """
    found = [_GIVEN.fullmatch(part) for part in re.findall(r"\S+?\([^()]*\)\S*", text)]
    if any(match is None for match in found) or _GIVEN.sub("", text).strip():
        raise ValueError(f"cannot read the tensors {text!r}: expected something like 'x(n,i) W(o,i) b(o)'")
    return tuple(_given(*(group or "" for group in match.groups())) for match in found if match is not None)


@dataclass(frozen=True)
class Example:
    """A small call and its tensors.

    ``free=True`` promises that the rules find every rescaling that keeps the function: then the laws ask for it. A
    small number that keeps a function from being constant, as the eps of a norm, has to be large enough to be seen.
    """

    call: Callable[..., Any]
    text: str
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    empty: bool = False
    free: bool = False

    @cached_property
    def tensors(self) -> tuple[Given, ...]:
        """What goes in, in order."""
        return parse(self.text)

    @cached_property
    def letters(self) -> tuple[str, ...]:
        """The sizes that may be chosen."""
        found = [letter for given in self.tensors for _, letter in given.axes if letter not in ("", "n")]
        return tuple(dict.fromkeys([*found, *self.sizes]))

    def range_of(self, letter: str) -> tuple[int, int]:
        """The smallest and the largest size of a letter."""
        return self.sizes.get(letter, (0 if self.empty else 1, 4))

    def default_sizes(self) -> dict[str, int]:
        """A size for each letter, all different where their ranges allow."""
        chosen: dict[str, int] = {}
        for letter in sorted(self.letters, key=lambda x: (x not in self.sizes, self.letters.index(x))):
            low, high = self.range_of(letter)
            start = low if letter in self.sizes else 2
            free = [size for size in range(start, max(high, 9) + 1) if size not in chosen.values()]
            in_range = [size for size in free if size <= high] if letter in self.sizes else free
            chosen[letter] = (in_range or [start])[0]
        return chosen

    @cached_property
    def _named(self) -> tuple[str, ...]:
        """The letters that the call asks for by name."""
        try:
            names = inspect.signature(self.call).parameters
        except (TypeError, ValueError):
            return ()
        return tuple(
            letter for letter in self.letters if letter in names and letter not in {g.name for g in self.tensors}
        )

    def run(self, tensors: Sequence[Tensor], sizes: Mapping[str, int]) -> Any:
        """What the call makes of tensors of these sizes."""
        return self.call(*tensors, **{letter: sizes[letter] for letter in self._named})

    def __repr__(self) -> str:
        return f"Example({_source(self.call)}, {self.text!r})"


def _source(call: Callable[..., Any]) -> str:
    """The call as it is written, if that can be found."""
    code = getattr(call, "__code__", None)
    if code is None or code.co_name != "<lambda>":
        return getattr(call, "__name__", repr(call))
    text, lambdas = _lambdas(code.co_filename)
    starts = {(line, column) for line, _, column, _ in code.co_positions() if line is not None}
    found = [node for node in lambdas if (node.body.lineno, node.body.col_offset) in starts]
    source = ast.get_source_segment(text, found[-1]) if found else None
    return " ".join(source.split()) if source else "lambda"


@cache
def _lambdas(file: str) -> tuple[str, list[ast.Lambda]]:
    """The text of a file, and its lambdas, the outer ones first."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError:
        return "", []
    return text, [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Lambda)]
