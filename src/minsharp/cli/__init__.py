"""The command line."""

import sys
import warnings
from _thread import interrupt_main
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Timer

WRONG_USE, FAILED, INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and leave with 0, 1 (a measured failure), 2 (wrong use) or 130 (interrupted)."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. An expected error is one line on stderr, never a traceback."""
    try:
        with interrupts_kept():
            code = _run(arguments)
    except KeyboardInterrupt:
        code = INTERRUPTED  # as typer says it too, where it is the one that hears Ctrl-C
    if code == INTERRUPTED:
        print("\ninterrupted", file=sys.stderr)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    from ..errors import MinsharpError, NonFiniteError, NotExactError
    from .app import app
    from .output import FailureError, complain

    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:  # torch's words about its own insides are for whoever asks for them: -W, or
                warnings.simplefilter("ignore")  # PYTHONWARNINGS
            code = app(arguments, prog_name="minsharp", standalone_mode=False)
    except (FailureError, NotExactError, NonFiniteError) as error:
        return complain(error, FAILED)
    except MinsharpError as error:
        return complain(error, WRONG_USE)
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # typer's own, of the arguments
            message = error.format_message()  # none where it has shown the help
            return complain(message, int(error.exit_code)) if message else int(error.exit_code)
        if isinstance(error, BrokenPipeError):
            return _closed_pipe()
        raise
    return code if isinstance(code, int) else 0


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Let Ctrl-C come again, a moment later, if it came where Python drops what is raised: in a callback, say."""
    before, coming = sys.unraisablehook, list[Timer]()

    def hook(dropped: "sys.UnraisableHookArgs") -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            before(dropped)
            return
        coming.append(Timer(0.1, interrupt_main))  # by then the callback has been left
        coming[-1].daemon = True
        coming[-1].start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in coming:
            timer.cancel()


def _closed_pipe() -> int:
    """Whoever read the output has had enough: leave silently, and let nothing try to write to it again."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED
