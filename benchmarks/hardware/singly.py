"""Bits for each tensor by what rounding each alone does: a forward pass for each number of bits, no curvature.

Rounding tensor P to b bits moves the outputs by d_Pb, and the loss L by l_Pb. An assignment is predicted to cost

    losses added     sum_P l_Pb                 which can be allocated like any other costs
    outputs added    L(f + sum_P d_Pb) - L(f)   which sees how tensors help or hinder each other, and cannot
"""

from collections.abc import Mapping, Sequence
from time import process_time
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from minsharp.measures.noise import quantized
from minsharp.solve.knapsack import cheapest

from .bench import Bench, outputs
from .networks import Data

CHOICES = range(2, 9)
Assignments = Mapping[int, Sequence[Mapping[str, int]]]  # by the fewest bits


def ranked(bench: Bench, name: str, samples: int, assignments: Assignments) -> dict[str, Any]:
    """Processor seconds, the losses by parameter and bits, and what outputs added say of every assignment."""

    def work() -> dict[str, Any]:
        return _ranked(bench.network(name)[0], bench.train(samples), assignments)

    found: dict[str, Any] = bench.cell(f"assignments/singly-{samples}", work)
    return found


def _ranked(model: nn.Module, data: Data, assignments: Assignments) -> dict[str, Any]:
    start, y = process_time(), data[1]
    weights = {n: p.detach() for n, p in model.named_parameters() if p.dim() > 1}
    still = outputs(model, data, {}).double()
    moved: dict[tuple[str, int], Tensor] = {}
    for n, w in weights.items():
        for b in CHOICES:
            moved[n, b] = outputs(model, data, {n: quantized(w, b, "max")}).double() - still

    def grown(by: Any) -> float:
        return float(F.cross_entropy(still + by, y) - F.cross_entropy(still, y))

    added = {
        str(fewest): [grown(sum(moved[n, b] for n, b in bits.items())) for bits in drawn]
        for fewest, drawn in assignments.items()
    }
    costs = {n: {str(b): grown(moved[n, b]) for b in CHOICES} for n in weights}
    return {"seconds": process_time() - start, "costs": costs, "added": added}


def allocated(costs: Mapping[str, Mapping[str, float]], model: nn.Module, least: int, budget: float) -> dict[str, int]:
    """The bits that cost the least, the losses added, at a mean of bits."""
    held, choices = dict(model.named_parameters()), range(least, CHOICES[-1] + 1)
    table = np.array([[of[str(b)] for b in choices] for of in costs.values()])
    sizes = np.outer([held[n].numel() for n in costs], choices)
    chosen = cheapest(table - table.min(1, keepdims=True), sizes, budget * sizes[:, 0].sum() / least).places
    return {n: choices[k] for n, k in zip(costs, chosen.tolist(), strict=True)}
