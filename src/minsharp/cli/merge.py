"""``minsharp merge``: results of parts of the data, added up."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..files import check_writable
from ..results.curvature import Diagonal, Trace
from ..results.files import loaded
from ..results.gram import Grams
from . import options
from .output import command, console, note, print_json

Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILES", help="Traces, diagonals or Gram matrices that were saved: .json or .safetensors."),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Also save the sum: .json or .safetensors.")]


@command
def merge(files: Files, out: Out = None, as_json: options.Json = False) -> None:
    """Add up curvature that was measured on parts of the data: the result for all of it.

    Results of different networks, losses or parameters are refused.

    Example:

        minsharp merge first.json second.json --out whole.json
    """
    if out is not None:
        check_writable(out, (".json", ".safetensors"))
    total = added(files)
    if as_json:
        print_json(total.to_dict())
    else:
        console().print(repr(total), markup=False)
    if out is not None:
        total.save(out)
        note(f"wrote {out}")


def added(files: list[Path]) -> Trace | Diagonal | Grams:
    """The sum of the results in some files."""
    twice = [path for i, path in enumerate(files) if path.resolve() in [p.resolve() for p in files[:i]]]
    if twice:
        raise InputError(f"'{twice[0]}' is given twice: its samples would count twice")
    total: Any = 0
    for path in files:
        held: Any = loaded(path)
        if not isinstance(held, Trace | Diagonal | Grams):
            raise InputError(f"'{path}' holds a {type(held).__name__}: only traces, diagonals and Gram matrices add up")
        try:
            total = held if total == 0 else total + held
        except InputError as error:
            raise InputError(f"'{path}' does not belong to '{files[0]}': {error}") from None
    return total
