"""What the whole group costs: Gram matrices of all frames beside the trace, on a vision transformer.

`python -m benchmarks.frames` measures seconds of processor time on one thread, each the median of a few calls, prints
them, and writes them into docs/transformers.md.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

import minsharp as ms
from minsharp.text import count, decimals

from .machine import machine
from .report import Table, within

PAGE = Path("docs/transformers.md")
WIDTH, HEADS, DEPTH, TOKENS, CLASSES = 192, 3, 4, 64, 10
REPEATS = 5


class Block(nn.Module):
    """Attention and two layers, each after a norm and beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class VisionTransformer(nn.Module):
    """Patches of 4 x 4 pixels of three colours."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.at = nn.Linear(48, WIDTH), nn.Parameter(0.02 * torch.randn(TOKENS, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.enter(x) + self.at)).mean(1))


def seconds(call: Callable[[], Any]) -> float:
    """The median over a few calls, after one to warm up."""
    call()
    taken = []
    for _ in range(REPEATS):
        start = process_time()
        call()
        taken.append(process_time() - start)
    return median(taken)


def table(samples: int = 32) -> Table:
    """The trace, the Gram matrices of all frames, the minimum from them, and what both take."""
    torch.manual_seed(0)
    x = torch.randn(samples, TOKENS, 48)
    network = ms.read(VisionTransformer(), x)
    group = ms.symmetries(network, x, scope="full")
    grams = ms.hessian_grams(network, x, curvature="ggn")
    trace = seconds(lambda: ms.hessian_trace(network, x, curvature="ggn"))
    gathered = seconds(lambda: ms.hessian_grams(network, x, curvature="ggn"))
    solved = seconds(lambda: ms.minimum_sharpness(network, grams, scope="full"))
    taken = {
        "trace": trace,
        "Gram matrices of all frames": gathered,
        "minimum from Gram matrices": solved,
        "both": gathered + solved,
    }
    note = (
        f"A vision transformer of width {WIDTH} with {HEADS} heads, {DEPTH} layers and {TOKENS} tokens, "
        f"{count(samples)} samples; {count(group.dimension)} free numbers. Seconds of processor time, medians of "
        f"{REPEATS} calls."
    )
    rows = [[name, decimals(time), decimals(time / trace)] for name, time in taken.items()]
    return Table("The whole group", note, ["", "seconds", "times the trace"], rows)


def main() -> None:
    """Measure, print, write."""
    torch.set_num_threads(1)
    where = machine()
    found = table()
    console = Console(width=120)
    console.print(found.rich())
    console.print(found.note)
    console.print(where)
    within(PAGE, "benchmarks.frames", f"{found.body()}\n\n{where}")


if __name__ == "__main__":
    main()
