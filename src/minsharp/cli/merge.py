"""Results of parts of the data, added up: what ``minsharp merge`` does."""

from pathlib import Path
from typing import Any

from ..errors import InputError
from ..results.curvature import Diagonal, Trace
from ..results.files import loaded
from ..results.gram import Grams
from .output import console, note, print_json


def merged(files: list[Path], out: Path | None, *, as_json: bool) -> None:
    """Print the sum, and save it where that is asked for."""
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
