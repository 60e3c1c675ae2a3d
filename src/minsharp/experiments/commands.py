"""The command that makes a folder again: what differs from the defaults is spelled out."""

from collections.abc import Iterator, Sequence
from typing import Any


def unless_default(values: Sequence[Any], default: Sequence[Any], option: str) -> Iterator[str]:
    """The option with its values, unless they are the default ones.

    >>> list(unless_default([1, 3], [1], "--probes")), list(unless_default([1], [1], "--probes"))
    (['--probes 1,3'], [])
    """
    if not values or sorted(map(str, values)) == sorted(map(str, default)):
        return
    text = ",".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    yield f'{option} "{text}"' if " " in text else f"{option} {text}"


def seeds_option(seeds: Sequence[int], default: int) -> Iterator[str]:
    """The option for the seeds: how many, if they are the first ones."""
    if list(seeds) == list(range(len(seeds))):
        yield from unless_default([len(seeds)], [default], "--seeds")
    else:
        yield from unless_default(seeds, range(default), "--seeds")
