"""The command line."""

import sys
import warnings
from collections.abc import Sequence

WRONG_USE, FAILED, INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and leave with 0, 1 (a measured failure), 2 (wrong use) or 130 (interrupted)."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. An expected error is one line on stderr, never a traceback."""
    try:
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
    except KeyboardInterrupt:
        code = INTERRUPTED  # as typer says it too, where it is the one that hears Ctrl-C
    if code == INTERRUPTED:
        print("\ninterrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _closed_pipe() -> int:
    """Whoever read the output has had enough: leave silently, and let nothing try to write to it again."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED
