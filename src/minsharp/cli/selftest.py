"""A test of this installation, of about a second: a trace of the engine against a dense Hessian by autograd."""

import torch
from torch import Tensor, nn

from ..curvature.hessian import hessian_trace

SAMPLES = 6
CLASSES = 3


def devices() -> list[str]:
    """The CPU, and every accelerator of this machine."""
    found = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    return [*found, "mps"] if torch.backends.mps.is_available() else found


def error_on(device: str) -> tuple[float, float]:
    """The relative error of a trace on a device, and how large it may be in the precision that the device has."""
    kind = torch.float32 if device == "mps" else torch.float64
    model, inputs, targets = _case()
    dense = _dense_trace(model, inputs, targets)
    at = (inputs.to(device, kind), targets.to(device))
    found = hessian_trace(model.to(device, kind), at).total
    return abs(found - dense) / dense, 1e3 * torch.finfo(kind).eps


def _case() -> tuple[nn.Module, Tensor, Tensor]:
    """A convolution, a pool and two linear layers, in double precision; 113 parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        convolved = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        model = nn.Sequential(*convolved, nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, CLASSES)).double()
        return model, torch.randn(SAMPLES, 1, 6, 6).double(), torch.randint(CLASSES, (SAMPLES,))


def _dense_trace(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """The sum of the diagonal of the matrix of second derivatives, one row of it after the other."""
    weights = list(model.parameters())
    loss = nn.functional.cross_entropy(model(inputs), targets)
    slopes = torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights, create_graph=True)])
    rows = (torch.autograd.grad(slope, weights, retain_graph=True) for slope in slopes)
    return sum(float(torch.cat([part.flatten() for part in row])[i]) for i, row in enumerate(rows))
