"""The slow code that cannot be wrong: dense autograd in float64, no part of it shared with the package."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tests.support.zoo import Inputs, call

Criterion = Callable[[Tensor, Tensor], Tensor]


def _forward(model: nn.Module, name: str, value: Tensor, inputs: Inputs) -> Tensor:
    """The outputs as a function of one parameter, wherever the model holds it."""
    held = dict(model.named_parameters(remove_duplicate=False))
    places = {other: value for other, parameter in held.items() if parameter is held[name]}
    args = (inputs,) if isinstance(inputs, Tensor) else () if isinstance(inputs, dict) else inputs
    kwargs = inputs if isinstance(inputs, dict) else {}
    return functional_call(model, places, args, kwargs)


def hessian_diagonal(model: nn.Module, inputs: Inputs, targets: Tensor, criterion: Criterion, name: str) -> Tensor:
    """The diagonal of one parameter's block of the Hessian of the criterion, one entry at a time."""
    parameter = dict(model.named_parameters())[name].detach().clone().requires_grad_()
    loss = criterion(_forward(model, name, parameter, inputs), targets)
    (gradient,) = torch.autograd.grad(loss, parameter, create_graph=True)
    result = torch.zeros_like(parameter)
    for i in range(parameter.numel()):
        if gradient.requires_grad:
            (row,) = torch.autograd.grad(gradient.flatten()[i], parameter, retain_graph=True, allow_unused=True)
            result.view(-1)[i] = 0 if row is None else row.flatten()[i]
    return result.detach()


def ggn_diagonal(model: nn.Module, inputs: Inputs, targets: Tensor, criterion: Criterion, name: str) -> Tensor:
    """The diagonal of J^T (d²criterion/do²) J, Jacobian and output Hessian of the whole batch dense."""
    parameter = dict(model.named_parameters())[name].detach().clone().requires_grad_()
    outputs = _forward(model, name, parameter, inputs)
    flat = outputs.flatten()
    J = torch.zeros(flat.numel(), parameter.numel(), dtype=flat.dtype)
    for i in range(flat.numel()):
        (row,) = torch.autograd.grad(flat[i], parameter, retain_graph=True, allow_unused=True)
        if row is not None:
            J[i] = row.flatten()
    H = torch.autograd.functional.hessian(lambda o: criterion(o.view_as(outputs), targets), flat.detach())
    return torch.einsum("ip,ij,jp->p", J, H, J).view_as(parameter)


def outputs(model: nn.Module, inputs: Inputs) -> Tensor:
    """The model's outputs in eval mode."""
    with torch.no_grad():
        return call(model.eval(), inputs)
