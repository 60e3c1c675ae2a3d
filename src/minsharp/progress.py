"""Progress bars, on the standard error stream."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(description: str, total: int | None, show: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar, if it is to be shown; yields what to call with the amount of work that was done."""
    if not show:
        yield lambda n: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=total)
        yield lambda n: progress.advance(task, n)
