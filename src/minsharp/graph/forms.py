"""Linear forms in free generators, under linear equations: the algebra behind the rescaling group.

Every scale is the exponential of a form such as ``u3 - u7``. Forms are interned and known by number, so that a tensor
of scales is a tensor of numbers; 0 is the form that is zero. `ANY` is not a form: it marks entries that are zero
themselves, and so have any scale one likes.
"""

from collections.abc import Iterator
from fractions import Fraction

import torch
from torch import Tensor

Form = dict[int, Fraction]
ANY = -1
ONE = 0
"""The form of a tensor that keeps its scale: zero, for a factor of one."""


class Forms:
    """A growing table of forms, and the equations between their generators, solved as they come."""

    def __init__(self) -> None:
        self._table: list[Form] = [{}]
        self._numbers: dict[tuple[tuple[int, Fraction], ...], int] = {(): 0}
        self._solved: dict[int, Form] = {}
        self._reasons: dict[int, str] = {}
        self._generators = 0

    def fresh(self, *shape: int) -> Tensor:
        """New generators, one per entry."""
        count = 1
        for size in shape:
            count *= size
        numbers = []
        for _ in range(count):
            numbers.append(self._intern({self._generators: Fraction(1)}))
            self._generators += 1
        return torch.tensor(numbers, dtype=torch.int64).reshape(shape)

    def _intern(self, form: Form) -> int:
        key = tuple(sorted(form.items()))
        number = self._numbers.setdefault(key, len(self._table))
        if number == len(self._table):
            self._table.append(form)
        return number

    def combine(self, a: Tensor, b: Tensor, sign: int = 1) -> Tensor:
        """a + b, or a - b, entry by entry; ANY where either is."""
        a, b = torch.broadcast_tensors(a, b)
        result = torch.where((a == ANY) | (b == ANY), ANY, a)
        changed = (result != ANY) & (b != ONE)
        if bool(changed.any()):
            pairs, where = unique_pairs(a[changed], b[changed])
            sums = [self._intern(_plus(self._table[i], self._table[j], sign)) for i, j in pairs]
            result = result.clone()
            result[changed] = torch.tensor(sums, dtype=torch.int64)[where]
        return result

    def equate(self, a: Tensor, b: Tensor, reason: str) -> Tensor:
        """Make two tensors of forms equal, entry by entry; returns what both are now."""
        a, b = torch.broadcast_tensors(a, b)
        differ = (a != b) & (a != ANY) & (b != ANY)
        if bool(differ.any()):
            for i, j in unique_pairs(a[differ], b[differ])[0]:
                self._vanish(_plus(self._table[i], self._table[j], -1), reason)
        return torch.where(a == ANY, b, a)

    def _vanish(self, form: Form, reason: str) -> None:
        """Add the equation form = 0, solved for its newest generator with the simplest coefficient."""
        form = self.reduce(form)
        if not form:
            return
        pivot = min(form, key=lambda g: (abs(form[g]) != 1, -g))
        coefficient = form.pop(pivot)
        self._solved[pivot] = {g: -c / coefficient for g, c in form.items()}
        self._reasons[pivot] = reason

    def reduce(self, form: Form) -> Form:
        """The form in generators that are still free."""
        result: Form = {}
        for generator, coefficient in form.items():
            if generator not in self._solved:
                part = {generator: Fraction(1)}
            else:
                part = self._solved[generator] = self.reduce(self._solved[generator])
            for g, c in part.items():
                result[g] = result.get(g, Fraction(0)) + coefficient * c
        return {g: c for g, c in result.items() if c}

    @property
    def free(self) -> list[int]:
        """The generators that no equation has used up."""
        return [g for g in range(self._generators) if g not in self._solved]

    def reduced(self, number: int) -> Form:
        """A form by its number, in free generators."""
        return self.reduce(self._table[number])

    def reasons(self, number: int) -> Iterator[str]:
        """Why generators of a form are no longer free."""
        for generator in self._table[number]:
            if generator in self._reasons:
                yield self._reasons[generator]


def unique_pairs(a: Tensor, b: Tensor) -> tuple[list[tuple[int, int]], Tensor]:
    """The different pairs (a_i, b_i) of two tensors of numbers, and for each i the position of its pair."""
    if not a.numel():
        return [], a
    base = int(b.max()) + 1
    keys, where = torch.unique(a * base + b, return_inverse=True)
    return list(zip((keys // base).tolist(), (keys % base).tolist(), strict=True)), where


def _plus(a: Form, b: Form, sign: int) -> Form:
    result = dict(a)
    for generator, coefficient in b.items():
        result[generator] = result.get(generator, Fraction(0)) + sign * coefficient
    return {g: c for g, c in result.items() if c}
