"""Whether the records do what the model itself does: both run on the same sample, in the model's own precision.

torch.export sees forward once, with two samples. What forward does for a single one, and what it draws from generators
other than torch's, shows only when it runs.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from ..errors import ReadError
from .apart import difference, largest, moved
from .inputs import picked
from .network import Network

_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2}
_COARSE = 0.1  # half precision


def run_alone(model: nn.Module, args: Any, kwargs: Any) -> Tensor | None:
    """The outputs for the first sample alone; none if the model does not take a single one. Leaves buffers alone."""
    args, kwargs = pytree.tree_map_only(Tensor, lambda t: t[:1], (args, kwargs))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with torch.no_grad():
            return picked(functional_call(model, buffers, args, kwargs) if buffers else model(*args, **kwargs))
    except Exception:
        return None


def check_faithful(network: Network, inputs: Mapping[str, Tensor], alone: Tensor | None) -> None:
    """Refuse a model whose own outputs for the first sample, ``alone``, are not those of the records."""
    outputs = _outputs(network, inputs)
    if alone is None or alone.shape != outputs.shape:
        return
    types = {v.dtype for v in network.graph.values.values() if v.dtype.is_floating_point}
    tolerance = max((_TOLERANCES.get(t, _COARSE) for t in types), default=0.0)
    apart = difference(alone, outputs)
    if apart <= tolerance * largest(outputs):
        return
    noise = max(difference(outputs, _outputs(network, inputs, seed)) for seed in (1, 2, 3))
    if apart > 100 * noise:
        raise ReadError(
            f"{type(network.module).__name__} run on one sample returns other numbers than torch.export recorded: they "
            f"differ by {apart:.2g}. Either forward does something else for a batch of one, or it depends on more than "
            "its inputs and weights, such as random numbers of Python or NumPy, which have no place in it"
        )


def _outputs(network: Network, inputs: Mapping[str, Tensor], seed: int | None = None) -> Tensor:
    """What the records make of the first sample, twice in a batch; with a seed, after a move by a rounding error."""
    given = {name: tensor[[0, 0]] for name, tensor in inputs.items()}
    values = network.state() | given
    if seed is not None:
        values = {name: moved(tensor, seed) for name, tensor in values.items()}
    with torch.no_grad():
        outputs: Tensor = network.graph.run(values)[network.graph.output]
    return outputs[:1]
