"""Text from files and models, made fit to be shown: a name may hold anything."""

from typing import Any

_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | frozenset(
    map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))
)
"""What Python calls printable, and leaves no mark: fillers, blanks and variation selectors."""
_FORMULA = tuple("=+-@\t\r＝＋－＠")  # noqa: RUF001


def printable(text: object) -> str:
    """On one line, without what a terminal obeys, turns around or hides: those characters are spelled out.

    >>> printable("evil\\x1b[31m\\u202e")
    'evil\\\\x1b[31m\\\\u202e'
    """
    text = str(text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() and c not in _UNSEEN else _spelled(c) for c in text)


def _spelled(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def printable_lines(text: object) -> str:
    """The same, with its line breaks kept.

    >>> printable_lines("one\\x07\\ntwo")
    'one\\\\x07\\ntwo'
    """
    return "\n".join(map(printable, str(text).split("\n")))


def csv_cell(value: Any) -> Any:
    """A cell of a CSV file: text that a spreadsheet would take for a formula is quoted; numbers stay numbers.

    >>> csv_cell("=1+1"), csv_cell("-x"), csv_cell(-1.5), csv_cell("-1.5")
    ("'=1+1", "'-x", -1.5, '-1.5')
    """
    if not isinstance(value, str):
        return value
    starts = value.lstrip(" \u00a0").startswith(_FORMULA)
    return ("'" if starts and not _is_number(value) else "") + printable_lines(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
