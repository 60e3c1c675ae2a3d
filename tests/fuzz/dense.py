"""Curvature by plain autograd, dense, in float64, of the whole batch at once: nothing of the package in it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Criterion = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Dense:
    """The Jacobian of all outputs (N, P) for each parameter, and the loss's Hessian at the outputs (N, N)."""

    outputs: Tensor
    jacobians: dict[str, Tensor]
    hessian: Tensor

    def diagonal(self, name: str, shape: torch.Size) -> Tensor:
        """The diagonal of one parameter's block of the Gauss-Newton matrix."""
        J = self.jacobians[name]
        return torch.einsum("ip,ij,jp->p", J, self.hessian, J).view(shape)

    @property
    def noise(self) -> float:
        """What rounding alone may leave of curvature that cancels, as that of a softmax near certainty does."""
        squares = [float(J.square().sum()) for J in self.jacobians.values()]
        return 1e-15 * sum(squares) * max(float(self.hessian.abs().max()), 1.0) + 1e-25

    def times(self, name: str, vector: Tensor) -> Tensor:
        """One parameter's block of the Gauss-Newton matrix times a vector."""
        J = self.jacobians[name]
        return (J.T @ (self.hessian @ (J @ vector.flatten()))).view_as(vector)


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that require a gradient, each once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def jacobians(outputs: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """d outputs / d parameter, one backward pass per entry of the outputs."""
    flat = outputs.flatten()
    rows: dict[str, list[Tensor]] = {name: [] for name in parameters}
    for i in range(len(flat)):
        if not flat.requires_grad:
            gradients: tuple[Tensor | None, ...] = (None,) * len(parameters)
        else:
            gradients = torch.autograd.grad(flat[i], list(parameters.values()), retain_graph=True, allow_unused=True)
        for (name, parameter), g in zip(parameters.items(), gradients, strict=True):
            rows[name].append(torch.zeros(parameter.numel(), dtype=flat.dtype) if g is None else g.flatten())
    return {name: torch.stack(found) for name, found in rows.items()}


def output_hessian(criterion: Criterion, outputs: Tensor, targets: Tensor) -> Tensor:
    """d² criterion / d outputs², dense."""
    flat = outputs.detach().flatten()
    return torch.autograd.functional.hessian(lambda o: criterion(o.view_as(outputs), targets).reshape(()), flat)


def dense(call: Callable[[], Tensor], parameters: dict[str, Tensor], criterion: Criterion, targets: Tensor) -> Dense:
    """Everything that the Gauss-Newton matrix is made of."""
    outputs = call()
    return Dense(outputs.detach(), jacobians(outputs, parameters), output_hessian(criterion, outputs, targets))


def hessian_times(loss: Tensor, parameters: dict[str, Tensor], vectors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each named parameter's own block of the Hessian of the loss, times its vector."""
    chosen = {name: parameters[name] for name in vectors}
    gradients = torch.autograd.grad(loss, list(chosen.values()), create_graph=True, allow_unused=True)
    products = {}
    for (name, parameter), g in zip(chosen.items(), gradients, strict=True):
        row = None
        if g is not None and g.requires_grad:
            (row,) = torch.autograd.grad((g * vectors[name]).sum(), parameter, retain_graph=True, allow_unused=True)
        products[name] = torch.zeros_like(parameter) if row is None else row
    return products


def centred(outputs: Tensor, targets: Tensor) -> Tensor:
    """What curvature="jacobian" is the curvature of."""
    if outputs.dim() == 1 or outputs.shape[1] == 1:
        return outputs.square().sum() / 2 / (outputs.numel())
    c = outputs - outputs.mean(1, keepdim=True)
    return c.square().sum() / 2 / (outputs.numel() / outputs.shape[1])
