"""`python -m benchmarks.transformers`: the Gauss-Newton trace of transformers, beside torch.func on the same columns.

torch.func is what one would write by hand: `vjp` for each sample, `vmap` over the columns of S and over samples, as
many at a time as is fastest; the squares of all gradients are summed. minsharp sums them without forming gradients.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import minsharp
from minsharp.losses import Columns, as_loss
from minsharp.losses.axis import on_axis
from minsharp.text import duration, magnitude, times

from .clock import race, tuned
from .machine import machine
from .methods import Method, Run
from .models import Problem
from .report import PAGE, Table, put

GAIN = 3
"""How many times faster than torch.func the trace has to be."""


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and around a skip connection."""

    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, T, width) -> (n, T, width)."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)  # (n, heads, T, width/heads)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class GPT(nn.Module):
    """A decoder: logits at every position."""

    def __init__(self, vocabulary: int = 256, width: int = 128, layers: int = 4, length: int = 32):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4, causal=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(n, T) -> (n, T, vocabulary)."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


class ViT(nn.Module):
    """Patches of an image, and a class token that is read at the end."""

    def __init__(self, width: int = 192, layers: int = 6, patch: int = 4, classes: int = 10):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) / 10)
        self.places = nn.Parameter(torch.randn(1, 1 + (32 // patch) ** 2, width) / 10)
        self.blocks = nn.Sequential(*(Block(width, 3, causal=False) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, 32, 32) -> (n, classes)."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x)[:, 0]))


class Bert(nn.Module):
    """An encoder of words whose first position is classified."""

    def __init__(self, vocabulary: int = 1000, width: int = 128, layers: int = 4, length: int = 64, classes: int = 4):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """(n, T) -> (n, classes)."""
        x = self.encoder(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))
        return self.head(torch.tanh(self.pool(x[:, 0])))


@dataclass(frozen=True)
class Entry:
    """How to make a problem, and which axis of its outputs has the classes."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    samples: int
    class_axis: int


ENTRIES: Mapping[str, Entry] = {
    "GPT, V=256, d=128, 4 layers, T=32": Entry(GPT, lambda n: torch.randint(256, (n, 32)), 2, -1),
    "ViT, d=192, 6 layers, 65 tokens, K=10": Entry(ViT, lambda n: torch.randn(n, 3, 32, 32), 16, 1),
    "BERT, d=128, 4 layers, T=64, K=4": Entry(Bert, lambda n: torch.randint(1000, (n, 64)), 32, 1),
}


def problem(name: str) -> Problem:
    """A network with random weights; the same every time."""
    entry = ENTRIES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = entry.build().eval(), entry.inputs(entry.samples)
    return Problem(name, model, x, x.new_zeros(len(x), dtype=torch.long))


def outputs_of(given: Problem) -> Tensor:
    """The logits of all samples, at all positions."""
    with torch.no_grad():
        logits: Tensor = given.model(given.x)
    return logits


def columns_of(given: Problem) -> Columns:
    """The factor S of cross-entropy that minsharp uses: (n, R, *output), a few columns at a time."""
    outputs = outputs_of(given)
    loss = on_axis(as_loss(None), (1, *outputs.shape[1:]), None, ENTRIES[given.name].class_axis)
    return loss.columns(outputs, None)


def minsharp_trace(given: Problem, _setting: int) -> Run:
    """By minsharp, of a network that has been read."""
    network = minsharp.read(given.model, given.x, class_axis=ENTRIES[given.name].class_axis)
    return lambda: minsharp.hessian_trace(network, given.x, curvature="ggn").total


def functional_trace(given: Problem, rows: int) -> Run:
    """By torch.func, with so many rows (columns of all samples) at once."""
    weights = {name: p.detach() for name, p in given.model.named_parameters()}
    columns, outputs = columns_of(given), outputs_of(given)
    terms = outputs.numel() // outputs.shape[ENTRIES[given.name].class_axis]  # of the loss, a mean over positions too
    per_vmap, at_once = min(rows, columns.rank), max(1, rows // columns.rank)

    def squares(x: Tensor, S: Tensor) -> Tensor:
        """One sample, (R, *output) -> (R,)."""
        call = lambda w: torch.func.functional_call(given.model, w, (x.unsqueeze(0),)).squeeze(0)  # noqa: E731
        pull: Any = torch.func.vjp(call, weights)[1]
        return torch.vmap(lambda s: sum(g.square().sum() for g in pull(s)[0].values()))(S)

    def run() -> float:
        total = 0.0
        with sdpa_kernel(SDPBackend.MATH):  # the others cannot be vmapped over but by a loop
            for start in range(0, columns.rank, per_vmap):
                S = columns.slice(start, min(start + per_vmap, columns.rank))
                for x, s in zip(given.x.split(at_once), S.split(at_once), strict=True):
                    total += float(torch.vmap(squares)(x, s).double().sum())
        return total / terms

    return run


def rows_at_once(given: Problem) -> tuple[int, ...]:
    """From a few columns to several samples with all of theirs."""
    rank = columns_of(given).rank
    if rank > 64:
        return (64, 16, 256)
    return tuple(rank * n for n in (2, 4, 8, 1) if n <= len(given.x))


OURS = Method("minsharp", minsharp_trace)
THEIRS = Method("torch.func", functional_trace, rows_at_once)
NOTE = (
    'Median seconds over alternating rounds in one process, curvature="ggn", cross-entropy, float32, random weights. '
    "torch.func: vjp per sample under vmap over the same columns, at the number of rows at once that is fastest. "
    "Reading the network is not timed. By operations: how many times more of them torch.func takes in products of "
    "matrices and convolutions, as torch.utils.flop_counter counts them; with few columns, of which none can be left "
    "out, both pull every column back through every layer, and no more than that ratio can be had."
)


def measured(name: str, budget: float) -> list[str]:
    """A line of the table."""
    given = problem(name)
    runners = [tuned(method, given, patience=1) for method in (OURS, THEIRS)]
    ours, theirs = race(runners, budget, least=3, most=15)
    ratio, apart = theirs.typical / ours.typical, abs(runners[0].last / runners[1].last - 1)
    fewer = operations(THEIRS, given, theirs.setting) / operations(OURS, given, ours.setting)
    cells = [duration(ours.typical), f"{duration(theirs.typical)} ({theirs.setting} rows)", times(ratio), times(fewer)]
    line = [name, str(len(given.x)), str(columns_of(given).rank), *cells, magnitude(apart)]
    return [*line, "yes" if ratio >= GAIN else "NO"]


def operations(method: Method, given: Problem, setting: int) -> int:
    """Floating-point operations of the products of matrices and convolutions in one call."""
    run = method.prepare(given, setting)
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transformers", description=__doc__)
    parser.add_argument("--only", action="append", choices=ENTRIES, metavar="MODEL", help="; ".join(ENTRIES))
    parser.add_argument("--seconds", type=float, default=30, help="for the rounds of each network")
    parser.add_argument("--out", type=Path, help=f"a page to put the table into; a complete run takes {PAGE}")
    options = parser.parse_args()
    where = machine()
    head = ["", "n", "columns", "minsharp", "torch.func", "ratio", "by operations", "differ by", f"{GAIN}x"]
    rows = [measured(name, options.seconds) for name in options.only or ENTRIES]
    table = Table("Transformers", NOTE, head, rows)
    Console(width=170).print(table.rich())
    out = options.out or (None if options.only else PAGE)
    if out:
        put(out, [table.markdown()], where)


if __name__ == "__main__":
    main()
