"""Copies of a network: with parameters multiplied by factors, and with BatchNorm folded away."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from ..errors import InputError, ReadError
from .model import unwrapped
from .modes import plain_mode
from .reader import Network, eval_mode


@plain_mode()
def rescale(model: nn.Module | Network, scales: Mapping[str, float | Tensor]) -> nn.Module:
    """A copy of the model with each named parameter multiplied by its factor; the original is untouched.

    A factor is a positive number, or a tensor of positive numbers that broadcasts to the parameter.

    >>> model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    >>> other = rescale(model, {"0.weight": 4.0, "2.weight": 0.25})
    >>> x = torch.ones(1, 2)
    >>> bool((model(x) == other(x)).all())
    True
    """
    module = unwrapped(model)
    held = dict(module.named_parameters(remove_duplicate=False))
    unknown = [name for name in scales if name not in held]
    if unknown:
        raise InputError(f"no parameter is called {unknown}. The parameters are {list(held)}")
    new: dict[int, tuple[str, Tensor]] = {}
    for name, factor in scales.items():
        parameter = held[name].detach()
        product = _scaled(name, parameter, factor)
        first, other = new.setdefault(id(held[name]), (name, product))
        if not torch.equal(other, product):
            raise InputError(f"'{first}' and '{name}' are one tensor, but have different factors")
    result = copy.deepcopy(module)
    twins = dict(result.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, product in new.values():
            twins[name].copy_(product)
    return result


def _scaled(name: str, parameter: Tensor, factor: float | Tensor) -> Tensor:
    """The parameter times the factor, rounded once."""
    device = "cpu" if parameter.device.type == "mps" else parameter.device
    factors = torch.as_tensor(factor, dtype=torch.float64, device=device)
    if not bool((torch.isfinite(factors) & (factors > 0)).all()):
        raise InputError(f"the factor of '{name}' has to be positive and finite, got {_worst(factors)}")
    try:
        factors = factors.expand(parameter.shape)
    except RuntimeError:
        given = f"of shape {tuple(factors.shape)}"
        raise InputError(f"the factor of '{name}', {given}, does not broadcast to {tuple(parameter.shape)}") from None
    product = (parameter.to(factors) * factors).to(parameter)
    if not bool(torch.isfinite(product).all()) or bool(((product == 0) & (parameter != 0)).any()):
        raise InputError(
            f"'{name}' does not fit in {parameter.dtype} after multiplying by factors from {float(factors.min()):.3g} "
            f"to {float(factors.max()):.3g}. Use model.double()"
        )
    return product


def _worst(factors: Tensor) -> float:
    bad = factors[~(torch.isfinite(factors) & (factors > 0))]
    return float(bad.flatten()[0])


_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@plain_mode()
def fold_batchnorm(model: nn.Module | Network) -> nn.Module:
    """A copy in eval mode with every BatchNorm that follows a convolution or linear layer folded into it.

    That is the network as it is deployed: fewer parameters, no running statistics, and nothing that pins the scales.
    A BatchNorm that follows anything else stays.

    >>> model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
    >>> fold_batchnorm(model)
    Sequential(
      (0): Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))
      (1): Identity()
      (2): ReLU()
    )
    """
    module = unwrapped(model)
    result = copy.deepcopy(module).eval()
    with eval_mode(result):
        try:
            traced = fx.Tracer().trace(result)
        except Exception as error:
            raise ReadError(
                f"cannot trace {type(module).__name__} to see which layer each BatchNorm follows: {error}. "
                "Fold by hand with torch.nn.utils.fuse_conv_bn_eval"
            ) from error
    modules = dict(result.named_modules())
    for layer, norm in list(_pairs(traced, modules)):
        _replace(result, layer, _fused(modules[layer], modules[norm]))
        _replace(result, norm, nn.Identity())
    return result


def _pairs(traced: fx.Graph, modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, str]]:
    """Names of layers, each with the BatchNorm that alone takes its output."""
    calls = [str(node.target) for node in traced.nodes if node.op == "call_module"]
    for node in traced.nodes:
        if node.op != "call_module" or not isinstance(modules[str(node.target)], _NORMS):
            continue
        source: Any = node.args[0]
        if not isinstance(source, fx.Node) or source.op != "call_module" or len(source.users) != 1:
            continue
        layer, norm = str(source.target), str(node.target)
        once = calls.count(layer) == calls.count(norm) == 1
        if once and isinstance(modules[layer], _LAYERS) and modules[norm].running_mean is not None:
            yield layer, norm


def _fused(layer: Any, norm: Any) -> nn.Module:
    if isinstance(layer, nn.Linear):
        result: Any = fuse_linear_bn_eval(layer, norm)
    else:
        result = fuse_conv_bn_eval(layer, norm, transpose="Transpose" in type(layer).__name__)
    result.bias.requires_grad_(layer.weight.requires_grad)  # a bias that is new comes frozen
    return result


def _replace(root: nn.Module, path: str, new: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(root.get_submodule(parent), name, new)
