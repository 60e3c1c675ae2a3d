"""What goes to stdout (results), what to stderr (everything else), and in which form."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TextIO

from ..text import printable

if TYPE_CHECKING:
    from rich.console import Console

Arguments = ParamSpec("Arguments")
_results: list[TextIO] = []
"""Where results go while a command runs; what anything else prints goes to stderr."""
_complaints: list[list[object]] = []
"""Where errors go while several processes run one command."""


def command(work: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """A command whose stdout is for its results alone: models are other people's code, and may print."""

    @wraps(work)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        _results.append(sys.stdout)
        try:
            with redirect_stdout(sys.stderr):
                work(*args, **kwargs)
        finally:
            _results.pop()

    return run


def results() -> TextIO:
    """The stream for results: the one that was stdout when the command began."""
    return _results[-1] if _results else sys.stdout


class FailureError(Exception):
    """The command did its work, and what it measured says no: exit code 1."""


def complain(error: object, code: int) -> int:
    """Print ``error: ...`` on stderr, or keep it for whoever speaks for several processes; the exit code, unchanged."""
    if _complaints:
        _complaints[-1].append(error)
    else:
        say_error(error)
    return code


@contextmanager
def kept_complaints() -> Iterator[list[object]]:
    """What went wrong, in place of saying it."""
    _complaints.append([])
    try:
        yield _complaints[-1]
    finally:
        _complaints.pop()


def say_error(error: object) -> None:
    """Print ``error: ...`` on stderr, on one line."""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    with suppress(OSError, ValueError):  # nobody to tell
        print(f"error: {printable(text)}", file=sys.stderr, flush=True)


def note(text: str) -> None:
    """A line for the person who waits, on stderr."""
    with suppress(OSError, ValueError):
        print(printable(text), file=sys.stderr, flush=True)


def watched() -> bool:
    """Whether somebody sees stderr: then there are progress bars."""
    return sys.stderr.isatty()


def plain(value: Any) -> Any:
    """The same in what JSON can say: no NaN, no infinity (null in their place), text keys."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(plain(value), indent=2, allow_nan=False), file=results(), flush=True)


def console() -> "Console":
    """Where results are printed: as wide as they need to be where nobody looks at a terminal."""
    from rich.console import Console

    terminal = results().isatty()
    return Console(
        file=results(), width=None if terminal else 200, highlight=False, no_color=not terminal, soft_wrap=not terminal
    )
