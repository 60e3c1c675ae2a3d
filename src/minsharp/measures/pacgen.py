"""pacGen: a PAC-Bayes score of curvature and scale."""

from math import sqrt

import torch
from torch import nn

from ..curvature.hessian import hessian_diagonal
from ..errors import InputError
from ..losses import Criterion
from ..network.network import Network
from ..results.curvature import Diagonal, MatrixName
from ..subject.batches import Data
from ..subject.model import Pattern, parameters_of
from ..subject.modes import plain_mode
from .score import Score


@plain_mode()
def pacgen(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    gamma: float = 0.1,
    epsilon: float = 0.1,
    rho: float = 1.0,
    curvature: MatrixName = "hessian",
    parameters: Pattern = None,
    diagonal: Diagonal | None = None,
) -> Score:
    """The metric that Wang, Keskar, Xiong, Socher (2018) draw from their PAC-Bayes bound:

        sum_i log( (|t_i| + k_i) max( sqrt(H_ii + rho sqrt(m) k_i), 1 / k_i ) )      k_i = gamma |t_i| + epsilon

    H_ii is the diagonal of the Hessian, here exact and label-free for cross-entropy; m the number of parameters (those
    that are measured); k_i the radius of the neighbourhood along t_i; rho a Lipschitz constant of the Hessian in it.
    A network with ReLUs has no such constant, so rho is an assumption. The defaults gamma = epsilon = 0.1 and rho = 1
    are choices, not measurements: compare networks at the same ones. ``diagonal`` is a result of `hessian_diagonal` for
    this model; with it, the data is not touched. Where H_ii + rho sqrt(m) k_i is negative, as it can be if the diagonal
    is an estimate, it counts as 0. Rescaling changes the value: epsilon has no scale.

    Zero weights of a layer with 2 classes on the input 1: H_ii = 1/4, m = 2. With gamma = 0, epsilon = 1, rho = 0 the
    maximum is max(1/2, 1), so every logarithm is 0; with epsilon = 4, 4 max(1/2, 1/4) = 2:

    >>> model = nn.Linear(1, 2, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> pacgen(model, torch.ones(1, 1), gamma=0.0, epsilon=1.0, rho=0.0).value
    0.0
    >>> round(pacgen(model, torch.ones(1, 1), gamma=0.0, epsilon=4.0, rho=0.0).value, 6)  # 2 log 2
    1.386294
    """
    if not (gamma >= 0 and epsilon > 0 and rho >= 0):
        raise InputError(
            f"gamma={gamma}, epsilon={epsilon}, rho={rho}: expected gamma and rho not negative and epsilon positive, "
            "as in pacgen(model, data, gamma=0.1, epsilon=0.1, rho=1.0)"
        )
    if diagonal is None:
        diagonal = hessian_diagonal(model, data, loss, parameters=parameters, curvature=curvature)
    held = parameters_of(model)
    entries = diagonal.by_parameter
    strange = [name for name, H in entries.items() if name not in held or held[name].shape != H.shape]
    if strange:
        raise InputError(
            f"the diagonal is not of this model: {strange} are not among its parameters, or have another shape. "
            "Pass diagonal=hessian_diagonal(model, data)"
        )
    m = sum(H.numel() for H in entries.values())
    total = 0.0
    for name, H in entries.items():
        t = held[name].detach().to(H).abs()
        k = gamma * t + epsilon
        width = torch.maximum((H + rho * sqrt(m) * k).clamp_min(0).sqrt(), 1 / k)
        total += float(((t + k) * width).log().sum())
    details = {"gamma": float(gamma), "epsilon": float(epsilon), "rho": float(rho), "m": m, "curvature": diagonal.kind}
    return Score("pacgen", total, details=details)
