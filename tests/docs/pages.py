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
    """Every ``minsharp ...`` of a page: in blocks without a language, indented, and within a text; no placeholders."""
    found = [line for line in _lines(page) if line.startswith("minsharp ")]
    found += re.findall(r"`(minsharp [^`]*)`", _FENCE.sub("", page.read_text()))
    whole = dict.fromkeys(re.sub(r"\s+", " ", command) for command in found)
    return [line for line in whole if not re.search(r"\.\.\.|(?<![:\w])[A-Z]{3,}\b", line)]


def modules(page: Path) -> list[str]:
    """Every ``python -m ...`` of a page and every ``torchrun ...``, as far as the line or the span of code goes."""
    text = page.read_text()
    spans = re.findall(r"`((?:[\w./-]*python -m|torchrun) [^`]*)`", _FENCE.sub("", text))
    lines = re.findall(r"^(?: {4})?((?:[\w./-]*python -m|torchrun) .*)$", text, flags=re.M)
    return [*dict.fromkeys(re.sub(r"\s+", " ", command).strip() for command in (*spans, *lines))]


def _lines(page: Path) -> list[str]:
    """The lines of blocks without a language, and those that are indented."""
    shown = [block.text.replace("\\\n", " ") for block in blocks(page) if not block.language]
    indented = re.findall(r"^ {4}minsharp .*$", _FENCE.sub("", page.read_text()), flags=re.M)
    return [line.strip() for line in (*"\n".join(shown).splitlines(), *indented)]


def prose(page: Path) -> str:
    """A page without its blocks and spans of code."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text()))
