"""The Hessian of networks that are not piecewise linear: what the Gauss-Newton matrix leaves out, block by block."""

from typing import Any

import torch
from torch import Tensor

from ..errors import NotExactError
from ..losses import Loss
from ..network.network import Network
from ..subject.batches import Batch
from .quantities import DIAGONAL, TRACE, Quantity
from .rest import RestDiagonals, RestProbes, RestSum

_PROBES: dict[Quantity[Any], type[RestProbes]] = {TRACE: RestProbes, DIAGONAL: RestDiagonals}
_FIRST = 8
_MOST = 4096
"""Probes of a block: what is not known well enough then keeps the error that it has."""
_ENOUGH = 256
"""Probes where even ..."""
_HOPELESS = 16
"""... so many times the most would not do: all of them would still leave four times the error that is allowed."""


def probed(quantity: Quantity[Any]) -> bool:
    """Whether what the Gauss-Newton matrix leaves out of it can be estimated."""
    return quantity in _PROBES


class Rest:
    """Estimates R for one block of the data at a time, as well as it has to be known."""

    def __init__(self, network: Network, parameters: list[str], loss: Loss, quantity: Quantity[Any], seed: int):
        self.network, self.parameters, self.loss = network, parameters, loss
        if not probed(quantity):
            raise NotExactError(
                "the outputs are not piecewise linear in all of these parameters, and matrices of what the "
                'Gauss-Newton matrix leaves out need not be positive: ask for curvature="ggn"'
            )
        self.kind = _PROBES[quantity]
        self.seed = seed

    def _drawn(self, batch: Batch, probes: int) -> RestSum:
        self.seed += 1
        made = self.kind(self.network, self.parameters, self.loss, self.seed, probes)
        made.add(batch)
        return made.sum

    def first(self, batch: Batch) -> RestSum:
        """A few probes, to see how large it is."""
        return self._drawn(batch, _FIRST)

    def refined(self, batch: Batch, found: RestSum, allowed: float) -> RestSum:
        """More and more of them, until the variance is what is allowed, or is not going to be."""
        while found.variance > allowed and found.probes < _MOST:
            times = found.variance / max(allowed, 1e-300)
            hopeless = found.probes * times > _HOPELESS * _MOST
            if hopeless and found.probes >= _ENOUGH:
                break
            more = int(min(max(found.probes * (min(times, 4.0) - 1), _FIRST), _MOST))
            found = found.refined(self._drawn(batch, min(more, _ENOUGH - found.probes) if hopeless else more))
        return found


def covariance(found: RestSum, parameters: tuple[str, ...]) -> Tensor:
    """A matrix with the variances that are known: those of the parameters, and that of their sum.

    What that one has beyond the sum of the others is put down to all pairs alike.
    """
    own = torch.tensor([found.variances[name] for name in parameters], dtype=torch.float64)
    noisy = (own > 0).double()
    pairs = torch.outer(noisy, noisy) - torch.diag(noisy)
    return torch.diag(own) + pairs * ((found.variance - float(own.sum())) / max(float(pairs.sum()), 1.0))
