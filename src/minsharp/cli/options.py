"""The arguments and options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Loss(StrEnum):
    """The criterion, by the name that `minsharp.cli.sources.LOSSES` knows it by."""

    CROSS_ENTROPY = "cross-entropy"
    BCE = "bce"
    MSE = "mse"


class Scope(StrEnum):
    """What is rescaled by one factor; in full, layers, with a matrix in every frame."""

    LAYER = "layer"
    NEURON = "neuron"
    FULL = "full"


class Curvature(StrEnum):
    """The matrix whose trace is taken."""

    HESSIAN = "hessian"
    GGN = "ggn"


def _models(incomplete: str) -> list[str]:
    """Files that a model may be in, for the shell's completion."""
    return _files(incomplete, (".pt2",))


def _data(incomplete: str) -> list[str]:
    """Data sets by name, and files that hold data."""
    from .sources import NAMED_DATA

    return [name for name in NAMED_DATA if name.startswith(incomplete)] + _files(incomplete, (".npz", ".safetensors"))


def _weights(incomplete: str) -> list[str]:
    return _files(incomplete, (".safetensors", ".pt", ".pth"))


def _files(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    head, slash, start = incomplete.rpartition("/")
    folder = Path(head + slash) if slash else Path()
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return []
    chosen = [p for p in found if p.name.startswith(start) and (p.suffix in suffixes or p.is_dir())]
    return [head + slash + p.name + ("/" if p.is_dir() else "") for p in chosen]


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A .pt2 file (torch.export.save, with a free batch size), or package.module:factory, a callable without "
        "arguments that returns the network; the current folder is on the path.",
        autocompletion=_models,
        show_default=False,
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="The weights to load: .safetensors, or a .pt/.pth state dict. Never unpickled with code in it.",
        autocompletion=_weights,
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="DATA",
        help="digits, mnist or fashion-mnist (their training images), or an .npz or .safetensors file that holds x "
        "and, optionally, y. Several inputs: x0, x1, ... or the names of forward's arguments.",
        autocompletion=_data,
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", metavar="FOLDER", help="Where the files of a named data set are. (default: cache, else download)"
    ),
]
Samples = Annotated[
    int | None, typer.Option("--samples", min=1, metavar="N", help="Use the first N samples instead of all of them.")
]
BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, metavar="N", help="Samples per batch; the results do not depend on it."),
]
LossOption = Annotated[Loss, typer.Option("--loss", help="The criterion.")]
CurvatureOption = Annotated[
    Curvature,
    typer.Option("--curvature", help="hessian refuses where its trace is not exact; ggn is for every network."),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--parameters", metavar="PATTERN", help="Measure only parameters that match; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]

# The experiments'

Out = Annotated[Path | None, typer.Option(help="Folder for the results. (default: results/ and what is run)")]
Workers = Annotated[int | None, typer.Option(help="Worker processes. (default: one per core)", min=1)]
Force = Annotated[bool, typer.Option("--force", help="Throw away what the folder holds, and run everything.")]
Seeds = Annotated[str | None, typer.Option(help="How many seeds, or which: '10', '3-5', '1,3,5'.")]
Device = Annotated[str, typer.Option(help="A torch device.")]
DataName = Annotated[str, typer.Option(help="digits, mnist or fashion-mnist.")]
Models = Annotated[str | None, typer.Option(help="Only these networks, with commas between them.")]
SampleCounts = Annotated[str, typer.Option(help="Numbers of samples, with commas between them.")]
