"""Numbers that are not: which value of a network holds NaN or infinity first."""

from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor

from ..errors import NonFiniteError
from ..graph.records import store
from .network import Network


def is_finite(tensor: Tensor) -> bool:
    """Whether no entry is NaN or infinite: a sum says so in one pass, unless it overflows itself."""
    if not tensor.dtype.is_floating_point:
        return True
    total = tensor.sum() if tensor.dim() else tensor
    return isfinite(total.item()) or bool(torch.isfinite(tensor).all())


def first_non_finite(network: Network, inputs: Mapping[str, Tensor]) -> NonFiniteError:
    """An error that names where NaN or infinity comes up first on the way through the network."""
    values = network.state()
    for name, given in [*values.items(), *inputs.items()]:
        masks = name in network.graph.values and network.graph.values[name].kind in ("buffer", "constant")
        if isinstance(given, Tensor) and not masks and not is_finite(given):
            return NonFiniteError(f"{network.graph.values[name].kind} '{name.removeprefix('%')}' {_bad(given)}")
    values |= inputs
    with torch.no_grad():
        for operation in network.graph.operations:
            result = operation.call(operation.bind(values))
            for output in result if operation.many else (result,):
                if isinstance(output, Tensor) and not is_finite(output):
                    return NonFiniteError(f"the output of {operation.where} {_bad(output)}, its inputs are finite")
            store(values, operation, result)
    return NonFiniteError("the outputs are not finite, but no single operation shows it")


def _bad(tensor: Tensor) -> str:
    nans, infinities = int(tensor.isnan().sum()), int(tensor.isinf().sum())
    return f"holds {nans} NaN and {infinities} infinite of {tensor.numel()} numbers"
