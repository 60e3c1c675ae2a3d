"""Where in the arguments of a call a tensor goes in."""

from typing import NamedTuple


class Slot(NamedTuple):
    """An argument, or one place in an argument that is a list."""

    argument: str
    place: int | None = None

    def __str__(self) -> str:
        return self.argument if self.place is None else f"{self.argument}[{self.place}]"
