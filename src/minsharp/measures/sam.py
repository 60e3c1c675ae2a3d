"""SAM and ASAM sharpness: how much the loss grows in a ball around the parameters, at worst and on average."""

from math import sqrt
from statistics import fmean, stdev

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..losses import Criterion
from ..network.network import Network
from ..reference.objective import Objective
from ..subject.batches import Data
from ..subject.model import Pattern
from ..subject.modes import plain_mode
from .eigenvalue import inner, random_start
from .score import Score


@plain_mode()
def sam_sharpness(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    rho: float = 0.05,
    steps: int = 1,
    average: bool = False,
    samples: int = 20,
    parameters: Pattern = None,
    seed: int = 0,
) -> Score:
    """How much the loss grows in a ball of radius rho: at worst, or under Gaussian noise. Needs targets.

        worst     max L(t + e) - L(t)   over  ||e||_2 <= rho          (Foret, Kleiner, Mobahi, Neyshabur 2020)
        average   E   L(t + e) - L(t)   with  e ~ N(0, rho^2 I)       (Andriushchenko et al. 2023)

    The worst case by ascent: ``steps=1`` is Foret's e = rho g / ||g||; with more steps, each adds rho g / ||g|| of the
    new gradient and returns to the ball. The best point seen counts, the centre included: a lower bound of the maximum,
    never negative. Where the gradient is zero the first step goes in a random direction. The average is over
    ``samples`` draws, with a standard error; its rho is that of each entry, so the noise has the norm rho sqrt(m).
    Rescaling changes both at will.

    One weight t = 1, squared error t^2 on the input 1: (1 + rho)^2 - 1 at worst, rho^2 on average:

    >>> model = nn.Linear(1, 1, bias=False).double()
    >>> _ = nn.init.ones_(model.weight)
    >>> data = (torch.ones(1, 1).double(), torch.zeros(1, 1).double())
    >>> round(sam_sharpness(model, data, nn.MSELoss(), rho=0.1).value, 8)
    0.21
    >>> mean = sam_sharpness(model, data, nn.MSELoss(), rho=0.1, average=True, samples=1000)
    >>> abs(mean.value - 0.01) < 4 * mean.standard_error
    True
    """
    options = _checked(rho, steps, samples)
    objective = Objective(model, data, loss, parameters)
    ball = Ball(objective, torch.ones_like(objective.vector), *options, seed)
    return ball.average("sam_sharpness") if average else ball.worst("sam_sharpness")


@plain_mode()
def asam_sharpness(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    rho: float = 0.5,
    steps: int = 1,
    average: bool = False,
    samples: int = 20,
    parameters: Pattern = None,
    seed: int = 0,
) -> Score:
    """How much the loss grows in a ball that is measured in units of each parameter. Needs targets.

        worst     max L(t + e) - L(t)   over  ||e / |t| ||_2 <= rho           (Kwon, Kim, Park, Choi 2021)
        average   E   L(t + e) - L(t)   with  e ~ N(0, rho^2 diag(t^2))       (Andriushchenko et al. 2023)

    As `sam_sharpness` in the coordinates e / |t|, so that no rescaling changes it, of layers or of neurons. A parameter
    that is zero stays zero: Kwon et al. add a small constant to |t| for training, which would break the invariance, and
    is left out here.

    One weight t = 2, squared error (t - 1)^2 = 1 on the input 1: e = 2 rho at worst:

    >>> model = nn.Linear(1, 1, bias=False).double()
    >>> _ = nn.init.constant_(model.weight, 2)
    >>> data = (torch.ones(1, 1).double(), torch.ones(1, 1).double())
    >>> round(asam_sharpness(model, data, nn.MSELoss(), rho=0.1).value, 8)
    0.44
    """
    ball = adaptive_ball(Objective(model, data, loss, parameters), rho, steps, samples, seed)
    return ball.average("asam_sharpness") if average else ball.worst("asam_sharpness")


def adaptive_ball(objective: Objective, rho: float, steps: int, samples: int, seed: int) -> "Ball":
    """The ball in units of each parameter."""
    return Ball(objective, objective.vector.abs(), *_checked(rho, steps, samples), seed)


def _checked(rho: float, steps: int, samples: int) -> tuple[float, int, int]:
    if not rho > 0:
        raise InputError(f"rho={rho}: expected a positive radius, as in rho=0.05")
    if steps < 1:
        raise InputError(f"steps={steps}: expected at least 1, Foret's own step")
    if samples < 2:
        raise InputError(f"samples={samples}: expected at least 2, for a standard error")
    return float(rho), steps, samples


class Ball:
    """The points t + unit * u with ||u||_2 <= rho."""

    def __init__(self, objective: Objective, unit: Tensor, rho: float, steps: int, samples: int, seed: int):
        self.objective, self.unit = objective, unit
        self.rho, self.steps, self.samples, self.seed = rho, steps, samples, seed

    def point(self, u: Tensor) -> Tensor:
        """Where u leads: t + unit * u."""
        return self.objective.vector + self.unit * u

    def worst(self, measure: str) -> Score:
        """The most that ascent gains."""
        with self.objective.prepared():
            here = self.objective.value_here()
            best, u = 0.0, torch.zeros_like(self.unit)
            for step in range(self.steps):
                value, slope = self.objective.value_and_slope(self.point(u))
                best = max(best, value - here)
                direction = _unit(self.unit * slope)
                if direction is None:
                    if step:
                        break
                    direction = _unit(random_start(u, self.seed))
                    assert direction is not None
                u = self._inside(u + self.rho * direction)
            best = max(best, self.objective.value(self.point(u)) - here)
        return Score(measure, best, details={"rho": self.rho, "steps": self.steps})

    def _inside(self, u: Tensor) -> Tensor:
        size = sqrt(inner(u, u))
        return u * (self.rho / size) if size > self.rho else u

    def average(self, measure: str) -> Score:
        """The mean over Gaussian noise."""
        with self.objective.prepared():
            here = self.objective.value_here()
            gains = [
                self.objective.value(self.point(self.rho * random_start(self.unit, self.seed + k))) - here
                for k in range(self.samples)
            ]
        error = stdev(gains) / sqrt(self.samples)
        return Score(measure, fmean(gains), error, {"rho": self.rho, "samples": self.samples})


def _unit(vector: Tensor) -> Tensor | None:
    """A vector of length one; none if it is zero."""
    size = sqrt(inner(vector, vector))
    return vector / size if size else None
