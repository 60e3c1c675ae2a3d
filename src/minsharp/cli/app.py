"""The commands, put together."""

from collections.abc import Callable
from typing import Annotated

import typer

from ..errors import InputError
from ..version import __version__
from . import team
from .commands.bench import bench
from .commands.bits import bits
from .commands.compare import compare
from .commands.demo import demo
from .commands.doctor import doctor
from .commands.flatten import flatten
from .commands.measure import measure
from .commands.merge import merge
from .reproduce import app as reproduce
from .reproduce import figures

app = typer.Typer(
    name="minsharp",
    help="How sharp is your minimum? Exact curvature, and the sharpness that no rescaling can fool.",
    epilog="To begin: minsharp demo, then minsharp measure model.pt2 --data digits. Every command has --help.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"minsharp {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """How sharp is your minimum? Exact curvature, and the sharpness that no rescaling can fool."""
    if team.launched() and context.invoked_subcommand not in team.SHARED:
        raise InputError(
            f"minsharp {context.invoked_subcommand} runs on one process: call it without torchrun. "
            f"On several run {', '.join(team.SHARED)}"
        )


FIRST, NETWORKS, EXPERIMENTS = "First steps", "Networks of your own", "The paper's experiments"
PANELS: dict[Callable[..., None], str] = {
    demo: FIRST,
    doctor: FIRST,
    bench: FIRST,
    measure: NETWORKS,
    compare: NETWORKS,
    flatten: NETWORKS,
    bits: NETWORKS,
    merge: NETWORKS,
    figures: EXPERIMENTS,
}
for command, panel in PANELS.items():
    app.command(rich_help_panel=panel)(command)
app.add_typer(reproduce, rich_help_panel=EXPERIMENTS)
