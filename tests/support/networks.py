"""A network with a forward of one's own, and the oracle for it: autograd on the module as it is."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.oracles import ggn_diagonal

D = torch.float64
X = torch.randn(6, 6, generator=torch.Generator().manual_seed(3), dtype=D)
Y = torch.tensor([0, 1, 2, 2, 1, 0])


class Own(nn.Module):
    """Two layers, a head and a buffer, put together by a function."""

    buffer: Tensor

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.a, self.b, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.register_buffer("buffer", torch.linspace(-1, 1, 6))
        self.double()

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def plain(m: Any, x: Tensor) -> Any:
    """The two layers of a network with a ReLU between."""
    return m.head(m.a(x).relu())


def oracle(model: nn.Module) -> dict[str, float]:
    """The trace of the Gauss-Newton matrix of each parameter, by dense autograd."""
    criterion = nn.CrossEntropyLoss()
    model.eval()
    return {name: float(ggn_diagonal(model, X, Y, criterion, name).sum()) for name, _ in model.named_parameters()}
