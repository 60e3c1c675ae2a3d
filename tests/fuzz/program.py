"""A network as text: the steps it is made of, the module they make, and the numbers that fill it."""

import linecache
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

IMPORTS = """\
import math

import torch
import torch.nn.functional as F
import torch.nn.utils.parametrize as parametrize
import torch.nn.utils.prune
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

D = torch.float64
"""

PARTS = '''
class Scaled(nn.Module):
    """A parametrization: twice the weight."""

    def forward(self, w):
        return 2 * w


class Normed(nn.Module):
    """A parametrization: the weight over its largest column norm, as spectral norms do."""

    def forward(self, w):
        return w / w.flatten(1).norm(dim=1).max()


class Triangle(nn.Module):
    """A parametrization: the lower triangle."""

    def forward(self, w):
        return w.tril(1)


class Twice(nn.Module):
    """A module that is called two times, with an activation in between."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(F.relu(self.inner(x)))


class Skip(nn.Module):
    """A module beside the identity."""

    def __init__(self, inner, gain=1.0):
        super().__init__()
        self.inner, self.gain = inner, gain

    def forward(self, x):
        return x + self.gain * self.inner(x)


class Rounded(torch.autograd.Function):
    """Rounds, and lets gradients through as if it did not."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Rectified(torch.autograd.Function):
    """A ReLU with a gradient written by hand."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x > 0)


def double_output(module, args, output):
    return 2 * output


def relu_input(module, args):
    return (args[0].relu(),)


def look(*args):
    return None
'''


@dataclass(frozen=True)
class Step:
    """One piece of a network: lines of ``__init__`` and of ``forward``, from `source` to `result`."""

    piece: str
    source: str
    result: str
    inits: tuple[str, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Given:
    """One input: its name, its shape without the samples, and for whole numbers how many there are (2: booleans)."""

    name: str
    shape: tuple[int, ...]
    kind: str = "float"
    count: int = 0

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """Random values for n samples."""
        if self.kind == "int":
            return torch.randint(self.count, (n, *self.shape), generator=generator)
        noise = torch.randn(n, *self.shape, generator=generator, dtype=torch.float64)
        return noise > -0.4 if self.kind == "bool" else noise


@dataclass(frozen=True)
class Program:
    """A network as text, with what has to be known of it to judge it."""

    seed: int
    given: tuple[Given, ...]
    steps: tuple[Step, ...]
    form: str = "plain"  # how forward takes its inputs: plain, keywords, dict
    wrapper: str = ""
    tags: frozenset[str] = frozenset()
    frozen: tuple[str, ...] = field(default=())
    returns: str = "{}"  # how forward returns its outputs

    @property
    def source(self) -> str:
        """The class `Net`."""
        inits = [line for step in self.steps for line in step.inits]
        lines = [line for step in self.steps for line in step.lines]
        names = [given.name for given in self.given]
        if self.form == "dict":
            lines = [f"{', '.join(names)} = {', '.join(f'batch[{n!r}]' for n in names)}", *lines]
        head = "batch" if self.form == "dict" else ", ".join(names)
        body = ["super().__init__()", *inits]
        return "\n".join(
            [
                "class Net(nn.Module):",
                "    def __init__(self):",
                *(f"        {part}" for line in body for part in line.split("\n")),
                "",
                f"    def forward(self, {head}):",
                *(f"        {part}" for line in lines for part in line.split("\n")),
                f"        return {self.returns.format(self.steps[-1].result)}",
                "",
            ]
        )

    def without(self, i: int) -> "Program":
        """The same network with a step left out: what it took in goes on in its place."""
        gone = self.steps[i]
        swap = re.compile(rf"\b{gone.result}\b")

        def patched(step: Step) -> Step:
            lines = tuple(swap.sub(gone.source, line) for line in step.lines)
            return replace(step, lines=lines, source=swap.sub(gone.source, step.source))

        return replace(self, steps=(*self.steps[:i], *map(patched, self.steps[i + 1 :])))

    def model(self) -> nn.Module:
        """The module itself, filled, in double precision, wrapped as asked."""
        model = built(self.source, f"<network {self.seed}>")
        fill(model, self.seed)
        held = dict(model.named_parameters())
        for name in self.frozen:
            if name in held:
                held[name].requires_grad_(False)
        return WRAPPERS[self.wrapper](model)


WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "": lambda model: model,
    "compile": lambda model: torch.compile(model, backend="eager"),
    "DataParallel": nn.DataParallel,
}


@cache
def _common() -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(IMPORTS + PARTS, scope)
    return scope


def names() -> dict[str, Any]:
    """What the generated code may use."""
    return dict(_common())


@lru_cache(maxsize=8)
def _compiled(source: str, filename: str) -> Any:
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    return compile(source, filename, "exec")


def built(source: str, filename: str) -> nn.Module:
    """An instance of the class `Net` of some source code, in double precision; messages can show its lines."""
    scope = names()
    exec(_compiled(source, filename), scope)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = scope["Net"]()
    return model.double()


def value_for(name: str, tensor: Tensor, seed: int) -> Tensor:
    """Numbers for a parameter or buffer that follow from its name and the seed alone."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    fan = max(tensor.numel() / max(tensor.shape[0], 1), 1) if tensor.dim() > 1 else 1
    if "var" in name:
        return 0.5 + noise.abs()
    return (1.4 if fan > 1 else 0.8) * noise / sqrt(fan)


def fill(model: nn.Module, seed: int, skip: Iterable[str] = ()) -> None:
    """Random numbers for all floating point parameters and buffers but those in ``skip`` or called ``kept...``."""
    known = set(skip)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        own = name not in known and not name.rpartition(".")[2].startswith("kept")
        if own and tensor.dtype.is_floating_point:
            tensor.data.copy_(value_for(name, tensor, seed))
