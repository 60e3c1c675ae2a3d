"""``minsharp demo``: two minutes on what minsharp is for."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the report and figures go.")] = Path(
        "minsharp-demo"
    ),
) -> None:
    """Train small networks on handwritten digits, fool the trace, and find the flattest equivalent network.

    Example:

        minsharp demo --out minsharp-demo
    """
    from ...demo import run

    run(out)
