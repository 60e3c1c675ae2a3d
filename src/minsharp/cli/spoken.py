"""What errors and warnings of the library say of its arguments, in the options of the command that runs.

The library writes ``class_axis=-1``; who typed ``minsharp measure`` is told ``--class-axis -1``.
"""

import re
import shlex
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

_VALUE = r"""
    "[^"]*" | '[^']*' | \[[^\]]*\] | \([^)]*\)
    | True | False | None | [-+]?(?:nan|inf)\b | [-+]?\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?
"""
_ARGUMENT = re.compile(rf"(?<![\w.])(?P<name>[a-z_]+)=(?P<value>{_VALUE})", re.VERBOSE)
_LABELS = (
    ("pass data=(inputs, targets)", "the file of --data has to hold y (or labels) beside x"),
    ("Pass data=(inputs, targets)", "The file of --data has to hold y (or labels) beside x"),
)
_MISSING = object()


class Option(NamedTuple):
    """An option of a command: its flag, the type of what it takes, and whether it may be repeated."""

    flag: str
    kind: Any
    repeated: bool

    def of(self, value: Any) -> str | None:
        """The words that pass a value; none if the option does not take it."""
        if self.kind is bool:
            return self.flag if value is True else None
        values = value if isinstance(value, list | tuple) else [value]
        if value is None or isinstance(value, bool) or not values or not all(map(self._takes, values)):
            return None
        if len(values) > 1 and not self.repeated:
            values = [",".join(map(str, values))]
        return " ".join(f"{self.flag} {shlex.quote(str(v))}" for v in values)

    def _takes(self, value: Any) -> bool:
        return not (isinstance(self.kind, type) and issubclass(self.kind, StrEnum)) or value in [*self.kind]


def options_of(arguments: Sequence[str], app: typer.Typer) -> dict[str, Option]:
    """The options of the command that some words of a command line call, by the names that they have in Python."""
    for word in arguments:
        for group in app.registered_groups:
            if group.typer_instance is not None and word == (group.name or group.typer_instance.info.name):
                return options_of(arguments[arguments.index(word) + 1 :], group.typer_instance)
        for command in app.registered_commands:
            if command.callback is not None and word == (command.name or command.callback.__name__.replace("_", "-")):
                return options_of_command(command.callback)
    return {}


def options_of_command(command: Callable[..., Any]) -> dict[str, Option]:
    """The options of one command, by the names that they have in Python."""
    found: dict[str, Option] = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        kind, *more = get_args(hint) or (hint,)
        if any(isinstance(info, OptionInfo) for info in more):
            info = next(info for info in more if isinstance(info, OptionInfo))
            kinds = [k for k in get_args(kind) if k is not NoneType] if isinstance(kind, UnionType) else [kind]
            repeated = get_origin(kinds[0]) is list
            kind = get_args(kinds[0])[0] if repeated else kinds[0]
            told = [str(d) for d in (info.default, *(info.param_decls or ())) if str(d).startswith("--")]
            for flag in told or [f"--{name.replace('_', '-')}"]:  # in an annotation the first of them is the default
                found[flag.removeprefix("--").replace("-", "_")] = Option(flag, kind, repeated)
    return found


def spoken(text: str, options: Mapping[str, Option]) -> str:
    """A message with the arguments that a command has as options written as such; the rest as it is.

    >>> spoken('ask for tolerance=0.01, or curvature="ggn"', {"tolerance": Option("--tolerance", float, False)})
    'ask for --tolerance 0.01, or curvature="ggn"'
    """
    for library, option_of_it in _LABELS if "data" in options else ():
        text = text.replace(library, option_of_it)

    def option(found: re.Match[str]) -> str:
        known, value = options.get(found["name"]), _literal(found["value"])
        if known is None or value is _MISSING or _in_call(text[: found.start()]):
            return found[0]
        return known.of(value) or found[0]

    return _ARGUMENT.sub(option, text)


def _literal(text: str) -> Any:
    """The value that Python reads; none where it reads no plain one."""
    if text.lstrip("+-") in ("nan", "inf"):
        return text
    try:
        return literal_eval(text)
    except (ValueError, SyntaxError):
        return _MISSING


def _in_call(before: str) -> bool:
    """Whether this stands among the arguments of a call, such as f(x, scope="neuron")."""
    opened = 0
    for place in range(len(before) - 1, -1, -1):
        opened += {")": 1, "(": -1}.get(before[place], 0)
        if opened < 0:
            return place > 0 and (before[place - 1].isalnum() or before[place - 1] == "_")
    return False
