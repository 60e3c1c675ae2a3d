"""The pages of the documentation, and what stands between their fences."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```\s*$", flags=re.S | re.M)


class Block(NamedTuple):
    """A block between fences: its language, a title in the same line, and the text."""

    language: str
    title: str
    text: str


def name(page: Path) -> str:
    """A page as people call it: README.md, docs/start.md."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    found = []
    for match in _FENCE.finditer(page.read_text()):
        language, _, rest = match["info"].partition(" ")
        title = re.fullmatch(r'title="(.*)"', rest)
        found.append(Block(language, title[1] if title else "", match["text"]))
    return found


def commands(page: Path) -> list[str]:
    """Every ``minsharp ...`` of a page: in blocks without a language, indented, and within a text."""
    text = page.read_text()
    shown = [block.text.replace("\\\n", " ") for block in blocks(page) if not block.language]
    found = [line for block in shown for line in block.splitlines()]
    prose = _FENCE.sub("", text)
    found += [line.strip() for line in re.findall(r"^ {4}minsharp .*$", prose, flags=re.M)]
    found += [re.sub(r"\s+", " ", span) for span in re.findall(r"`(minsharp [^`]*)`", prose)]
    return [line for line in found if re.match(r"minsharp [a-z]+ .*--", line) and "..." not in line]


def prose(page: Path) -> str:
    """A page without its blocks and spans of code."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text()))
