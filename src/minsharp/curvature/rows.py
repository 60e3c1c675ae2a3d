"""What noise of known variances does to each prediction: sums over parameters, not over samples."""

from collections.abc import Iterable, Mapping
from math import ceil

import torch
from torch import Tensor

from ..losses import Loss
from ..network.network import Network
from ..rules.contraction import widest
from ..subject.batches import Data, batches
from .engine import Engine
from .quantities import Measured, Quantity


class VarianceRows(Quantity[None]):
    """sum_P sum_e N_e (S_i^T J_iP)_ke^2 for each sample i and column k, a block (n, R) for each sweep."""

    def __init__(self, variances: Mapping[str, Tensor]):
        self.variances = variances
        self.blocks: list[Tensor] = []

    def zero(self, parameter: str, like: Tensor) -> Tensor:
        """Nothing is summed over samples."""
        return widest(like.new_zeros(()))

    def of_gradients(self, parameter: str, gradients: Tensor) -> Tensor:
        """(n, R, *parameter) -> (n, R)."""
        N = self.variances[parameter].to(gradients)
        return widest((gradients.square() * N).flatten(2).sum(2) if gradients.dim() > 2 else gradients.square() * N)

    def add(self, sums: dict[str, Tensor], found: Iterable[tuple[str, Tensor]]) -> None:
        """Keep the rows of one sweep, summed over parameters."""
        self.blocks.append(sum((value for _, value in found), torch.zeros((), dtype=torch.float64)))

    def result(self, measured: Measured) -> None:
        """The blocks are what there is."""


def variance_rows(network: Network, data: Data, loss: Loss, variances: Mapping[str, Tensor]) -> Tensor:
    """The variance of S^T o under independent noise on the weights, to first order: (samples, columns), in float64."""
    quantity = VarianceRows(variances)
    engine = Engine(network, list(variances), loss, quantity)
    samples = engine.run(batches(data)).samples
    rank = loss.rank(network.graph.values[network.graph.output].shape)
    each = ceil(rank / engine.columns)
    rows: list[Tensor] = []
    for start in range(0, len(quantity.blocks), each):
        n = min(engine.samples, samples - len(rows) * engine.samples)
        blocks = quantity.blocks[start : start + each]
        sizes = [min(engine.columns, rank - k * engine.columns) for k in range(each)]
        full = [b[:n].cpu() if b.dim() else b.expand(n, size) for b, size in zip(blocks, sizes, strict=True)]
        rows.append(torch.cat(full, dim=1))
    return torch.cat(rows)
