"""What is large: a language model with 32,000 words, and the neuron minimum of a network of ResNet-50's size.

`python -m benchmarks.large` prints a table, each line measured in a process of its own, and writes it into
docs/estimates.md and docs/performance.md; `python -m benchmarks.large words`, `hessian`, `neurons` prints a single one.
Peaks are those of resident memory: of the whole process for the language model, beyond what is held with the diagonal
for the minimum.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

import minsharp as ms
from minsharp.text import count, duration, magnitude, number, percent

from .decoder import Decoder
from .fresh import MEGABYTE, memory, peak_growth
from .machine import machine
from .report import ESTIMATES, PAGE, Table, put, within

VOCABULARY, LENGTH, WIDTH, LAYERS, SENTENCES, TOLERANCE = 32_000, 128, 256, 4, 8, 0.02
GIGABYTES = {"words": 3.0, "hessian": 3.0, "neurons": 1.0}
SECONDS = {"neurons": 30.0}


class Bottleneck(nn.Module):
    """Three convolutions around a skip connection: narrow, 3 x 3, four times as wide again."""

    def __init__(self, into: int, width: int, stride: int):
        super().__init__()
        sizes = ((into, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        layers: list[nn.Module] = []
        for a, b, kernel, step in sizes:
            layers += [nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])
        self.skip = nn.Sequential()
        if into != 4 * width:
            self.skip = nn.Sequential(nn.Conv2d(into, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        """Body, skip, bend."""
        return torch.relu(self.body(x) + self.skip(x))


def resnet50(classes: int = 1000) -> nn.Module:
    """As published: 25.6 million weights."""
    blocks: list[nn.Module] = []
    into = 64
    for width, deep in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(deep):
            blocks.append(Bottleneck(into, width, 2 if i == 0 and width > 64 else 1))
            into = 4 * width
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, classes))


def language(curvature: Any) -> dict[str, Any]:
    """Peak and seconds of a trace to two per cent, random words."""
    torch.manual_seed(0)
    model = Decoder(VOCABULARY, WIDTH, LAYERS, LENGTH).eval()
    x, y = torch.randint(VOCABULARY, (2, SENTENCES, LENGTH))
    start = perf_counter()
    found = ms.hessian_trace(model, (x, y), curvature=curvature, tolerance=TOLERANCE, class_axis=-1)
    seconds = perf_counter() - start
    logits = SENTENCES * LENGTH * VOCABULARY * 4
    error = found.standard_error / abs(found.total)
    note = (
        f"trace {number(found.total)} ± {percent(error, 2)}; logits of all sentences: {magnitude(logits / MEGABYTE)} MB"
    )
    weights = sum(p.numel() for p in model.parameters())
    return {
        "weights": weights,
        "seconds": seconds,
        "peak": memory("VmHWM") / MEGABYTE,
        "note": note,
        "met": error <= TOLERANCE,
    }


def neurons() -> dict[str, Any]:
    """Peak and seconds of the minimum, from a model and its diagonal: reading, the group and the program."""
    torch.manual_seed(0)
    model, x = resnet50().eval(), torch.randn(4, 3, 64, 64)
    diagonal = ms.hessian_diagonal(model, x, tolerance=0.1)
    found: list[Any] = []
    seconds: list[float] = []

    def run() -> None:
        start = perf_counter()
        found.append(ms.minimum_sharpness(model, diagonal, scope="neuron"))
        seconds.append(perf_counter() - start)

    peak = peak_growth(run)
    result = found[0]
    gap = 1 - result.lower_bound / result.value
    note = f"trace {number(result.trace)}, minimum {number(result.value)}, gap {magnitude(gap)}, {result.status}"
    weights = sum(p.numel() for p in model.parameters())
    return {"weights": weights, "seconds": seconds[0], "peak": peak, "note": note, "met": bool(gap < 1e-3)}


TASKS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "words": ("language model, Gauss-Newton trace", lambda: language("ggn")),
    "hessian": ("language model, trace of the true Hessian", lambda: language("hessian")),
    "neurons": ("ResNet-50, neuron minimum", neurons),
}


def asked(task: str) -> dict[str, Any]:
    """What a task comes to in a new process."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.large", "--here", task]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def line(task: str, found: dict[str, Any]) -> list[str]:
    """As text."""
    bound, allowed = GIGABYTES[task], SECONDS.get(task)
    met = found["met"] and found["peak"] <= 1024 * bound and (allowed is None or found["seconds"] <= allowed)
    target = f"{bound:g} GB" + ("" if allowed is None else f", {allowed:g} s")
    cells = [
        duration(found["seconds"]),
        f"{found['peak'] / 1024:.2f} GB",
        target,
        "yes" if met else "NO",
        found["note"],
    ]
    return [TASKS[task][0], count(found["weights"]), *cells]


def table(tasks: list[str]) -> Table:
    """A line for each task."""
    note = (
        f"{count(VOCABULARY)} words, {LENGTH} positions, width {WIDTH}, {LAYERS} blocks, {SENTENCES} sentences, "
        f"tolerance={TOLERANCE:g}; {torch.get_num_threads()} threads. Peaks: resident memory of the whole process, "
        "with torch; for the minimum what is added to model and diagonal, reading and finding the group included."
    )
    columns = ["", "weights", "time", "peak", "target", "met", "found"]
    return Table("What is large", note, columns, [line(task, asked(task)) for task in tasks])


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__)
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--here", choices=TASKS, help="in this process, as one line of JSON")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(TASKS[options.here][1]()))
        return
    where = machine()
    found = table(options.tasks)
    console = Console(width=190)
    console.print(found.rich())
    console.print(found.note)
    console.print(where)
    if set(options.tasks) == set(TASKS):
        within(ESTIMATES, "benchmarks.large", f"{found.body()}\n\n{where}")
        put(PAGE, [found.markdown()], where)


if __name__ == "__main__":
    main()
