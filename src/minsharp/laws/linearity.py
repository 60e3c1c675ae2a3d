"""The linearity law."""

from collections.abc import Iterator

import torch
from torch import Tensor

from .trial import Trial


def linearity_law(trial: Trial) -> Iterator[str]:
    """Along a parameter that is called exact the Jacobian stays, but for the rare step across a kink."""
    if trial.precision > 1e-4 or not trial.differentiable:
        return  # in half precision a step that it resolves is too long
    for name, exact in trial.network.exactness.items():
        if exact and trial.network.parameters[name].numel():
            changes = list(_changes(trial, name))
            if sum(changes) >= 2:
                points = f"{sum(changes)} of {len(changes)} points"
                yield f"linearity: called exact in {name}, its Jacobian changes at {points}"


def _changes(trial: Trial, name: str) -> Iterator[bool]:
    """Whether the derivative of a random sum of the outputs changes over a short way, at points near and far."""
    generator = torch.Generator().manual_seed(trial.seed + 1)
    steps = (1e-5, 1e-6, 1e-4, 1e-5) if trial.precision < 1e-10 else (1e-2,) * 4
    sizes = (1.0, 4.0, 0.25, 1.0)
    for (values, inputs), step, size in zip(trial.others(4, 3), steps, sizes, strict=True):
        values[name] = values[name] * size
        way = torch.randn(values[name].shape, generator=generator, dtype=torch.float64)
        way = (way * step * values[name].abs().mean()).to(values[name].dtype)
        weights = torch.randn(trial.outputs(values, inputs).shape, generator=generator, dtype=torch.float64)
        if any(operation.name == "detach" for operation in trial.network.graph.operations):
            yield _bends(trial, values, inputs, name, weights, way)
            continue
        ahead, back = (
            _derivative(trial, {**values, name: values[name] + s * way}, inputs, name, weights) for s in (1, -1)
        )
        scale = float(torch.maximum(ahead.abs(), back.abs()).amax())
        scale += 1e-5 * float((weights * trial.outputs(values, inputs)).abs().amax() / values[name].abs().mean())
        limit = 1e-10 if trial.precision < 1e-10 else 1e-3
        yield float((ahead - back).abs().amax()) > limit * scale


def _bends(
    trial: Trial, values: dict[str, Tensor], inputs: tuple[Tensor, ...], name: str, weights: Tensor, way: Tensor
) -> bool:
    """Whether the second derivative along a way is not zero; what is detached stays where it is."""
    leaf = values[name].detach().requires_grad_()
    outputs = trial.outputs({**values, name: leaf}, inputs)
    if not outputs.requires_grad:
        return False
    (first,) = torch.autograd.grad((outputs * weights).sum(), leaf, create_graph=True, allow_unused=True)
    if first is None or not first.requires_grad:
        return False
    (second,) = torch.autograd.grad((first * way).sum(), leaf, allow_unused=True)
    return second is not None and float(second.abs().amax()) > 1e-10 * float(first.abs().amax())


def _derivative(
    trial: Trial, values: dict[str, Tensor], inputs: tuple[Tensor, ...], name: str, weights: Tensor
) -> Tensor:
    leaf = values[name].detach().requires_grad_()
    outputs = trial.outputs({**values, name: leaf}, inputs)
    if not outputs.requires_grad:
        return torch.zeros_like(leaf)
    (found,) = torch.autograd.grad((outputs * weights).sum(), leaf, allow_unused=True)
    return torch.zeros_like(leaf) if found is None else found
