"""Small networks with frames, written by hand, and what is true of each."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minsharp as ms

WIDTH, HEADS, TOKENS = 8, 2, 4


def split(x: Tensor, heads: int) -> Tensor:
    """(B, T, d) -> (B, heads, T, d/heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Attention, a residual stream, a norm that ends it, and a head."""

    def __init__(self, bias: bool = True, joint: bool = False, causal: bool = False, plain: bool = False):
        super().__init__()
        d = WIDTH
        self.joint, self.causal, self.plain = joint, causal, plain
        self.before = nn.LayerNorm(d)
        if joint:
            self.qkv = nn.Linear(d, 3 * d, bias=bias)
        else:
            self.q, self.k, self.v = (nn.Linear(d, d, bias=bias) for _ in range(3))
        self.o = nn.Linear(d, d, bias=bias)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 3)

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        parts = self.qkv(x).chunk(3, -1) if self.joint else (self.q(x), self.k(x), self.v(x))
        return tuple(split(part, HEADS) for part in parts)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(self.before(x))
        if self.plain:
            scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
            if self.causal:
                scores = scores.masked_fill(torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1), -torch.inf)
            y = scores.softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.head(self.norm(x + self.o(joined(y))).mean(1))


class Interleaved(Attention):
    """One weight for all three, head by head."""

    def __init__(self) -> None:
        super().__init__(joint=True)

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(x).unflatten(-1, (HEADS, 3, -1)).permute(3, 0, 2, 1, 4).unbind(0)


class Einsum(Attention):
    """Scores and sums of values by einsum, heads before tokens or after."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in self.heads(self.before(x)))
        p = torch.einsum("bihe,bjhe->bhij", q, k).softmax(-1)
        return self.head(self.norm(x + self.o(torch.einsum("bhij,bjhe->bihe", p, v).flatten(2))).mean(1))


class Cross(Attention):
    """Queries from one input, keys and values from another."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = split(self.q(x), HEADS), split(self.k(y), HEADS), split(self.v(y), HEADS)
        return self.head(self.norm(x + self.o(joined(F.scaled_dot_product_attention(q, k, v)))).mean(1))


class Grouped(nn.Module):
    """Four query heads on two key heads: by repeat, by expand, or by the option of torch."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how
        self.q, self.k, self.v = nn.Linear(8, 16), nn.Linear(8, 8), nn.Linear(8, 8)
        self.o, self.norm, self.head = nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split(self.q(x), 4), split(self.k(x), 2), split(self.v(x), 2)
        if self.how == "repeat":
            k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        elif self.how == "expand":
            k, v = (t.unsqueeze(2).expand(-1, -1, 2, -1, -1).flatten(1, 2) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=self.how == "option")
        return self.head(self.norm(x + self.o(joined(y))).mean(1))


class Rotary(Attention):
    """Queries and keys are rotated by angles that grow with the position."""

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k, v = super().heads(x)
        angle = torch.arange(TOKENS).unsqueeze(1) * torch.tensor([1.0, 0.1, 1.0, 0.1])
        cos, sin = angle.cos().to(x), angle.sin().to(x)
        turned = [torch.cat((-t[..., 2:], t[..., :2]), -1) for t in (q, k)]
        return q * cos + turned[0] * sin, k * cos + turned[1] * sin, v


class Normed(Attention):
    """Queries and keys are normed, each with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.of_q, self.of_k = nn.RMSNorm(WIDTH // HEADS), nn.RMSNorm(WIDTH // HEADS)

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k, v = super().heads(x)
        return self.of_q(q), self.of_k(k), v


class TorchAttention(nn.Module):
    """nn.MultiheadAttention, of one input or of two."""

    def __init__(self, cross: bool = False):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        nn.init.normal_(self.attention.in_proj_bias)
        self.norm, self.head, self.cross = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3), cross

    def forward(self, x: Tensor) -> Tensor:
        y = x.flip(1).square() if self.cross else x
        return self.head(self.norm(x + self.attention(x, y, y, need_weights=False)[0]).mean(1))


class Encoder(nn.Module):
    """nn.TransformerEncoder."""

    def __init__(self, norm_first: bool):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 16, dropout=0.1, activation="gelu", batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


class Lora(nn.Module):
    """A frozen weight with a pair of thin ones beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(8, 8), nn.Linear(8, 3, bias=False), nn.Linear(3, 8, bias=False)
        self.base.requires_grad_(False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.base(x) + 2.0 * self.up(self.down(x))))


class Bottleneck(nn.Module):
    """Linear bottlenecks with a residual addition between them, as in MobileNetV2 after folding."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.expand, self.project = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 1)
        self.last, self.head = nn.Conv2d(4, 6, 3, stride=2), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(torch.relu(self.stem(x)))
        y = y + self.project(torch.relu(self.expand(y)))
        return self.head(torch.relu(self.last(y)).mean((2, 3)))


class Pooled(nn.Module):
    """A linear map, an average, and linear maps again."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3), nn.Linear(4 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(self.conv(x), 2).flatten(1))


class Positions(nn.Module):
    """A learned position is added to what a linear map made; tokens are laid side by side for the head."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.at = nn.Linear(8, 5), nn.Parameter(torch.randn(TOKENS, 5))
        self.head = nn.Linear(5 * TOKENS, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.enter(x) + self.at).flatten(1))


class Deep(nn.Module):
    """Three linear maps in a row: the middle one lies between two frames."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 6), nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x)))


class Case(NamedTuple):
    """A network, one sample's shapes, and the sizes of its frames."""

    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]


TOKEN = ((TOKENS, WIDTH),)
HEAD = (WIDTH // HEADS,)

CASES: dict[str, Case] = {
    "separate": Case(Attention, TOKEN, HEAD * 4),
    "separate, no bias": Case(lambda: Attention(bias=False), TOKEN, HEAD * 4),
    "joint": Case(lambda: Attention(joint=True), TOKEN, HEAD * 4),
    "joint, no bias": Case(lambda: Attention(joint=True, bias=False), TOKEN, HEAD * 4),
    "interleaved": Case(Interleaved, TOKEN, HEAD * 4),
    "causal": Case(lambda: Attention(causal=True), TOKEN, HEAD * 4),
    "softmax by hand": Case(lambda: Attention(plain=True), TOKEN, HEAD * 4),
    "causal by hand": Case(lambda: Attention(plain=True, causal=True, joint=True), TOKEN, HEAD * 4),
    "einsum": Case(Einsum, TOKEN, HEAD * 4),
    "cross": Case(Cross, TOKEN * 2, HEAD * 4),
    "grouped, repeat": Case(lambda: Grouped("repeat"), TOKEN, (4,) * 4),
    "grouped, expand": Case(lambda: Grouped("expand"), TOKEN, (4,) * 4),
    "grouped, option": Case(lambda: Grouped("option"), TOKEN, (4,) * 4),
    "rotary": Case(Rotary, TOKEN, HEAD * 2 + (1,) * 4),
    "QK-norm": Case(Normed, TOKEN, HEAD * 2),
    "nn.MultiheadAttention": Case(TorchAttention, TOKEN, HEAD * 4),
    "nn.MultiheadAttention, cross": Case(lambda: TorchAttention(cross=True), TOKEN, HEAD * 4),
    "nn.TransformerEncoder": Case(lambda: Encoder(False), TOKEN, HEAD * 8),
    "nn.TransformerEncoder, norm first": Case(lambda: Encoder(True), TOKEN, HEAD * 8),
    "LoRA": Case(Lora, ((8,),), (3,)),
    "linear, linear": Case(lambda: nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 3)), ((8,),), (5,)),
    "linear bottleneck": Case(Bottleneck, ((2, 6, 6),), (4,)),
    "pooled": Case(Pooled, ((2, 6, 6),), (4,)),
    "positions": Case(Positions, TOKEN, (5,)),
    "three in a row": Case(Deep, ((8,),), (6,)),
}


def built(name: str, seed: int = 0) -> tuple[nn.Module, Any]:
    """A network in double precision, weights not at their initial zeros, and seven samples."""
    torch.manual_seed(seed)
    case = CASES[name]
    model = case.build().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    inputs = tuple(torch.randn(7, *shape, dtype=torch.float64) for shape in case.shapes)
    return model, inputs[0] if len(inputs) == 1 else inputs


@cache
def network(name: str) -> tuple[ms.Network, Any]:
    """The same, read once for all tests."""
    model, inputs = built(name)
    return ms.read(model, inputs), inputs


def outputs(model: nn.Module, inputs: Any) -> Tensor:
    """What a network makes of one input, or of several."""
    with torch.no_grad():
        return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
