"""HTML in which text is text: what is not markup by type is escaped."""

from html import escape
from typing import Any

from ..text import printable_lines


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def el(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """An element; children that are not `Markup` are escaped, None is left out.

    Attributes are named as in HTML, with ``_`` for ``-`` (``class_`` for ``class``); True makes one without a value.

    >>> el("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    given = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in ("meta", "line", "path", "rect", "circle", "br") and not children:
        return Markup(f"<{name}{given}>" if name in ("meta", "br") else f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")


def _attribute(key: str, value: Any) -> str:
    key = key.rstrip("_").replace("_", "-").replace("viewbox", "viewBox")
    if isinstance(value, float):
        value = f"{value:.2f}".rstrip("0").rstrip(".")
    return f" {key}" if value is True else f' {key}="{escape(printable_lines(value))}"'


def join(*children: Any) -> Markup:
    """Children one after another."""
    return Markup(
        "".join(c if isinstance(c, Markup) else escape(printable_lines(c)) for c in children if c is not None)
    )


def table(
    caption: str, columns: list[str], rows: list[list[Any]], *, total: bool = False, words: bool = False
) -> Markup:
    """A table with a caption; the first cell of each row is its heading.

    ``total`` sets the last row apart; ``words`` sets the cells as text, not as numbers.
    """
    head = el("thead", el("tr", *(el("th", c, scope="col") for c in columns)))
    lines = [el("tr", el("th", row[0], scope="row"), *(el("td", cell) for cell in row[1:])) for row in rows]
    foot = el("tfoot", lines.pop()) if total and lines else None
    body = el("table", el("caption", caption), head, el("tbody", *lines), foot, class_="words" if words else None)
    return el("div", body, class_="scroll", role="region", aria_label=caption, tabindex="0")
