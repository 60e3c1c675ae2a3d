"""The largest eigenvalue of the Hessian, by Lanczos on Hessian-vector products."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, NonFiniteError
from ..losses import Criterion
from ..network.network import Network
from ..reference.objective import Objective
from ..subject.batches import Data
from ..subject.model import Pattern
from ..subject.modes import plain_mode, seeded
from .score import Score


@dataclass(frozen=True)
class Ritz:
    """The largest Ritz value, and ||A v - value v|| for its unit vector v: an eigenvalue lies at most that far away."""

    value: float
    residual: float
    iterations: int
    converged: bool

    @property
    def details(self) -> dict[str, Any]:
        """What a score says of it."""
        return {"residual": self.residual, "iterations": self.iterations, "converged": self.converged}


@plain_mode()
def largest_eigenvalue(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    iterations: int = 100,
    tolerance: float = 1e-3,
    parameters: Pattern = None,
    seed: int = 0,
) -> Score:
    """The largest (algebraic) eigenvalue of the Hessian of the criterion over the parameters.

    Yao, Gholami, Lei, Keutzer, Mahoney (2018) find it by power iteration, which converges to the eigenvalue of largest
    magnitude; at a minimum the two agree. Here: Lanczos with full reorthogonalisation from a random start, until the
    residual ||H v - value v|| is below ``tolerance`` times |value|. The residual is proof that an eigenvalue lies that
    close. The full Hessian, between layers too, needs targets. Rescaling changes it at will.

    A layer with zero weights on one sample x has the Hessian (I/K - 11^T/K^2) ⊗ xx^T, with the eigenvalue ||x||^2 / K:

    >>> model = nn.Linear(3, 4, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> score = largest_eigenvalue(model, (torch.tensor([[1.0, 2.0, 2.0]]), torch.tensor([0])))
    >>> round(score.value, 4), score.details["converged"]
    (2.25, True)
    """
    check_iterations(iterations, tolerance)
    objective = Objective(model, data, loss, parameters)
    with objective.prepared():
        objective.value_here()
        found = lanczos(objective.hessian_product(), random_start(objective.vector, seed), iterations, tolerance)
    return Score("largest_eigenvalue", found.value, details=found.details)


def check_iterations(iterations: int, tolerance: float) -> None:
    """Refuse what Lanczos cannot stop on."""
    if iterations < 1:
        raise InputError(f"iterations={iterations}: expected at least 1, as in iterations=100")
    if not tolerance > 0:
        raise InputError(f"tolerance={tolerance}: expected a positive number, as in tolerance=1e-3")


def random_start(like: Tensor, seed: int) -> Tensor:
    """A random vector, the same on every device."""
    return torch.randn(like.shape, generator=seeded(seed), dtype=torch.float64).to(like)


def inner(a: Tensor, b: Tensor) -> float:
    """<a, b>, summed in float64 where the device has it."""
    return float((a * b).sum() if a.device.type == "mps" else (a.double() * b.double()).sum())


def lanczos(product: Callable[[Tensor], Tensor], start: Tensor, iterations: int, tolerance: float) -> Ritz:
    """The largest eigenvalue of a symmetric operator on the space that it spans from a start."""
    size = sqrt(inner(start, start))
    if not size:
        return Ritz(0.0, 0.0, 0, True)
    basis = [start / size]
    alphas: list[float] = []
    betas: list[float] = []
    while True:
        image = product(basis[-1])
        alphas.append(inner(image, basis[-1]))
        for _ in range(2):  # once does not make it orthogonal to rounding, twice does
            for q in basis:
                image = image - inner(image, q) * q
        beta = sqrt(inner(image, image))
        if not isfinite(alphas[-1] + beta):
            raise NonFiniteError("a Hessian-vector product is not finite: it overflows the parameters' precision")
        value, last = _top(alphas, betas)
        residual = beta * abs(last)
        steps = len(alphas)
        converged = residual <= tolerance * abs(value) or steps == start.numel()
        if converged or steps == iterations:
            return Ritz(value, residual, steps, converged)
        betas.append(beta)
        basis.append(image / beta)


def _top(alphas: list[float], betas: list[float]) -> tuple[float, float]:
    """The largest eigenvalue of the tridiagonal matrix, and the last entry of its eigenvector."""
    T = torch.diag(torch.tensor(alphas, dtype=torch.float64))
    off = torch.diag(torch.tensor(betas, dtype=torch.float64), 1) if betas else torch.zeros_like(T)
    values, vectors = torch.linalg.eigh(T + off + off.T)
    return float(values[-1]), float(vectors[-1, -1])
