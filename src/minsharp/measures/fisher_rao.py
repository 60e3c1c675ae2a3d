"""The Fisher-Rao norm."""

import warnings
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp

from ..errors import NonFiniteError
from ..losses import Criterion
from ..network.network import Network
from ..reference.objective import Objective
from ..subject.batches import Batch, Data
from ..subject.model import Pattern
from ..subject.modes import plain_mode
from .score import Score


@plain_mode()
def fisher_rao_norm(
    model: nn.Module | Network, data: Data, loss: Criterion | None = None, *, parameters: Pattern = None
) -> Score:
    """t^T F t, F the model Fisher: label-free for cross-entropy, in one forward-mode pass (Liang et al. 2019).

        t^T F t = 1/n sum_i (J_i t)^T S_i S_i^T (J_i t)     S S^T = d²loss/do², = diag(p) - pp^T for cross-entropy

    with J t the derivative of the outputs along the parameters themselves, so no rescaling changes it. Liang, Poggio,
    Rakhlin, Stokes define ||t||_fr as its square root, and first with the labels of the data (E over (x, y) of the
    squared <grad loss, t>); with labels drawn from the model, as here, it is what they call the model Fisher. For other
    losses S S^T is the Hessian of that criterion: for squared error the Fisher of a Gaussian of variance 1/2.
    ``parameters`` narrows t to those that match.

    One layer is linear in t, so J t are the logits themselves. Logits (log 3, 0): p = (3/4, 1/4), 3/16 (log 3)^2:

    >>> from math import log
    >>> model = nn.Linear(1, 2, bias=False).double()
    >>> model.weight.data = torch.tensor([[log(3)], [0.0]], dtype=torch.float64)
    >>> score = fisher_rao_norm(model, torch.ones(1, 1).double())
    >>> abs(score.value - 3 / 16 * log(3) ** 2) < 1e-12
    True
    """
    objective = Objective(model, data, loss, parameters)
    with objective.prepared():
        forms = (objective.output_form(*_along_itself(objective, batch), batch) for batch in objective.batches)
        total = sum(forms) / objective.divisor
    if not isfinite(total):
        raise NonFiniteError(f"the Fisher-Rao norm is {total}: a weight, an input or an activation is not finite")
    return Score("fisher_rao_norm", total, details={"samples": objective.samples})


def _along_itself(objective: Objective, batch: Batch) -> tuple[Tensor, Tensor]:
    """The outputs o and J t."""
    t = {name: p.clone() for name, p in objective.parameters.items()}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch loads its forward mode by ways that it calls deprecated
            found: Any = jvp(lambda p: objective.outputs(p, batch), (t,), (dict(t),))
    except (NotImplementedError, RuntimeError):  # an operation without a forward mode
        return objective.tangent(objective.parameters, batch)
    outputs, tangent = found
    return outputs.detach(), tangent.detach()
