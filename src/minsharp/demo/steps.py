"""Where the demo is, on stderr; and one thread for networks this small."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class Steps:
    """Where the demo is, on stderr: a spinner on a terminal, a line per step elsewhere."""

    def __init__(self, total: int, show: Callable[[str], None]):
        self.total, self.done, self.show, self.title = total, 0, show, ""

    def __call__(self, title: str) -> None:
        """The next step begins."""
        self.done += 1
        self.title = f"[{self.done}/{self.total}] {title}"
        self.show(self.title)

    def detail(self, text: str) -> None:
        """What is going on inside a step."""
        self.show(f"{self.title}, {text}")


@contextmanager
def one_thread() -> Iterator[None]:
    """Networks this small gain nothing from more, and wait for each other where the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def steps(total: int) -> Iterator[Steps]:
    """Steps that are shown while they last."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield Steps(total, lambda text: console.print(text, markup=False, soft_wrap=True))
        return
    with console.status("") as status:
        yield Steps(total, lambda text: status.update(text.replace("[", "\\[", 1)))
