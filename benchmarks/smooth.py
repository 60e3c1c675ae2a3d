"""The true Hessian of networks that are not piecewise linear: estimates beside dense autograd.

`python -m benchmarks.smooth` prints a table of ten networks, each trained for a moment, and writes it into
docs/estimates.md: the trace by `curvature="hessian", tolerance=0.015`, its standard error, the Gauss-Newton part of it,
and what a dense Hessian says in double precision, one row of it after the other. Names as arguments take some of them,
and write nothing.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

import minsharp as ms
from minsharp.reference.objective import Objective
from minsharp.text import count, number, percent

from .decoder import Decoder
from .report import ESTIMATES, Table, within

TOLERANCE, ERROR, LEVEL = 0.015, 0.02, 3.0
STEPS = 60

Data = tuple[Tensor, Tensor]


class Recurrent(nn.Module):
    """A recurrent layer, read at its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.back, self.head = nn.Linear(4, 12), nn.Linear(12, 12, bias=False), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        """(n, T, 4) -> (n, 4)."""
        h = torch.tanh(self.into(x[:, 0]))
        for t in range(1, x.shape[1]):
            h = torch.tanh(self.into(x[:, t]) + self.back(h))
        return self.head(h)


class Mixer(nn.Module):
    """Perceptrons over positions and over channels in turn, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8)
        self.places = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))
        self.channels = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 6, 8) -> (n, 4)."""
        x = x + self.places(self.first(x).mT).mT
        x = x + self.channels(self.second(x))
        return self.head(self.last(x).mean(1))


class Encoder(nn.Module):
    """Tokens that look at each other, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation="gelu", batch_first=True)
        self.blocks, self.head = nn.TransformerEncoder(block, 2, enable_nested_tensor=False), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 6, 8) -> (n, 4)."""
        return self.head(self.blocks(x).mean(1))


class Gated(nn.Module):
    """A product of two layers, one of them bent: SwiGLU, after an rms norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.RMSNorm(10), nn.Linear(16, 4)
        self.gate, self.value = nn.Linear(10, 16), nn.Linear(10, 16)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 10) -> (n, 4)."""
        h = self.norm(x)
        return self.head(F.silu(self.gate(h)) * self.value(h))


def perceptron(bend: Callable[[], nn.Module]) -> nn.Module:
    """Three layers."""
    return nn.Sequential(nn.Linear(10, 16), bend(), nn.Linear(16, 16), bend(), nn.Linear(16, 4))


def convolutions() -> nn.Module:
    """Two of them, group norms between."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 3), nn.GroupNorm(2, 6), nn.SiLU(), nn.Conv2d(6, 8, 3), nn.GroupNorm(2, 8), nn.SiLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)),
    )


def narrowing() -> nn.Module:
    """Depthwise and pointwise convolutions, as mobile networks have them, hardswish between."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 1), nn.Hardswish(), nn.Conv2d(8, 8, 3, groups=8), nn.Hardswish(), nn.Conv2d(8, 8, 1)),
        *(nn.Mish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
    )


@dataclass(frozen=True)
class Entry:
    """A network, and the shape of one of its inputs; of words if there is none."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = ()
    samples: int = 200


ENTRIES: Mapping[str, Entry] = {
    "perceptron, tanh": Entry(lambda: perceptron(nn.Tanh), (10,)),
    "perceptron, gelu": Entry(lambda: perceptron(nn.GELU), (10,)),
    "perceptron, softplus": Entry(lambda: perceptron(nn.Softplus), (10,)),
    "swiglu, rms norm": Entry(Gated, (10,)),
    "convolutions, silu": Entry(convolutions, (1, 8, 8)),
    "depthwise, hardswish": Entry(narrowing, (1, 8, 8)),
    "recurrent, tanh": Entry(Recurrent, (5, 4)),
    "mixer": Entry(Mixer, (6, 8)),
    "transformer encoder": Entry(Encoder, (6, 8)),
    "decoder": Entry(lambda: Decoder(16, 8, 2, 6, 2), (), 60),
}


def problem(entry: Entry) -> tuple[nn.Module, Data]:
    """A network after a few steps of training, in double precision, and its data; the same every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = entry.build().double()
        y = torch.randint(4, (entry.samples,))
        if entry.shape:
            means = torch.randn(4, *entry.shape).double()
            x = means[y] + torch.randn(entry.samples, *entry.shape).double()
        else:
            x = torch.randint(16, (entry.samples, 7)).sort(1).values
            x, y = x[:, :-1], x[:, 1:]
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
            optimizer.step()
    return model.eval(), (x, y)


def dense(network: ms.Network, data: Data) -> float:
    """The trace of the Hessian of the mean loss by autograd alone, one row of it after the other."""
    objective = Objective(network, data)
    with objective.prepared():
        product = objective.hessian_product()
        unit, total = torch.zeros_like(objective.vector), 0.0
        for i in range(len(unit)):
            unit[i] = 1.0
            total += float(product(unit)[i])
            unit[i] = 0.0
    return total


@dataclass(frozen=True)
class Found:
    """Trace and standard error, the Gauss-Newton part, and the dense trace."""

    weights: int
    trace: float
    standard_error: float
    gauss_newton: float
    dense: float

    @property
    def off(self) -> float:
        """The error, in standard errors."""
        return (self.trace - self.dense) / self.standard_error

    @property
    def sound(self) -> bool:
        """Whether it is inside three standard errors, and those are under two per cent."""
        return abs(self.off) <= LEVEL and self.standard_error <= ERROR * abs(self.trace)


def measured(name: str, seed: int = 0) -> Found:
    """One network."""
    entry = ENTRIES[name]
    model, data = problem(entry)
    network = ms.read(model, data[0], class_axis=1 if entry.shape else -1)
    assert not all(network.exactness.values()), name
    found = ms.hessian_trace(network, data, tolerance=TOLERANCE, seed=seed)
    part = ms.hessian_trace(network, data, curvature="ggn").total
    weights = sum(p.numel() for p in model.parameters())
    return Found(weights, found.total, found.standard_error, part, dense(network, data))


def line(name: str, found: Found) -> list[str]:
    """As text."""
    values: list[Any] = [count(found.weights), number(found.dense), number(found.trace)]
    error = percent(found.standard_error / abs(found.trace), 2)
    return [name, *values, error, f"{found.off:+.2f}", number(found.gauss_newton), "yes" if found.sound else "NO"]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.smooth", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(ENTRIES), help=f"of {', '.join(ENTRIES)}")
    options = parser.parse_args()
    note = (
        f"Trace of the Hessian of the mean cross-entropy, tolerance={TOLERANCE:g}, double precision. Off by: in "
        f"standard errors. Met: inside {LEVEL:g} standard errors, and those under {percent(ERROR, 0)}."
    )
    columns = ["network", "weights", "dense", "estimated", "standard error", "off by", "Gauss-Newton part", "met"]
    found = Table("Smooth networks", note, columns, [line(name, measured(name)) for name in options.names])
    console = Console(width=150)
    console.print(found.rich())
    console.print(found.note)
    if set(options.names) == set(ENTRIES):
        within(ESTIMATES, "benchmarks.smooth", found.body())


if __name__ == "__main__":
    main()
