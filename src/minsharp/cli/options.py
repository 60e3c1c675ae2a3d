"""The arguments and options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from .names import DATA, IMAGES_TO_TRAIN_ON, WEIGHTS


class Loss(StrEnum):
    """The criterion, by the name that `minsharp.cli.sources.LOSSES` knows it by."""

    CROSS_ENTROPY = "cross-entropy"
    NEXT_TOKEN = "next-token"
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
    MARGIN = "margin"


class Noise(StrEnum):
    """How the noise of the hardware grows with the weights."""

    ABSOLUTE = "absolute"
    RELATIVE = "relative"
    MAX = "max"
    MAX_PER_CHANNEL = "max-per-channel"


class Rounding(StrEnum):
    """What shares one scale where weights are rounded."""

    MAX = "max"
    MAX_PER_CHANNEL = "max-per-channel"


class Per(StrEnum):
    """What gets bits of its own."""

    TENSOR = "tensor"
    CHANNEL = "channel"


class Costs(StrEnum):
    """What the cost of bits is predicted from."""

    CURVATURE = "curvature"
    MEASURED = "measured"
    BOTH = "both"


class Biases(StrEnum):
    """How biases are treated by the hardware."""

    EXACT = "exact"
    NOISY = "noisy"


class ExecutorName(StrEnum):
    """What runs the cells of an experiment."""

    LOCAL = "local"
    RAY = "ray"


def _models(incomplete: str) -> list[str]:
    """Files that a model may be in, for the shell's completion."""
    return _files(incomplete, (".pt2",))


def _data(incomplete: str) -> list[str]:
    """Data sets by name, and files that hold data."""
    return [name for name in DATA if name.startswith(incomplete)] + _files(incomplete, (".npz", ".safetensors"))


def _weights(incomplete: str) -> list[str]:
    return _files(incomplete, WEIGHTS)


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
        help="A .pt2 file (torch.export.save, with a free batch size), or package.module:name, the network or a "
        "callable that returns it; the current folder is on the path.",
        autocompletion=_models,
        show_default=False,
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Option(
        "--arg",
        metavar="NAME=VALUE",
        help="An argument of the factory; may be repeated. A Python literal where it is one (10, False, [2, 2]), else "
        "text.",
    ),
]
Outputs = Annotated[
    str | None,
    typer.Option(
        "--outputs",
        metavar="NAME|INDEX",
        help="Which of what the model returns is measured. (default: the tensor that it returns, or its logits)",
    ),
]
ClassAxis = Annotated[
    int | None,
    typer.Option(
        "--class-axis",
        metavar="AXIS",
        help="The axis of the outputs that runs over the classes, where targets do not tell: -1 for language models.",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="The weights to load: .safetensors, or a checkpoint of torch.save (.pt, .pth, .th, .ckpt, .bin, .tar), in "
        "which they are found. Never unpickled with code in it.",
        autocompletion=_weights,
    ),
]
WeightsKey = Annotated[
    str | None,
    typer.Option(
        "--weights-key",
        metavar="KEY",
        help="Which weights of a checkpoint, where several fit: keys, and what their names begin with, with slashes "
        "between them: ema, or state_dict/student.",
    ),
]
Fold = Annotated[
    bool,
    typer.Option("--fold-batchnorm", help="Fold BatchNorm into the layers before it first, as hardware has it."),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="DATA",
        help="digits, mnist, fashion-mnist or cifar-10 (their training images); a folder of images, one folder for "
        "each class; or an .npz or .safetensors file that holds x and, optionally, y (or labels). Several inputs: x0, "
        "x1, ... or the names of forward's arguments.",
        autocompletion=_data,
        show_default=False,
    ),
]
Images = Annotated[
    list[str] | None,
    typer.Option(
        "--image",
        metavar="NAME=VALUE",
        help="What is done to images; may be repeated: resize=256 (the shorter side, or 256x320), crop=224, "
        "mean=0.485,0.456,0.406 and std=0.229,0.224,0.225 (or imagenet) of pixels from 0 to 1, channels=1, "
        "interpolation=bicubic. Of data with a name: mean and std. (default: a folder's pixels from 0 to 1, others' "
        "from -1 to 1)",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        help="Where the files, or the archive, of a named data set are. (default: cache, else download)",
    ),
]
Samples = Annotated[
    int | None,
    typer.Option("--samples", min=1, metavar="N", help="Use the first N samples, of a folder N evenly spread ones."),
]
BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, metavar="N", help="Samples per batch; the results do not depend on it."),
]
LossOption = Annotated[
    Loss,
    typer.Option(
        "--loss",
        help="The criterion. next-token is that of causal language models: it shifts the labels, which are the tokens.",
    ),
]
CurvatureOption = Annotated[
    Curvature,
    typer.Option(
        "--curvature",
        help="hessian needs a --tolerance where it is not exact; ggn is for every network; margin needs no loss.",
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(
        "--tolerance",
        metavar="ERROR",
        help="Estimate to this relative standard error, as in 0.01, and stop when it is met: for many classes, and for "
        "the Hessian of smooth networks. (default: 0, exact)",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Of the draws behind an estimate.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--parameters", metavar="PATTERN", help="Measure only parameters that match; may be repeated."),
]
ReportFile = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.html", help="Also write a report: one HTML file that needs no network."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]


def in_panel(panel: str, *options: Any) -> None:
    """Show some options together in the help."""
    for option in options:
        get_args(option)[1].rich_help_panel = panel


MEASURED, RESULTS = "What is measured", "What comes out"
in_panel("The model", Arguments, Outputs, ClassAxis, Weights, WeightsKey, Fold)
in_panel("The data", Data, Images, DataDir, Samples, BatchSize)
in_panel(MEASURED, LossOption, CurvatureOption, Tolerance, Seed, Parameters)
in_panel(RESULTS, ReportFile, Json)

# The experiments'

Out = Annotated[Path | None, typer.Option(help="Folder for the results. (default: results/ and what is run)")]
Workers = Annotated[int | None, typer.Option(help="Worker processes. (default: one per core)", min=1)]
ExecutorOption = Annotated[ExecutorName, typer.Option("--executor", help="Processes of this machine, or tasks of Ray.")]
Address = Annotated[
    str | None, typer.Option(help="The Ray cluster, as in ray://host:10001 or auto. (default: one is started here)")
]
Force = Annotated[bool, typer.Option("--force", help="Throw away what the folder holds, and run everything.")]
Seeds = Annotated[str | None, typer.Option(help="How many seeds, or which: '10', '3-5', '1,3,5'.")]
Device = Annotated[str, typer.Option(help="A torch device.")]
DataName = Annotated[
    str,
    typer.Option(
        help="digits, mnist or fashion-mnist.",
        autocompletion=lambda incomplete: [name for name in IMAGES_TO_TRAIN_ON if name.startswith(incomplete)],
    ),
]
Models = Annotated[str | None, typer.Option(help="Only these networks, with commas between them.")]
SampleCounts = Annotated[str, typer.Option(help="Numbers of samples, with commas between them.")]
