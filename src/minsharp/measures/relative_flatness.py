"""Relative flatness of one layer."""

from collections.abc import Iterator

import torch
from torch import nn

from ..curvature.hessian import hessian_trace
from ..errors import InputError
from ..losses import Criterion
from ..network.network import Network
from ..network.reader import read
from ..results.curvature import MatrixName
from ..subject.batches import Data, batches, first_of
from ..subject.model import copied, parameters_of, unwrapped
from ..subject.modes import plain_mode
from .score import Score


@plain_mode()
def relative_flatness(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    layer: str | None = None,
    curvature: MatrixName = "hessian",
) -> Score:
    """The relative flatness of a linear layer (Petzka, Kamp, Adilova, Sminchisescu, Boley 2021):

        kappa = sum_{s,s'} <w_s, w_s'> Tr[H_{s,s'}]     w_s the rows of W, H_{s,s'} = d²L / dw_s dw_s'

    That is the trace of the Hessian with respect to E in W (I + E), so it is computed as the exact trace of an identity
    layer put before the layer in a copy of the model: label-free for cross-entropy, at the cost of one `hessian_trace`.
    Rescaling of whole layers does not change it. ``layer`` is the name of an nn.Linear; unless given, the last one,
    whose inputs are the features of the network: Petzka et al. write the model as such a layer on features.

    One output w on one sample x with squared error has H = 2 x x^T, so kappa = ||w||^2 2 ||x||^2 = 25 * 2 * 5:

    >>> model = nn.Linear(2, 1, bias=False).double()
    >>> model.weight.data = torch.tensor([[3.0, 4.0]]).double()
    >>> round(relative_flatness(model, torch.tensor([[1.0, 2.0]]).double(), nn.MSELoss()).value, 8)
    250.0
    """
    module = unwrapped(model)
    first, stream = first_of(batches(data))
    network = model if isinstance(model, Network) else read(module, first.inputs)
    name = _chosen(module, layer, network)
    data = (batch.given for batch in stream) if isinstance(data, Iterator) else data
    changed, identity = _with_identity_before(module, name)
    trace = hessian_trace(changed, data, loss, parameters=identity, curvature=curvature)
    return Score("relative_flatness", trace.total, details={"layer": name, "curvature": curvature})


def _chosen(module: nn.Module, layer: str | None, network: Network) -> str:
    """The name of the layer; refuses one that is not a linear layer of its own, or that forward does not use."""
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise InputError("relative flatness is that of an nn.Linear, and the model holds none")
    used = [name for name in linear if _is_used(module, name, network)]
    if layer in linear and layer not in used:
        raise InputError(f"layer={layer!r}: forward does not use its weight. It uses those of {used}")
    if not used:
        raise InputError(f"relative flatness is that of an nn.Linear, and forward uses none of {linear}")
    name = used[-1] if layer is None else layer
    if name not in linear:
        given = dict(module.named_modules()).get(name)
        what = "is not there" if given is None else f"is a {type(given).__name__}"
        raise InputError(f"layer={name!r} {what}: expected an nn.Linear, one of layer={used}")
    parameters = parameters_of(module)
    weight = parameters.get(f"{name}.weight" if name else "weight")  # none where it is made of others
    places = [place for place, p in parameters.items() if p is weight]
    if len(places) > 1:
        raise InputError(f"the weight of layer={name!r} is shared: {places}. Choose a layer with a weight of its own")
    return name


def _is_used(module: nn.Module, name: str, network: Network) -> bool:
    """Whether forward uses a layer's weight, or what a parametrization makes it of."""
    held = dict(module.get_submodule(name).named_parameters())
    weight = held.get("weight")
    used = {id(parameter) for parameter in network.parameters.values()}
    return any(id(p) in used for p in ([weight] if weight is not None else held.values()))


def _with_identity_before(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """A copy with an identity layer before a linear one, and the name of the identity's weight."""
    result = copied(module)
    layer: nn.Linear = result.get_submodule(name)  # type: ignore[assignment]
    size, like = layer.in_features, layer.weight
    identity = nn.utils.skip_init(nn.Linear, size, size, bias=False, device=like.device, dtype=like.dtype)
    with torch.no_grad():
        identity.weight.copy_(torch.eye(size))
    both = nn.Sequential(identity, layer).train(layer.training)
    if not name:
        return both, "0.weight"
    parent, _, last = name.rpartition(".")
    setattr(result.get_submodule(parent), last, both)
    return result, f"{name}.0.weight"
