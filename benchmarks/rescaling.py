"""What minimum sharpness costs once the curvature is known, and what the flattest network is good for.

Prints, and writes to docs/rescaling.md: the time of the solver, and accuracy under weight noise on the digits.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from math import hypot
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

import minsharp as ms
from minsharp.files import write_text
from minsharp.measures.program import curvatures, program
from minsharp.measures.robustness import NoiseLevel
from minsharp.network.walk import Walk
from minsharp.solve.geometric import minimise
from minsharp.text import count, duration, magnitude, number

from .machine import machine
from .report import Table

PAGE = Path("docs/rescaling.md")
INTRODUCTION = """# Rescaling: what it costs, and what it is good for

This page is written by `make bench`: all numbers are from one run of `python -m benchmarks.rescaling`, none is typed by
hand.
"""


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.a, self.na = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.b, self.nb = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.skip = (
            nn.Identity()
            if channels == out
            else nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut before the last ReLU."""
        return F.relu(self.nb(self.b(F.relu(self.na(self.a(x))))) + self.skip(x))


def resnet20() -> nn.Module:
    """The ResNet for 32 x 32 images with about 270,000 parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    channels = 16
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        for i in range(3):
            layers.append(Block(channels, width, stride if i == 0 else 1))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def typical(run: Callable[[], Any], calls: int) -> float:
    """The median seconds of several calls."""
    times = []
    for _ in range(calls):
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return median(times)


def solver_table() -> Table:
    """The group, the program and its certificate, from curvature that is known."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(49):
        layers += [nn.Linear(16, 16), nn.ReLU()]
    chain, x = nn.Sequential(*layers, nn.Linear(16, 10)), torch.randn(8, 16)
    resnet, images = resnet20().eval(), torch.randn(4, 3, 32, 32)
    folded = ms.fold_batchnorm(resnet)
    rows = [
        solver_row("chain of 50 layers", chain, x, "layer"),
        solver_row("ResNet-20", resnet, images, "layer"),
        solver_row("ResNet-20", resnet, images, "neuron"),
        solver_row("ResNet-20, BatchNorm folded", folded, images, "neuron"),
    ]
    note = (
        "The group of rescalings is worked out from the network, once; the solver then finds the minimum and certifies "
        "it. Medians of seven calls; the gap between the value and its lower bound is relative."
    )
    columns = ("network", "scope", "tensors", "parameters", "free factors", "group", "solver", "second call", "gap")
    return Table("Minimum sharpness once the curvature is known", note, columns, rows)


def solver_row(name: str, model: nn.Module, inputs: Tensor, scope: Any) -> tuple[str, ...]:
    """One network."""
    network = ms.read(model, inputs)
    diagonal = ms.hessian_diagonal(network, inputs)
    result = ms.minimum_sharpness(network, diagonal, scope=scope)
    parts = program(curvatures(diagonal, scope), result.symmetries)
    return (
        name,
        scope,
        str(len(result.by_parameter)),
        count(sum(p.numel() for p in model.parameters())),
        count(result.symmetries.dimension),
        duration(typical(lambda: Walk(network.graph, frozenset(), scope), 7)),
        duration(typical(lambda: minimise(parts.log_c, parts.A), 7)),
        duration(typical(lambda: ms.minimum_sharpness(network, diagonal, scope=scope), 7)),
        magnitude(1 - result.lower_bound / result.value, 0),
    )


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The 8 x 8 digits that come with scikit-learn: training and test set."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x, y = torch.tensor(found.data, dtype=torch.float32) / 8 - 1, torch.tensor(found.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return (x[:1200], y[:1200]), (x[1200:], y[1200:])


def trained(model: nn.Module, data: tuple[Tensor, Tensor], steps: int = 1500) -> nn.Module:
    """SGD with momentum on batches of 100."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        chosen = torch.randint(len(data[0]), (100,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(data[0][chosen]), data[1][chosen]).backward()
        optimizer.step()
    return model.eval()


def networks() -> dict[str, nn.Module]:
    """Two networks for the digits, as PyTorch initialises them."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    cnn = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Conv2d(12, 24, 3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    return {"MLP 64-64-32-10": mlp, "CNN": cnn}


def noise_tables(trials: int) -> list[Table]:
    """Test accuracy under noise, of a network and of its flattest equivalent."""
    train, test = digits()
    tables = []
    for name, model in networks().items():
        trained(model, train)
        sharp = ms.minimum_sharpness(model, train[0], scope="neuron")
        flat = ms.rescale(model, sharp.scales)
        with torch.no_grad():
            same = float((model(test[0]) - flat(test[0])).abs().max())
        rows = []
        for noise, sigmas in (("absolute", (0.0, 0.05, 0.1, 0.15, 0.2)), ("relative", (0.2, 0.4, 0.6, 0.8))):
            before, after = (
                ms.noise_robustness(m, test, sigmas=sigmas, trials=trials, noise=noise)  # type: ignore[arg-type]
                for m in (model, flat)
            )
            for old, new in zip(before.levels, after.levels, strict=True):
                rows.append((noise, number(old.sigma), f"{old.accuracy:.4f}", f"{new.accuracy:.4f}", gain(old, new)))
        note = (
            f"Tr[H] on the training set {number(sharp.trace, 4)}, minimum sharpness {number(sharp.value, 4)} "
            f"(certified). The outputs on the test set differ by at most {magnitude(same, 0)}. Mean and standard error "
            f"over {trials} draws."
        )
        columns = ("noise", "sigma", "test accuracy", "test accuracy, flattest", "the flattest is")
        tables.append(Table(f"{name} on digits under weight noise", note, columns, rows))
    return tables


def gain(old: NoiseLevel, new: NoiseLevel) -> str:
    """Better or worse, if two standard errors say so."""
    assert old.accuracy is not None
    assert new.accuracy is not None
    difference = new.accuracy.mean - old.accuracy.mean
    if abs(difference) <= 2 * hypot(old.accuracy.standard_error, new.accuracy.standard_error):
        return "the same"
    return "better" if difference > 0 else "worse"


def closing(tables: Sequence[Table]) -> str:
    """What the rows say, counted."""
    lines = []
    for noise, why in (
        ("absolute", "that is the noise whose effect the trace measures"),
        ("relative", "that noise grows with the weights, rescaling whole layers does not change its effect at all, "
         "and the minimum of the trace is not made for it"),
    ):  # fmt: skip
        verdicts = Counter(row[-1] for table in tables for row in table.rows if row[0] == noise and row[1] != "0")
        counts = ", ".join(f"{verdict} in {count}" for verdict, count in verdicts.most_common())
        lines.append(f"Under {noise} noise the flattest network is {counts} of {verdicts.total()} rows: {why}.")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rescaling", description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    console = Console(width=150)
    where = machine("scikit-learn")
    console.print(where)
    noise = noise_tables(options.trials)
    tables = [solver_table(), *noise]
    verdict = closing(noise)
    for table in tables:
        console.print(table.rich())
    console.print(verdict)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    parts = [INTRODUCTION.rstrip(), where, *(table.markdown() for table in tables), verdict]
    write_text(options.out, "\n\n".join(parts))
    console.print(f"Written to {options.out}.")


if __name__ == "__main__":
    main()
