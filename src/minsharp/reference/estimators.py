"""Reference code: the slow exact way, and the approximations that others use, on the same (model, data, loss).

Nothing here reads the network or shares code with the engine: plain autograd on the module as it is, in eval mode.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

import torch
from torch import Tensor

from ..errors import InputError
from ..losses import Criterion
from ..results.curvature import Diagonal
from ..subject.batches import Data
from ..subject.model import Model, Pattern
from ..subject.modes import plain_mode, seeded
from ..text import plus_minus
from .objective import Objective


@plain_mode()
def baseline_diagonal(
    model: Model, data: Data, loss: Criterion | None = None, *, parameters: Pattern = None
) -> Diagonal:
    """DIAG[H] by double backpropagation, one entry of one parameter at a time: the paper's baseline.

    Exact for every network, at one backward pass through the gradient per entry.

    >>> from torch import nn
    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> baseline_diagonal(model, (torch.tensor([[2.0, 1.0]]), torch.tensor([0]))).by_parameter["weight"]
    tensor([[1.0000, 0.2500],
            [1.0000, 0.2500]], dtype=torch.float64)
    """
    objective = Objective(model, data, loss, parameters)
    diagonals = [p.new_zeros(p.shape) for p in objective.parameters.values()]
    with objective.prepared():
        for batch in objective.batches:
            for diagonal, (name, p) in zip(diagonals, objective.parameters.items(), strict=True):
                current = {name: p.clone()}
                (gradient,) = objective.gradient(current, batch, create_graph=True)
                if not gradient.requires_grad:
                    continue
                entries = gradient.flatten()  # indexed, not iterated over: that would carry all entries along
                for i in range(len(entries)):
                    (row,) = torch.autograd.grad(entries[i], current[name], retain_graph=True, allow_unused=True)
                    if row is not None:
                        diagonal.view(-1)[i] += row.flatten()[i]
    result = objective.result(diagonals)
    return Diagonal(result.sum, result.kind, result.loss, result.mean, dict.fromkeys(result.exact, True))


@dataclass(frozen=True)
class Estimate:
    """A mean over random probes, with the standard error of that mean."""

    value: float
    standard_error: float
    probes: tuple[float, ...]

    def __repr__(self) -> str:
        return f"{plus_minus(self.value, self.standard_error)} ({len(self.probes)} probes)"


@plain_mode()
def hutchinson_trace(
    model: Model,
    data: Data,
    loss: Criterion | None = None,
    *,
    parameters: Pattern = None,
    probes: int = 100,
    seed: int = 0,
) -> Estimate:
    """Tr[H] as the mean of v^T H v over random signs v, by Hessian-vector products.

    >>> from torch import nn
    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> estimate = hutchinson_trace(model, (torch.tensor([[2.0, 1.0]]), torch.tensor([0])), probes=2000)
    >>> abs(estimate.value - 2.5) < 4 * estimate.standard_error
    True
    """
    if probes < 2:
        raise InputError(f"probes={probes}: expected at least 2, for a standard error")
    objective = Objective(model, data, loss, parameters)
    generator = seeded(seed)
    values = [0.0] * probes
    signs = [[_signs(p, generator) for p in objective.parameters.values()] for _ in range(probes)]
    with objective.prepared():
        for batch in objective.batches:
            current = {name: p.clone() for name, p in objective.parameters.items()}
            gradients = objective.gradient(current, batch, create_graph=True)
            pairs = [
                (g, p, i) for i, (g, p) in enumerate(zip(gradients, current.values(), strict=True)) if g.requires_grad
            ]
            for k in range(probes):
                products = torch.autograd.grad(
                    [g for g, _, _ in pairs],
                    [p for _, p, _ in pairs],
                    [signs[k][i] for _, _, i in pairs],
                    retain_graph=True,
                    allow_unused=True,
                )
                values[k] += sum(
                    float((signs[k][i] * hv).sum())
                    for (_, _, i), hv in zip(pairs, products, strict=True)
                    if hv is not None
                )
    return Estimate(fmean(values), stdev(values) / sqrt(probes), tuple(values))


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    return (torch.randint(2, like.shape, generator=generator) * 2 - 1).to(like)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


@plain_mode()
def tsuzuku_arxiv_diagonal(
    model: Model,
    data: Data,
    loss: Criterion | None = None,
    *,
    parameters: Pattern = None,
    probes: int = 100,
    radius: float = 1e-3,
    seed: int = 0,
) -> Diagonal:
    """An approximation of DIAG[H] by finite differences along Gaussian directions (arXiv 1901.04653):

    E over e ~ N(0, I) of e * (grad L(t + r e) - grad L(t - r e)) / (2 r).
    """
    objective = Objective(model, data, loss, parameters)

    def probe(direction: list[Tensor]) -> list[Tensor]:
        steps = [radius * e for e in direction]
        return [e * d / (2 * radius) for e, d in zip(direction, _difference(objective, steps), strict=True)]

    return objective.result(_mean_over_probes(objective, probe, _normal, probes, seed))


@plain_mode()
def tsuzuku_icml_diagonal(
    model: Model,
    data: Data,
    loss: Criterion | None = None,
    *,
    parameters: Pattern = None,
    probes: int = 100,
    radius: float = 1e-3,
    epsilon: float = 1e-12,
    seed: int = 0,
) -> Diagonal:
    """An approximation of DIAG[H] by finite differences along signs, scaled entry by entry (ICML 2020):

    E over s of s * (grad L(t + r |t| s) - grad L(t - r |t| s)) / (2 r |t| + eps), negative entries set to zero.
    """
    objective = Objective(model, data, loss, parameters)
    sizes = [radius * p.abs() for p in objective.parameters.values()]

    def probe(signs: list[Tensor]) -> list[Tensor]:
        steps = [size * s for size, s in zip(sizes, signs, strict=True)]
        differences = _difference(objective, steps)
        return [s * d / (2 * size + epsilon) for s, d, size in zip(signs, differences, sizes, strict=True)]

    means = _mean_over_probes(objective, probe, _signs, probes, seed)
    return objective.result([mean.clamp_min(0) for mean in means])


def _difference(objective: Objective, steps: list[Tensor]) -> list[Tensor]:
    """The gradient one step ahead minus the gradient one step back."""
    ends = []
    for sign in (1, -1):
        moved = {n: p + sign * s for (n, p), s in zip(objective.parameters.items(), steps, strict=True)}
        ends.append(objective.full_gradient(moved))
    return [ahead - back for ahead, back in zip(*ends, strict=True)]


def _mean_over_probes(
    objective: Objective,
    probe: Callable[[list[Tensor]], list[Tensor]],
    draw: Callable[[Tensor, torch.Generator], Tensor],
    probes: int,
    seed: int,
) -> list[Tensor]:
    if probes < 1:
        raise InputError(f"probes={probes}: expected at least 1")
    generator = seeded(seed)
    totals = [torch.zeros_like(p, dtype=torch.float64) for p in objective.parameters.values()]
    with objective.prepared():
        for _ in range(probes):
            directions = [draw(p, generator) for p in objective.parameters.values()]
            for total, value in zip(totals, probe(directions), strict=True):
                total += value
    return [total / probes for total in totals]
