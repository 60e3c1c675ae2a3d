"""Copies of a network with parameters multiplied by factors."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..subject.model import copied, parameters_of, unwrapped
from ..subject.modes import forget_made, plain_mode
from ..subject.outputs import plain
from .frames_group import Transformation
from .network import Network


@plain_mode()
def rescale(model: nn.Module | Network, scales: Mapping[str, float | Tensor], *, exact: bool = False) -> nn.Module:
    """A copy of the model with each named parameter multiplied by its factor; the original is untouched.

    A factor is a positive number, or a tensor of positive numbers that broadcasts to the parameter. With ``exact=True``
    products that have to be rounded are refused: powers of two need no rounding, unless they are out of range. A
    `Transformation` (``scope="full"``) multiplies by its matrices as well.

    >>> model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    >>> other = rescale(model, {"0.weight": 4.0, "2.weight": 0.25})
    >>> x = torch.ones(1, 2)
    >>> bool((model(x) == other(x)).all())
    True
    """
    module = unwrapped(model)
    held = parameters_of(module)
    names = scales.parameters if isinstance(scales, Transformation) else tuple(scales)
    unknown = [name for name in names if name not in held]
    if unknown:
        raise InputError(f"no parameter is called {unknown}. The parameters are {list(held)}")
    new: dict[int, tuple[str, Tensor]] = {}
    for name in names:
        product = _product(name, held[name].detach(), scales, exact)
        first, other = new.setdefault(id(held[name]), (name, product))
        if not torch.equal(other, product):
            raise InputError(f"'{first}' and '{name}' are one tensor, but have different factors")
    result = copied(module)
    twins = parameters_of(result)
    with torch.no_grad():
        for name, product in new.values():
            twins[name].copy_(product)
    forget_made(result)
    return plain(result) if isinstance(model, Network) else result


def _product(name: str, parameter: Tensor, scales: Mapping[str, float | Tensor], exact: bool) -> Tensor:
    """What a parameter becomes, rounded once."""
    if not isinstance(scales, Transformation):
        return _scaled(name, parameter, scales[name], exact)
    if exact:
        raise InputError("exact=True: matrices do not leave every bit as it is. Rescale with factors alone")
    new = scales.of(name, parameter.cpu() if parameter.device.type == "mps" else parameter).to(parameter)
    if not bool(torch.isfinite(new).all()):
        raise InputError(f"'{name}' does not fit in {parameter.dtype} after {scales!r}. Use model.double()")
    return new


def _scaled(name: str, parameter: Tensor, factor: float | Tensor, exact: bool) -> Tensor:
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
    whole = parameter.to(factors) * factors
    product = whole.to(parameter)
    lost = (product == 0) & (parameter != 0)
    if exact:
        lost = lost | (product.to(whole) != whole) | (whole / factors != parameter.to(factors))
    if bool((~torch.isfinite(product) | lost).any()):
        bits = "to the bit " if exact else ""
        span = f"factors from {float(factors.min()):.3g} to {float(factors.max()):.3g}"
        raise InputError(f"'{name}' does not fit {bits}in {parameter.dtype} after {span}. Use model.double()")
    return product


def _worst(factors: Tensor) -> float:
    bad = factors[~(torch.isfinite(factors) & (factors > 0))]
    return float(bad.flatten()[0])
