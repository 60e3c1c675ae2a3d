"""Running the command line from tests."""

import signal


def hears_interrupts() -> None:
    """For `preexec_fn`: a shell makes what it runs in the background deaf to Ctrl-C, and so may the tests be run."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
