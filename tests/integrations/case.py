"""A network of somebody else's, data for it, and what has to hold of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minsharp as ms

Data = Any
"""As a user has it: (images, labels), or the dict of a collator with labels in it."""


@dataclass(frozen=True)
class Case:
    """How to make a network, and a batch for it."""

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Data]
    loss: nn.Module | None = None

    def model(self) -> nn.Module:
        """The network, the same every time, in float64, with no parameter where it was initialised."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return settled(disturbed(self.build().double()), parted(self.data())[0]).eval()

    def data(self) -> Data:
        """The batch, the same every time, numbers in float64."""
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return _double(self.batch())


def _double(data: Data) -> Data:
    if isinstance(data, Mapping):
        return {name: _double(tensor) for name, tensor in data.items()}
    if isinstance(data, tuple):
        return tuple(map(_double, data))
    return data.double() if data.dtype.is_floating_point else data


def disturbed(model: nn.Module) -> nn.Module:
    """The model with noise on what starts as a constant: norms, biases, layer scales, position tables."""
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.dtype.is_floating_point:
                continue
            spread = float(parameter.std()) if parameter.numel() > 1 else 0.0
            if parameter.dim() < 2 or spread < 0.05:
                parameter.add_((0.2 if parameter.dim() < 2 else 0.1) * torch.randn_like(parameter))
    return model


def settled(model: nn.Module, inputs: Any) -> nn.Module:
    """The model after its batch norms have seen the inputs, and some noise: no layer explodes."""
    norms: list[Any] = [
        m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats
    ]
    for norm in norms:
        norm.momentum = None  # a plain mean over what was seen
    with torch.no_grad():
        if norms:
            model.train()(**inputs) if isinstance(inputs, dict) else model.train()(inputs)
        for norm in norms:
            norm.running_mean.add_(0.1 * norm.running_var.sqrt() * torch.randn_like(norm.running_var))
            norm.running_var.add_(0.01).mul_(1 + torch.rand_like(norm.running_var))
    return model


def parted(data: Data) -> tuple[Any, Tensor]:
    """Inputs and labels."""
    if isinstance(data, Mapping):
        return {name: tensor for name, tensor in data.items() if name != "labels"}, data["labels"]
    inputs, labels = data
    return inputs, labels


def logits(model: nn.Module, inputs: Any) -> Tensor:
    """What the model returns for some inputs, classes along the last axis."""
    returned = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return returned if isinstance(returned, Tensor) else returned.logits


def gauss_newton_traces(case: Case, model: nn.Module) -> dict[str, float]:
    """The trace of each parameter's block of the Gauss-Newton matrix of the mean loss, by plain autograd:
    one sample and one column of a factor of the output Hessian at a time.

    The sample stands twice in its batch, and the first counts: torch's own derivative of batch_norm is wrong for a
    single image whose cotangents lie in memory with the channels last.
    """
    inputs, labels = parted(case.data())
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = dict.fromkeys(parameters, 0.0)
    for i in range(len(labels)):
        twice = {k: v[[i, i]] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[[i, i]]
        o = logits(model, twice)[0]  # (*positions, K)
        for column in _columns(o.detach(), labels[i]):
            found = torch.autograd.grad(o, list(parameters.values()), column, retain_graph=True, allow_unused=True)
            for name, gradient in zip(parameters, found, strict=True):
                total[name] += 0.0 if gradient is None else float(gradient.double().square().sum())
    terms = labels.numel() if labels.dtype.is_floating_point else int((labels != -100).sum())
    return {name: value / terms for name, value in total.items()}


def _columns(o: Tensor, label: Tensor) -> Tensor:
    """S with S S^T = the Hessian of the summed loss at one sample's outputs, as (columns, *outputs)."""
    flat = o.reshape(-1, o.shape[-1])  # (positions, K)
    H = torch.autograd.functional.hessian(lambda o: _summed(o, label), flat)
    values, vectors = torch.linalg.eigh(H.reshape(o.numel(), o.numel()))
    kept = values > 1e-12 * values.max()
    return (vectors[:, kept] * values[kept].sqrt()).T.reshape(-1, *o.shape)


def _summed(o: Tensor, label: Tensor) -> Tensor:
    """Cross entropy with classes, squared errors with numbers."""
    if label.dtype.is_floating_point:
        return F.mse_loss(o, label.view_as(o), reduction="sum")
    return F.cross_entropy(o, label.flatten(), reduction="sum")


def is_narrow(network: ms.Network) -> bool:
    """Whether a network computes in single precision on the way, whatever its weights are in."""
    return any(value.dtype == torch.float32 for value in network.graph.values.values())


def check(case: Case) -> None:
    """Read as it comes; traces as the oracle has them; the function kept by random rescalings in both scopes."""
    model, data = case.model(), case.data()
    network = ms.read(model, data if isinstance(data, Mapping) else data[0])
    tolerance = 1e-4 if is_narrow(network) else 1e-8
    result = ms.hessian_trace(network, data, case.loss, curvature="ggn")
    check_traces(result, gauss_newton_traces(case, model), tolerance)
    check_rescalings(case, model, network, "layer", tolerance)
    check_rescalings(case, model, network, "neuron", tolerance)


def check_traces(result: ms.Trace, expected: Mapping[str, float], tolerance: float) -> None:
    """Every parameter; what the outputs do not depend on may be missing."""
    total = sum(expected.values())
    assert total > 1e-6
    assert result.total == pytest.approx(total, rel=tolerance)
    assert set(result.by_parameter) <= set(expected)
    for name, value in expected.items():
        near = pytest.approx(value, rel=tolerance, abs=1e-4 * tolerance * total)
        assert result.by_parameter.get(name, 0.0) == near, name


def check_rescalings(case: Case, model: nn.Module, network: ms.Network, scope: Any, tolerance: float) -> None:
    """A random element of the group, as far as it has any, changes no output."""
    inputs, _ = parted(case.data())
    scales = ms.symmetries(network, inputs, scope).random(seed=0, spread=10.0)
    with torch.no_grad():
        before = logits(model, inputs)
        after = logits(ms.rescale(model, scales), inputs)
    assert float((after - before).abs().max()) <= tolerance * float(before.abs().max()), scope
