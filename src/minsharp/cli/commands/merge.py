"""``minsharp merge``: results of parts of the data, added up."""

from pathlib import Path
from typing import Annotated

import typer

from ...files import check_writable
from .. import options
from ..output import command

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
    from ..merge import merged

    merged(files, out, as_json=as_json)
