"""The commands, put together."""

import typer

app = typer.Typer(
    name="minsharp",
    help="How sharp is your minimum? Exact curvature, and the sharpness that no rescaling can fool.",
    no_args_is_help=True,
)


@app.callback()
def root() -> None:
    """How sharp is your minimum? Exact curvature, and the sharpness that no rescaling can fool."""
