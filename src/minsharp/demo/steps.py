"""Where the demo is, on stderr; and one thread for networks this small."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from ..progress import bar

Within = Callable[[float], None]
"""What a step calls with the share of it that is done."""


class Steps:
    """Where the demo is, on stderr: a bar with the time left on a terminal, a line per step elsewhere."""

    def __init__(self, shares: Sequence[int], line: Callable[[str], None], advance: Callable[..., None]):
        self.shares, self.line, self.advance = shares, line, advance
        self.step, self.done, self.title = 0, 0.0, ""

    def __call__(self, title: str) -> None:
        """The next step begins."""
        self.within(1.0)
        self.step += 1
        self.title = f"[{self.step}/{len(self.shares)}] {title}"
        self._say(self.title)

    def detail(self, text: str) -> None:
        """What is going on inside a step."""
        self._say(f"{self.title}, {text}")

    def within(self, share: float) -> None:
        """So much of the step is done, from 0 to 1."""
        if self.step:
            reached = sum(self.shares[: self.step - 1]) + share * self.shares[self.step - 1]
            self.advance(reached - self.done, self.title)
            self.done = reached

    def _say(self, text: str) -> None:
        self.line(text)
        self.advance(0, text)


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
def steps(shares: Sequence[int]) -> Iterator[Steps]:
    """Steps that are shown while they last; of each, its share of the time of all."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    seen = console.is_terminal
    with bar("demo", sum(shares), seen) as advance:
        line = (lambda text: None) if seen else lambda text: console.print(text, markup=False, soft_wrap=True)
        found = Steps(shares, line, advance)
        yield found
        found.within(1.0)
