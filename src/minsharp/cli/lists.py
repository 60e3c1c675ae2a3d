"""Lists that options take as one word, with commas between the entries."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer

MOST_SEEDS = 100_000


def words(text: str | None, default: Sequence[str]) -> list[str]:
    """Names with commas between them, each once."""
    return list(default) if text is None else _each_once(word.strip() for word in text.split(",") if word.strip())


def _each_once(values: Iterable[Any]) -> list[Any]:
    """The values without repetitions, in their order."""
    return list(dict.fromkeys(values))


def numbers(text: str, kind: Callable[[str], Any], option: str) -> list[Any]:
    """Numbers of a kind with commas between them, each once."""
    try:
        return _each_once(kind(word) for word in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text[:60]!r}: expected numbers with commas between them", param_hint=option
        ) from None


def integers(text: str, option: str) -> list[int]:
    """Whole numbers with commas between them, each once."""
    return numbers(text, int, option)


def seeds_of(text: str | None, default: int) -> list[int]:
    """'3' is the first three, '3-5' those from 3 to 5, '1,3,5' or '3,' those named."""
    if text is None:
        return list(range(default))
    try:
        if "," in text:
            return _each_once(int(word) for word in text.split(",") if word.strip())
        first, last = map(int, text.split("-")) if "-" in text else (0, int(text) - 1)
    except ValueError:
        raise typer.BadParameter(f"{text[:60]!r}: expected '10', '3-5' or '1,3,5'", param_hint="--seeds") from None
    if last - first >= MOST_SEEDS:
        raise typer.BadParameter(f"{text[:60]!r}: expected at most {MOST_SEEDS:,} seeds", param_hint="--seeds")
    return list(range(first, last + 1))
