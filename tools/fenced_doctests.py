"""For the docs: doctests in docstrings as blocks of code."""

import re
from typing import Any

import griffe

SESSION = re.compile(r"(?:^[ ]*>>> .*\n?(?:^(?![ ]*$).*\n?)*)+", flags=re.M)
"""Lines from a prompt to the next empty line."""


class FencedDoctests(griffe.Extension):
    """Puts every doctest between fences."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each function, class and module that griffe has read."""
        if obj.docstring is not None:
            obj.docstring.value = SESSION.sub(lambda m: f"```pycon\n{m[0].rstrip()}\n```\n", obj.docstring.value)
