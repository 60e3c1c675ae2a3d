"""Progress bars, on the standard error stream."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def bar(description: str, total: int | None, show: bool, *, idle: bool = False) -> Iterator[Callable[..., None]]:
    """A progress bar, if it is to be shown; yields what to call with the work that was done, and a note on it.

    An idle one moves only when it is called: it takes no time from what is timed in between.
    """
    if not show:
        yield lambda n, note="": None
        return
    from rich.progress import MofNCompleteColumn

    with _progress(MofNCompleteColumn(), not idle) as progress:
        task = progress.add_task(description, total=total)

        def advance(n: int, note: str = "") -> None:
            progress.update(task, advance=n, description=f"{description}, {note}" if note else description)
            if idle:
                progress.refresh()

        yield advance


@contextmanager
def download_bar(name: str, show: bool) -> "Iterator[DownloadBar | None]":
    """A bar of bytes in the form that pooch wants, if it is to be shown."""
    if not show:
        yield None
        return
    from rich.progress import DownloadColumn

    with _progress(DownloadColumn()) as progress:
        yield DownloadBar(progress, name)


def _progress(amount: Any, refresh: bool = True) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), auto_refresh=refresh)


class DownloadBar:
    """What pooch calls while it downloads."""

    def __init__(self, progress: Any, name: str):
        self._progress = progress
        self._task = progress.add_task(name, total=None)
        self._total: int | None = None

    @property
    def total(self) -> int | None:
        """The number of bytes to come, once it is known; pooch sets it."""
        return self._total

    @total.setter
    def total(self, value: int) -> None:
        self._total = value
        self._progress.update(self._task, total=value)

    def update(self, amount: int) -> None:
        """So many bytes have come since the last call."""
        self._progress.update(self._task, advance=amount)

    def reset(self) -> None:
        """Back to the start: pooch calls this before the last update."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """The end of the download; the bar goes when its context is left."""
