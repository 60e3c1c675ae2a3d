"""``minsharp demo``: two minutes on what minsharp is for."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the report and figures go.")] = Path(
        "minsharp-demo"
    ),
) -> None:
    """Tell three stories, on handwritten digits: a trace that is fooled, an error bar, a network rounded better.

    Example:

        minsharp demo --out minsharp-demo
    """
    from ...demo import run

    run(out)
