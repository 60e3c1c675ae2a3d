"""The entry point: exit codes, errors as one line on stderr, interrupts, and streams that may be closed."""

import os
import signal
import sys
import traceback
import warnings
from _thread import interrupt_main
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Timer
from typing import Any, TextIO

from ..extras import how_to_install
from .team import launched, run_together

WRONG_USE, FAILED, INTERRUPTED = 2, 1, 130
TRACEBACK = "MINSHARP_TRACEBACK"
"""Set in the environment, it shows where an error came from."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and leave with 0, 1 (a measured failure), 2 (wrong use) or 130 (interrupted)."""
    code = run(arguments)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is left to be undone
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. An error is one line on stderr, never a traceback."""
    try:
        with interrupts_kept():
            _open_streams()
            code = _run_launched(arguments) if launched() else _run(arguments)
            code = _flush(code)
    except KeyboardInterrupt:
        code = INTERRUPTED  # as typer says it too, where it is the one that hears Ctrl-C
    if code == INTERRUPTED:
        with suppress(OSError, ValueError):
            print("\ninterrupted", file=sys.stderr, flush=True)
    return code


def _run_launched(arguments: Sequence[str] | None) -> int:
    """Run the command line as one of the processes that torchrun started."""
    from .output import complain

    try:
        return run_together(lambda: _run(arguments))
    except KeyboardInterrupt:
        raise
    except Exception as error:
        return complain(f"the processes of torchrun do not find each other: {_text(error)}", FAILED)


def _run(arguments: Sequence[str] | None) -> int:
    def said(text: object) -> str:
        from .app import app
        from .spoken import options_of, spoken

        return spoken(str(text), options_of(sys.argv[1:] if arguments is None else arguments, app))

    try:
        with warnings.catch_warnings():
            _choose_warnings(said)
            from .app import app

            code = app(arguments, prog_name="minsharp", standalone_mode=False)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) and "_MINSHARP_COMPLETE" in os.environ:
            raise  # typer ends so, once it has told the shell how words go on
        return (
            INTERRUPTED if isinstance(error.__cause__, KeyboardInterrupt) else _told(error, said)
        )  # as some typers say it
    return code if isinstance(code, int) else 0


def _choose_warnings(said: Callable[[object], str]) -> None:
    """Print what minsharp itself warns of, in a line; others' words about their insides only for who asks for them."""
    from ..errors import MinsharpWarning

    if not sys.warnoptions:  # -W, or PYTHONWARNINGS
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", MinsharpWarning)
    plain = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, MinsharpWarning):
            print(f"warning: {said(message)}", file=sys.stderr)
        else:
            plain(message, category, filename, lineno, file, line)

    warnings.showwarning = show


def _told(error: BaseException, said: Callable[[object], str]) -> int:
    """Say what went wrong in one line; the exit code."""
    from ..errors import MinsharpError, NonFiniteError, NotExactError, RankError
    from .output import FailureError, complain

    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # typer's own, of the arguments
        message = error.format_message().replace("Value error, ", "")  # none where it has shown the help
        return complain(message + _more_help(error), int(error.exit_code)) if message else int(error.exit_code)
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    if isinstance(error, RankError):
        return complain(RankError(said(error)), FAILED)
    if isinstance(error, FailureError | NotExactError | NonFiniteError):
        return complain(said(error), FAILED)
    if isinstance(error, MinsharpError):
        return complain(said(error), WRONG_USE)
    if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):  # typer exits from it
        return _closed_pipe()
    return complain(_unforeseen(error), FAILED)


def _more_help(error: Any) -> str:
    """Where the options of a command are told that was called in a wrong way."""
    path = getattr(getattr(error, "ctx", None), "command_path", "")
    return f" ({path} --help tells what there is)" if path else ""


def _unforeseen(error: BaseException) -> str:
    if type(error).__name__ == "Abort" and error.__cause__ is not None:  # typer's, for an end of input
        error = error.__cause__
    if isinstance(error, MemoryError):
        return "there is not enough memory: fewer --samples, or a smaller --batch-size, need less"
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"'{os.fsdecode(error.filename)}': "
        return f"{where}{error.strerror}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"this needs the package '{error.name}', which is not installed: {how_to_install('experiments')}"
    text = _text(error)
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"unexpected {said}. {TRACEBACK}=1 shows where it came from"


def _text(error: BaseException) -> str:
    """The words of an error, whatever its class makes of them."""
    try:
        return " ".join(str(error).split())[:2000]
    except Exception:
        return ""


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Let Ctrl-C come again, a moment later, if it came where Python drops what is raised: in a callback, say."""
    before, coming = sys.unraisablehook, list[Timer]()

    def hook(dropped: "sys.UnraisableHookArgs") -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            if os.environ.get(TRACEBACK):
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


def _open_streams() -> None:
    """Streams that can be written to, whatever they were given as, and whatever characters they take."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # closed: the next file that is opened would take its place
            with suppress(OSError):
                os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(os.devnull, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: SIM115
        if number and hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def _flush(code: int) -> int:
    """Write out what was printed; the exit code, another one if that fails."""
    from .output import complain

    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _closed_pipe()
    except OSError as error:
        _silence("stdout")
        return code or complain(f"cannot write the output: {error.strerror}", FAILED)  # said already, if not zero
    except ValueError:  # closed by the user's own code
        return code
    return code


def _closed_pipe() -> int:
    """Whoever read the output has had enough: leave silently, and let nothing try to write to it again."""
    _silence("stdout")
    return FAILED


def _silence(name: str) -> None:
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), getattr(sys, name).fileno())
