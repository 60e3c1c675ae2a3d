"""A loss as a function of one vector of parameters, and networks small enough for that."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

CE = nn.CrossEntropyLoss()


class Dense:
    """The criterion as a function of one vector of parameters, with dense derivatives."""

    def __init__(self, model: nn.Module, data: tuple[Any, Tensor], criterion: Any = CE, names: Any = None):
        self.model, self.criterion = model.eval(), criterion
        self.inputs, self.targets = data
        held = dict(model.named_parameters())
        self.held = {
            n: p.detach().clone() for n, p in held.items() if (p.requires_grad if names is None else n in names)
        }
        self.t = torch.cat([p.flatten() for p in self.held.values()])

    def split(self, t: Tensor) -> dict[str, Tensor]:
        parts = t.split([p.numel() for p in self.held.values()])
        return {n: part.view(p.shape) for part, (n, p) in zip(parts, self.held.items(), strict=True)}

    def outputs(self, t: Tensor) -> Tensor:
        args = (
            (self.inputs,) if isinstance(self.inputs, Tensor) else () if isinstance(self.inputs, dict) else self.inputs
        )
        return functional_call(self.model, self.split(t), args, self.inputs if isinstance(self.inputs, dict) else {})

    def __call__(self, t: Tensor) -> Tensor:
        return self.criterion(self.outputs(t), self.targets)

    def many(self, points: Tensor) -> Tensor:
        """The loss at many points."""
        with torch.no_grad():
            return torch.func.vmap(self, chunk_size=20000)(points)

    @property
    def value(self) -> float:
        return float(self(self.t))

    @property
    def gradient(self) -> Tensor:
        return torch.func.grad(self)(self.t).detach()

    @property
    def hessian(self) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the faster ones have no second derivative
            return torch.autograd.functional.hessian(self, self.t).detach()


def small(seed: int = 0, bias: bool = True) -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    """A network of a few dozen parameters, away from any minimum."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.ReLU(), nn.Linear(4, 3, bias=bias)).double()
        return model, (torch.randn(9, 3).double(), torch.randint(3, (9,)))


def three(seed: int = 0) -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    """Three parameters: few enough to search all directions."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh(), nn.Linear(1, 2, bias=False)).double()
        return model, (torch.randn(7, 1).double(), torch.randint(2, (7,)))


def sphere(count: int = 200) -> Tensor:
    """Directions of three-dimensional space, close together."""
    polar, around = torch.meshgrid(
        torch.linspace(0, torch.pi, count).double(), torch.linspace(0, 2 * torch.pi, 2 * count).double(), indexing="ij"
    )
    return torch.stack([polar.sin() * around.cos(), polar.sin() * around.sin(), polar.cos()], -1).view(-1, 3)
