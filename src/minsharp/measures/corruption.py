"""Parameter corruption: what the loss does under the change of a few parameters that the gradient calls worst."""

from math import inf

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
def parameter_corruption(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    epsilon: float = 0.05,
    p: float = 2,
    k: int | None = None,
    parameters: Pattern = None,
) -> Score:
    """L(t + a) - L(t) under the gradient-directed corruption a (Sun, Zhang, Ren, Luo, Li 2020). Needs targets.

    a maximises <g, a>, g the gradient at t, among all with ||a||_p = epsilon and at most k entries that are not zero.
    In closed form, h being g with all but its k largest entries set to zero:

        a = epsilon sign(h) |h|^(1/(p - 1)) / || |h|^(1/(p - 1)) ||_p

    so epsilon h / ||h||_2 for p = 2, and epsilon sign(h) for p = inf; p = 1 puts all of it on the largest entry. The
    value is the true change of the loss, not <g, a>; it can be negative where the loss bends down. All entries may
    change unless ``k`` is given; with p = 2 that is the first step of `sam_sharpness`. No change where g is zero.

    Two weights 1 and 3, squared error (t_1 + t_2)^2 = 16 on the input (1, 1); one of them moved by 0.5:

    >>> model = nn.Linear(2, 1, bias=False).double()
    >>> model.weight.data = torch.tensor([[1.0, 3.0]]).double()
    >>> data = (torch.ones(1, 2).double(), torch.zeros(1, 1).double())
    >>> parameter_corruption(model, data, nn.MSELoss(), epsilon=0.5, k=1)
    parameter_corruption 4.25 (epsilon 0.5, p 2, entries 1)
    """
    if not epsilon > 0:
        raise InputError(f"epsilon={epsilon}: expected a positive size, as in epsilon=0.05")
    if not p >= 1:
        raise InputError(f"p={p}: expected the order of a norm, from 1 to inf, as in p=2 or p=float('inf')")
    objective = Objective(model, data, loss, parameters)
    count = objective.vector.numel()
    if k is not None and not 1 <= k <= count:
        raise InputError(f"k={k}: expected between 1 and {count}, the number of entries that may change")
    with objective.prepared():
        here = objective.value_here()
        _, slope = objective.value_and_slope(objective.vector)
        change = _corruption(slope, epsilon, p, count if k is None else k)
        value = objective.value(objective.vector + change) - here
    details = {"epsilon": float(epsilon), "p": p, "entries": int(change.count_nonzero())}
    return Score("parameter_corruption", value, details=details)


def _corruption(g: Tensor, epsilon: float, p: float, k: int) -> Tensor:
    """The corruption in closed form; zero where the gradient is."""
    largest = g.abs().topk(1 if p == 1 else k).indices
    h = torch.zeros_like(g)
    h[largest] = g[largest]
    top = h.abs().max()
    if not top:
        return h
    if p == inf or p == 1:
        return epsilon * h.sign()
    shape = h.sign() * (h.abs() / top) ** (1 / (p - 1))
    return epsilon * shape / torch.linalg.vector_norm(shape, p)
