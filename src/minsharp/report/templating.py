"""Templates in which text is text: whatever a value holds is escaped, and what a browser would obey is spelled out."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..text import printable_lines

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **context: Any) -> str:
    """A template of `report/templates`, filled in."""
    return environment().get_template(template).render(context)


@cache
def environment() -> "Environment":
    """Where templates are compiled; jinja2 is loaded when a page is written."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("minsharp.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"place": place, "shown": _attributes}
    return made


def asset(name: str) -> str:
    """A style sheet or a script of ours, as markup."""
    from markupsafe import Markup

    return Markup(files("minsharp.report").joinpath("templates", name).read_text(encoding="utf-8"))


def _shown(value: Any) -> Any:
    """What is put in place of an expression: markup as it is, anything else as text that is then escaped."""
    from markupsafe import Markup

    return value if isinstance(value, Markup) else printable_lines(value)


def place(value: float) -> str:
    """A coordinate, to the hundredth of a pixel.

    >>> place(62.0), place(1.23456)
    ('62', '1.23')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _attributes(given: Mapping[str, str | float]) -> dict[str, str]:
    """Attributes of an element as text, which `xmlattr` escapes."""
    return {name: place(v) if isinstance(v, float) else printable_lines(v) for name, v in given.items()}
