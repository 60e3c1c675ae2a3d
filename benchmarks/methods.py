"""Everything that is timed, in one form: prepare once for a problem and a setting, then run."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import minsharp

from . import peers
from .models import Problem

Run = Callable[[], Any]


@dataclass(frozen=True)
class Method:
    """A way to get the curvature, or a part of that work."""

    name: str
    prepare: Callable[[Problem, int], Run]
    settings: Callable[[Problem], tuple[int, ...]] = lambda problem: (0,)
    """What to try beforehand; the fastest is used."""
    calls: int = 1
    """How often it runs in each round, at least."""
    units: Callable[[int], int] = lambda setting: 1
    """How many probes or entries one call is worth at a setting."""


def batch_sizes(problem: Problem) -> tuple[int, ...]:
    """The whole batch and parts of it."""
    n = len(problem.x)
    return tuple(sorted({max(1, n // parts) for parts in (1, 2, 4, 8, 16, 32)}, reverse=True))


def probes_at_once(problem: Problem) -> tuple[int, ...]:
    """How many sign vectors go through one product."""
    return (1, 4, 10)


def minsharp_trace(problem: Problem, _setting: int) -> Run:
    """Tr[H] by minsharp, of a network that has been read."""
    network = minsharp.read(problem.model, problem.x)
    return lambda: minsharp.hessian_trace(network, problem.x)


def minsharp_diagonal(problem: Problem, _setting: int) -> Run:
    """DIAG[H] by minsharp, of a network that has been read."""
    network = minsharp.read(problem.model, problem.x)
    return lambda: minsharp.hessian_diagonal(network, problem.x)


def bare_backprops(problem: Problem, batch: int) -> Run:
    """A forward pass and K - 1 backward passes to the outputs of all layers with weights, and nothing else."""
    layers = [m for m in problem.model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]

    def run() -> None:
        outputs: list[Tensor] = []
        hooks = [layer.register_forward_hook(lambda _m, _i, out: outputs.append(out)) for layer in layers]
        try:
            for inputs in problem.x.split(batch):
                outputs.clear()
                logits = problem.model(inputs)
                columns = torch.eye(logits.shape[1])[:-1, None].expand(-1, len(inputs), -1)
                for column in columns:
                    torch.autograd.grad(logits, outputs, column, retain_graph=True)
        finally:
            for hook in hooks:
                hook.remove()

    return run


def double_backprop(problem: Problem) -> Callable[[int, int], float]:
    """The paper's baseline: an entry of a parameter's diagonal, by backprop through the gradient.

    The graph of the gradient is built in the first call and kept. The gradient is indexed, not iterated over: that
    would split it into all its entries and carry all of them through every backward pass.
    """
    parameters = list(problem.model.parameters())

    @cache
    def gradients() -> tuple[Tensor, ...]:
        loss = nn.functional.cross_entropy(problem.model(problem.x), problem.y)
        return torch.autograd.grad(loss, parameters, create_graph=True)

    def entry(which: int, place: int) -> float:
        (row,) = torch.autograd.grad(gradients()[which].flatten()[place], parameters[which], retain_graph=True)
        return float(row.flatten()[place])

    return entry


def baseline_entry(problem: Problem, _setting: int) -> Run:
    """One random entry of the diagonal per call, each entry of the network as likely as any other."""
    entry = double_backprop(problem)
    ends = torch.tensor([p.numel() for p in problem.model.parameters()]).cumsum(0)
    generator = torch.Generator().manual_seed(0)

    def run() -> float:
        place = int(torch.randint(int(ends[-1]), (), generator=generator))
        which = int(torch.searchsorted(ends, place, right=True))
        return entry(which, place - int(ends[which]))  # counted from the end of its tensor

    return run


def baseline_diagonal(problem: Problem) -> dict[str, Tensor]:
    """All entries of the diagonal, one after the other."""
    entry = double_backprop(problem)
    return {
        name: torch.tensor([entry(which, i) for i in range(p.numel())]).view_as(p)
        for which, (name, p) in enumerate(problem.model.named_parameters())
    }


def of(peer: Callable[[nn.Module, Tensor, Tensor, int], Run]) -> Callable[[Problem, int], Run]:
    """A peer, on a problem."""
    return lambda problem, setting: peer(problem.model, problem.x, problem.y, setting)


TRACE = Method("minsharp trace", minsharp_trace)
DIAGONAL = Method("minsharp diagonal", minsharp_diagonal)
BACKPACK = Method("BackPACK", of(peers.backpack_diagonal), batch_sizes)
NNGEOMETRY = Method("nngeometry", of(peers.nngeometry_diagonal), batch_sizes)
NNGEOMETRY_STABLE = Method("nngeometry, regression", of(peers.nngeometry_regression), batch_sizes)
BARE = Method("bare backprops", bare_backprops, batch_sizes)
BASELINE = Method("baseline", baseline_entry, calls=5)
PYHESSIAN = Method("PyHessian", of(peers.pyhessian_probes), calls=2)
CURVLINOPS = Method("curvlinops", of(peers.curvlinops_probes), probes_at_once, units=lambda at_once: at_once)

ROWS = (TRACE, DIAGONAL, BACKPACK, NNGEOMETRY, BARE, BASELINE, PYHESSIAN, CURVLINOPS)
METHODS = {method.name: method for method in (*ROWS, NNGEOMETRY_STABLE)}


def fitting(method: Method, problem: Problem) -> Method:
    """The method, or the variant to take in its place where its result is not finite."""
    if method is not NNGEOMETRY:
        return method
    diagonal = method.prepare(problem, len(problem.x))()
    return method if all(bool(d.isfinite().all()) for d in diagonal.values()) else NNGEOMETRY_STABLE
