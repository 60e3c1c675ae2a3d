"""Write docs/command-line.md from the commands as they are: every argument and option, with its default and its help.

`python -m tools.command_line` writes it; `tests/docs/test_pages.py` fails where the page is no longer what this makes.
"""

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer.main

from minsharp.cli.app import app
from minsharp.text import markdown_table

PAGE = Path(__file__).parents[1] / "docs" / "command-line.md"

_HEAD = """\
# Command line

Every command and every option. `minsharp COMMAND --help` says the same in a terminal; `minsharp --install-completion`
teaches the shell names of commands, options, files and data sets.

Results go to stdout, progress and errors to stderr; `--json` prints JSON and nothing else. A command leaves with 0,
with 1 where something was measured and failed (not exact, not finite, a claim that does not hold), with 2 where it was
called wrongly, with 130 where it was interrupted. `MINSHARP_TRACEBACK=1` shows where an error came from.

How to say which network and which data: [Your own model](models.md). `python -m tools.command_line` writes this page.
"""


def page() -> str:
    """The page, whole."""
    root = typer.main.get_command(app)
    sections = [text for name, command in _commands(root, "minsharp") for text in _section(name, command)]
    return "\n\n".join((_HEAD.rstrip(), *sections)) + "\n"


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command with its whole name, groups before their commands."""
    for key, command in group.commands.items():
        if command.hidden:
            continue
        yield f"{name} {key}", command
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {key}")


def _section(name: str, command: Any) -> Iterator[str]:
    level = "#" * name.count(" ")
    yield f"#{level} {name.removeprefix('minsharp ')}"
    yield from _help(command.help or "")
    shown = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
    if hasattr(command, "commands"):
        yield f"`{name} COMMAND`, one of {', '.join(f'`{key}`' for key in command.commands)}."
        return
    arguments = [p for p in shown if p.param_type_name == "argument"]
    yield f"`{' '.join((name, *map(_argument, arguments)))}{' [OPTIONS]' if len(arguments) < len(shown) else ''}`"
    rows = [_row(p) for p in shown]
    if rows:
        yield markdown_table(("argument or option", "default", "what it is"), rows, text=3)


def _help(text: str) -> Iterator[str]:
    """Paragraphs; examples, which are indented, as code."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text.replace("\b", ""))):
        if paragraph.startswith("    "):
            lines = re.sub(r"\n(?!minsharp )", r" \\\n    ", inspect.cleandoc(paragraph).strip())
            yield f"```\n{lines}\n```"
        else:
            yield _escaped(" ".join(paragraph.split()))


def _argument(parameter: Any) -> str:
    shown = parameter.metavar or parameter.name.upper()
    return f"{shown}..." if parameter.nargs == -1 else shown


def _row(parameter: Any) -> tuple[str, str, str]:
    if parameter.param_type_name == "argument":
        return f"`{_argument(parameter)}`", "", _escaped(parameter.help or "")
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    value = "" if parameter.is_flag else f" `{_value(parameter)}`"
    return f"{names}{value}", _default(parameter), _escaped(parameter.help or "")


def _value(parameter: Any) -> str:
    """What the option takes; a slash between choices, since a bar would end the cell."""
    annotation = parameter.type_descriptor.annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " / ".join(str(choice.value) for choice in annotation)
    name = getattr(annotation, "__name__", "text")
    return (parameter.metavar or {"str": "TEXT", "Path": "PATH", "int": "N"}.get(name, "X")).replace("|", " / ")


def _default(parameter: Any) -> str:
    """The default, where it is not nothing and the help does not tell it."""
    found = parameter.default
    if parameter.required:
        return "required"
    if found is None or found is False or callable(found) or found in ("", ()) or parameter.is_flag:
        return ""
    return f"`{getattr(found, 'value', found)}`"


def _escaped(text: str) -> str:
    """Text of a cell: no bars, no brackets that would be links, names with an asterisk as they are."""
    return re.sub(r"([|\[\]*_<>])", r"\\\1", " ".join(text.split()))


if __name__ == "__main__":
    PAGE.write_text(page())
