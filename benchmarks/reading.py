"""What reading a network costs beside torch.export alone, on ten networks of timm.

`python -m benchmarks.reading` prints a table, and puts it into docs/performance.md. It runs in the environment
of `make test-integrations`:

    .integrations-venv/bin/python -m benchmarks.reading
"""

import argparse
import warnings
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import tests.integrations  # noqa: F401, what timm needs before it is imported
import timm
import torch
from rich.console import Console
from torch import Tensor, nn

import minsharp as ms
from minsharp.text import duration, times

from .machine import machine
from .report import PAGE, Table, put

MODELS = {
    "resnet18": 64,
    "resnet50": 64,
    "vgg11": 32,
    "mobilenetv3_small_100": 64,
    "efficientnet_b0": 64,
    "densenet121": 64,
    "convnext_tiny": 64,
    "vit_tiny_patch16_224": 224,
    "mixer_s32_224": 224,
    "regnety_002": 64,
}
"""Names, and the size of the images in pixels."""
TARGET = 1.5


def exported(model: nn.Module, x: Tensor) -> Any:
    """What torch.export makes of the model with the batch size left free: the part of reading that is not ours."""
    return torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False)


def seconds(run: Callable[[], Any]) -> float:
    """How long one call takes."""
    start = perf_counter()
    run()
    return perf_counter() - start


def row(name: str, pixels: int, rounds: int) -> tuple[str, float, float, float]:
    """One network: the number of its operations, and medians over rounds in which the two take turns."""
    torch.manual_seed(0)
    model, x = timm.create_model(name).eval(), torch.randn(2, 3, pixels, pixels)
    operations = len(ms.read(model, x).graph.operations)  # also loads what the first call in a process loads
    pairs = [(seconds(lambda: exported(model, x)), seconds(lambda: ms.read(model, x))) for _ in range(rounds)]
    alone, reading = (median(column) for column in zip(*pairs, strict=True))
    return f"{name}, {operations} operations", alone, reading, median(read / export for export, read in pairs)


def table(names: list[str], rounds: int) -> Table:
    """All networks, and whether the target is met."""
    rows = [row(name, MODELS[name], rounds) for name in names]
    lines = [
        [name, duration(alone), duration(reading), times(ratio), "yes" if ratio <= TARGET else "NO"]
        for name, alone, reading, ratio in rows
    ]
    note = (
        f"Medians of {rounds} rounds in one process; the ratio is the median of the rounds' ratios. What is left "
        "beside torch.export is mostly one forward and one backward pass of a sample, by the model and by what was "
        "read, to compare the two: VGG-11 has 133 million weights, whose gradients take longer than exporting its 31 "
        "operations."
    )
    columns = ["network", "torch.export", "ms.read", "ratio", f"at most {times(TARGET)}"]
    return Table("Reading networks of timm", note, columns, lines)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    where = machine("timm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export's own
        found = table(options.names, options.rounds)
    console = Console(width=120)
    console.print(found.rich())
    console.print(found.note)
    console.print(where)
    if set(options.names) == set(MODELS):
        put(PAGE, [found.markdown()], where)


if __name__ == "__main__":
    main()
