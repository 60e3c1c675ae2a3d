"""An operation held to its laws on several examples."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from ..operations.examples.notation import Example
from ..operations.table import TABLE
from ..operations.teach import named
from .example import LAWS, Law, check_example
from .probe import ENTRIES, Entry, UnfitError


@dataclass(frozen=True)
class Report:
    """What was tried of an operation, and every violation in a line of text: none, and it `holds`."""

    operation: str
    formula: str | None
    """None where the operation is not known: then nothing is claimed, and nothing can be broken."""
    examples: int
    laws: tuple[Law, ...]
    violations: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing is broken."""
        return not self.violations

    def __repr__(self) -> str:
        known = "not known: nothing is claimed" if self.formula is None else repr(self.formula)
        broken = _count(self.violations, "violation") if self.violations else "all hold"
        tried = f"{self.examples} example{'s' * (self.examples != 1)}, {_count(self.laws, 'law')}"
        return "\n  ".join([f"{self.operation} ({known}): {tried}, {broken}", *self.violations])


def _count(items: Sequence[str], noun: str) -> str:
    return f"{len(items)} {noun}{'s' * (len(items) != 1)}"


def check(
    operation: Any,
    examples: Iterable[str | Example],
    *,
    entries: Sequence[Entry] = ENTRIES,
    laws: Sequence[Law] = LAWS,
    thorough: bool = False,
) -> Report:
    """Hold an operation to its laws on some examples: is it what `minsharp.operation` was told?

    An example lists the tensors that the operation is called with, in order, and their axes: ``"x(n,i) scale(i)"`` is
    a tensor with one row per sample, and a parameter that all of them share. The samples run along ``n``, wherever it
    stands. ``!`` marks a constant, ``+`` positive numbers, ``?`` booleans, ``<5`` whole numbers below five. Options go
    into a call of your own: ``Example(lambda x, w: scaled_relu(x, w, 0.1), "x(n,i) w(i)")``.

    Give every shape that your rules were made for, and some that they were not: several axes, the samples on another
    axis, parameters that broadcast, each option that changes the meaning. Each example is tried with the samples coming
    in by all ``entries``: times a parameter each, positive as well, through a linear layer, as they are.

    Args:
        operation: as `minsharp.operation` takes it.
        examples: texts, or `Example`s.
        entries: how the samples reach the call.
        laws: which laws to try.
        thorough: more weights, columns and batches for each.

    >>> import torch
    >>> check("aten::relu", ["x(n,i)", "x(i,n)"], entries=["scaled"])
    relu ('self'): 2 examples, 7 laws, all hold
    >>> from minsharp import operation
    >>> with operation("aten::i0", "self"):  # a Bessel function, called linear
    ...     check("aten::i0", ["x(n,i)"], entries=["scaled"], laws=["linearity"])
    i0 ('self'): 1 example, 1 law, 1 violation
      x(n,i): linearity: called exact in enter_x, its Jacobian changes at 4 of 4 points
    """
    name, call = named(operation)
    made = [Example(call, given) if isinstance(given, str) else given for given in examples]
    if not made:
        raise InputError(f'check({name!r}, []): expected examples, as in check({name!r}, ["x(n,i) w(i)"])')
    violations: list[str] = []
    for example in made:
        for seed, entry in enumerate(entries):
            label = example.text if entry == "scaled" else f"{example.text}, {entry}"
            violations += [f"{label}: {what}" for what in _broken(example, name, entry, seed, thorough, laws)]
    return Report(name, TABLE[name].formula if name in TABLE else None, len(made), tuple(laws), tuple(violations))


def _broken(example: Example, name: str, entry: Entry, seed: int, thorough: bool, laws: Sequence[Law]) -> Sequence[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch thinks of unusual calls
        try:
            return check_example(example, name, entry=entry, seed=seed, wide=thorough, laws=laws)
        except UnfitError as error:
            return [f"does not run: {next(iter(str(error).splitlines()), '')}"]
