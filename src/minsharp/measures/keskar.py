"""Keskar's sharpness: the worst loss in a small box around the parameters."""

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..losses import Criterion
from ..network.network import Network
from ..reference.objective import Objective
from ..subject.batches import Data
from ..subject.model import Pattern
from ..subject.modes import plain_mode
from .score import Score


@plain_mode()
def keskar_sharpness(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    epsilon: float = 1e-3,
    iterations: int = 10,
    parameters: Pattern = None,
) -> Score:
    """How much the loss can grow in a box, in per cent (Keskar, Mudigere, Nocedal, Smelyanskiy, Tang 2017):

        100 (max_y L(t + y) - L(t)) / (1 + L(t))    over  |y_i| <= epsilon (|t_i| + 1)

    The full-space form (their A = I), maximised as they do by L-BFGS-B with ``iterations`` iterations. The start is
    ours: the corner of the box that the gradient at t points to, the maximum to first order; where that is zero, the
    corner that the gradient at a random corner points to. The best point seen counts, the middle included: the value
    is a lower bound of the maximum, and never negative. Needs targets. Rescaling changes it at will: the 1 in the box
    has no scale.

    One weight t = 1, squared error (t - 0)^2 = 1 on the input 1: y = 0.002, so 100 (1.002^2 - 1) / 2 per cent:

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> score = keskar_sharpness(model.double(), (torch.ones(1, 1).double(), torch.zeros(1, 1).double()), nn.MSELoss())
    >>> round(score.value, 8)
    0.2002
    """
    if not epsilon > 0:
        raise InputError(f"epsilon={epsilon}: expected a positive number, as in epsilon=1e-3")
    if iterations < 1:
        raise InputError(f"iterations={iterations}: expected at least 1, as in iterations=10")
    objective = Objective(model, data, loss, parameters)
    with objective.prepared():
        here = objective.value_here()
        climb = _Climb(objective, here, epsilon * (objective.vector.abs() + 1))
        climb.run(iterations)
    value = 100 * climb.best / (1 + here)
    details = {"epsilon": epsilon, "iterations": climb.iterations, "evaluations": climb.evaluations}
    return Score("keskar_sharpness", value, details=details)


class _Climb:
    """The maximisation, in coordinates u = y / half-width of the box, so that the box is [-1, 1]^m."""

    def __init__(self, objective: Objective, here: float, width: Tensor):
        self.objective, self.here, self.width = objective, here, width
        self.best = 0.0
        self.iterations = self.evaluations = 0

    def look(self, u: Tensor) -> tuple[float, Tensor]:
        """How much the loss grows at u, remembered if it is the most so far, and the gradient."""
        self.evaluations += 1
        value, slope = self.objective.value_and_slope(self.objective.vector + self.width * u)
        self.best = max(self.best, value - self.here)
        return value - self.here, self.width * slope

    def run(self, iterations: int) -> None:
        """Climb from the corner that the gradient points to; from a random one if it points nowhere."""
        from scipy.optimize import Bounds, minimize

        slope = self.look(torch.zeros_like(self.width))[1]
        if not bool(slope.any()):
            signs = torch.randint(2, slope.shape, generator=torch.Generator().manual_seed(0))
            slope = self.look((2 * signs - 1).to(slope))[1]
        start = slope.sign()
        scale = float(slope.abs().sum())  # the most that can be gained, to first order
        if not scale:
            return

        def descent(point: Any) -> tuple[float, Any]:
            gain, gradient = self.look(torch.from_numpy(point).to(self.width))
            return -gain / scale, -gradient.cpu().double().numpy() / scale

        found = minimize(
            descent,
            start.cpu().double().numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=Bounds(-1.0, 1.0),
            options={"maxiter": iterations, "maxfun": 5 * iterations, "ftol": 0.0, "gtol": 0.0},
        )
        self.iterations = int(found.nit)
