"""Curvature and a group of rescalings as a geometric program."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..network.symmetry import Scope, Symmetries
from ..results.curvature import Diagonal, Trace

Curvature = Trace | Diagonal


def curvatures(measured: Curvature, scope: Scope) -> dict[str, Tensor]:
    """The curvature of every measured parameter: a number, or one per entry."""
    source = measured.trace if scope == "layer" and isinstance(measured, Diagonal) else measured
    blocks = {n: torch.as_tensor(v, dtype=torch.float64).cpu() for n, v in source.by_parameter.items()}
    for name, block in blocks.items():
        if not bool((torch.isfinite(block) & (block >= 0)).all()):
            bad = block[~(torch.isfinite(block) & (block >= 0))].flatten()[0]
            hint = '. As an estimate it may be negative: ask for curvature="ggn", or for a smaller tolerance'
            raise InputError(
                f"the curvature of '{name}' is {float(bad)}: expected finite numbers, none negative"
                + (hint if measured.standard_error else "")
            )
    return blocks


def program(blocks: Mapping[str, Tensor], symmetries: Symmetries) -> tuple[Any, Any, Any]:
    """The geometric program: log c, the matrix A with t = A z for every term, and which parameter each term is of."""
    import numpy as np
    import scipy.sparse

    c, plus, minus, owner = _terms(blocks, symmetries)
    nodes = symmetries.nodes
    N = scipy.sparse.csr_array(
        (nodes.coefficient.numpy(), (nodes.form.numpy(), nodes.number.numpy())),
        shape=(nodes.count, symmetries.dimension),
    )
    A = N[plus] - N[minus] if symmetries.dimension else scipy.sparse.csr_array((len(c), 0))
    A.eliminate_zeros()
    with np.errstate(divide="ignore"):
        return np.log(c), A, owner


def _terms(blocks: Mapping[str, Tensor], symmetries: Symmetries) -> tuple[Any, ...]:
    """Every (c, plus, minus) of the objective, summed over entries that share a scale, and which parameter it is of."""
    parts = []
    for i, (name, block) in enumerate(blocks.items()):
        exponent = symmetries.exponents[name]
        plus, minus = torch.broadcast_tensors(exponent.plus, exponent.minus)
        extra = block.dim() - plus.dim()
        shared = [d for d in range(block.dim()) if d < extra or plus.shape[d - extra] == 1]
        c = block.sum(shared, keepdim=True) if shared else block
        c = c.reshape(c.shape[extra:]).expand(plus.shape)
        parts.append((c.flatten(), plus.flatten(), minus.flatten(), torch.full((plus.numel(),), i)))
    return tuple(torch.cat(column).numpy() for column in zip(*parts, strict=True))
