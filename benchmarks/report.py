"""Tables, for the terminal and for markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table as RichTable

from minsharp.files import write_text
from minsharp.text import markdown_table
from minsharp.text.terminal import rich_table

END = "<!-- end -->"
ESTIMATES, PAGE = Path("docs/estimates.md"), Path("docs/performance.md")
"""Several programs write sections of the latter: `benchmarks.run` begins it, the others put theirs in their places."""


def put(page: Path, sections: Sequence[str], where: str) -> None:
    """Write sections into a page: each takes the place of the one with its heading, or goes to the end.

    Each ends with where it was measured, and with what: the page has sections of several programs and days.
    """
    head, found = _parts(page.read_text() if page.exists() else "")
    new = dict(_titled(f"{section.strip()}\n\n{where}") for section in sections)
    write_text(page, "\n\n".join([head, *(found | new).values()]).strip() + "\n")


def others(page: Path, text: str) -> str:
    """A new text for a page, with the sections that the old one has and the new has not after it."""
    kept = _parts(page.read_text() if page.exists() else "")[1]
    mine = _parts(text)[1]
    return "\n\n".join([text.strip(), *(body for title, body in kept.items() if title not in mine)]) + "\n"


def begin(program: str) -> str:
    """The mark in a page where the words of a program begin; they go on until the next end."""
    return f"<!-- made by python -m {program} -->"


def within(page: Path, program: str, text: str) -> None:
    """Write a text into a page, between the mark of its program and the end."""
    head, rest = page.read_text().split(begin(program))
    tail = rest.split(END, 1)[1]
    write_text(page, f"{head}{begin(program)}\n\n{text}\n\n{END}{tail}")


def _parts(text: str) -> tuple[str, dict[str, str]]:
    """What stands before the first heading, and the sections by heading."""
    head, *rest = f"\n{text}".split("\n## ")
    return head.strip(), dict(_titled(f"## {body.strip()}") for body in rest)


def _titled(section: str) -> tuple[str, str]:
    return section.split("\n")[0], section


@dataclass(frozen=True)
class Table:
    """A heading, a paragraph on how its numbers came about, and rows of text."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table with its heading and paragraph."""
        return f"## {self.title}\n\n{self.body()}"

    def body(self) -> str:
        """The paragraph and the table, for a page that has a heading of its own."""
        return f"{self.note}\n\n{markdown_table(self.columns, self.rows)}"

    def rich(self) -> RichTable:
        """The table for the terminal."""
        return rich_table(self.title, self.columns, self.rows)
