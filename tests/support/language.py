"""A small language model: embedding, causal attention, and a head that may be tied to the embedding."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Language(nn.Module):
    """(n, T) tokens -> (n, T, V) logits."""

    def __init__(self, V: int = 20, d: int = 6, T: int = 5, *, tied: bool = False, bias: bool = True):
        super().__init__()
        self.embedding = nn.Embedding(V, d)
        self.positions = nn.Parameter(0.3 * torch.randn(T, d))
        self.norm = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.mlp = nn.Linear(d, d)
        self.head = nn.Linear(d, V, bias=bias)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens) + self.positions
        q, k, v = self.qkv(self.norm(h)).unsqueeze(1).chunk(3, -1)
        h = h + F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        return self.head(h + F.gelu(self.mlp(h)))


def language(seed: int = 0, **options: int | bool) -> Language:
    """One with random weights, in double precision."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Language(**options).double().eval()  # type: ignore[arg-type]


def tokens(n: int = 3, T: int = 5, V: int = 20) -> Tensor:
    """Some sentences."""
    return torch.randint(V, (n, T), generator=torch.Generator().manual_seed(1))
