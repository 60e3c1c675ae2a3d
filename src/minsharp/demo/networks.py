"""The networks of the demo that are not the paper's, and how they are trained."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Reader(nn.Module):
    """A transformer that reads a digit row by row: one block of attention and GELU, (n, 1, 8, 8) -> (n, 10)."""

    def __init__(self, width: int = 12, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.rows = nn.Linear(8, width)
        self.places = nn.Parameter(0.02 * torch.randn(8, width))
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        h = self.rows(x.flatten(1).unflatten(1, (8, 8))) + self.places  # (n, rows, width)
        parts = self.qkv(self.before(h)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)  # (n, heads, rows, size)
        h = h + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        h = h + self.down(F.gelu(self.up(self.after(h))))
        return self.head(h.mean(1))


def convolutional() -> nn.Module:
    """Three convolutions with BatchNorm, (n, 1, 8, 8) -> (n, 10)."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64, 10)),
    )


def drawn(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A network drawn in double precision: what is drawn in single is not the same on every processor."""
    before = torch.get_default_dtype()
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.float64)
    try:
        return make()
    finally:
        torch.set_default_dtype(before)


def train(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int, lr: float, batch: int = 50) -> nn.Module:
    """Adam with a learning rate that falls to zero; the model, in eval mode."""
    optimizer = torch.optim.Adam(model.parameters(), lr)
    steps = epochs * -(-len(x) // batch)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of images whose largest logit is the right one."""
    return float((model(x).argmax(1) == y).float().mean())
