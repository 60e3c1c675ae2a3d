"""Transformers, as they are usually written: right, and nothing in them goes through autograd column by column."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minsharp as ms
from minsharp.curvature.schedule import fast_schedule
from minsharp.rules import pullback
from minsharp.rules.contraction import PerSampleVJP
from tests.support import oracles

WORDS, LENGTH, WIDTH, HEADS, CLASSES = 5, 4, 8, 2, 3


class Written(nn.Module):
    """GPT with attention written out: masked_fill, softmax, products of matrices; weights as addmm takes them."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)
        self.weight, self.bias = nn.Parameter(torch.randn(WIDTH, 3 * WIDTH) / 3), nn.Parameter(torch.randn(3 * WIDTH))
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH).tril().view(1, 1, LENGTH, LENGTH))

    def forward(self, tokens: Tensor) -> Tensor:
        n, T = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(T))
        qkv = torch.addmm(self.bias, self.norm(x).view(-1, WIDTH), self.weight).view(n, T, 3 * WIDTH)
        q, k, v = (part.view(n, T, HEADS, -1).transpose(1, 2) for part in qkv.split(WIDTH, dim=2))
        scores = q @ k.transpose(-2, -1) / (WIDTH / HEADS) ** 0.5
        scores = scores.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
        y = (F.softmax(scores, -1) @ v).transpose(1, 2).contiguous().view(n, T, WIDTH)
        return self.head(F.gelu(x + y, approximate="tanh")).mean(1)


class Rotary(nn.Module):
    """Llama: rms norms written out, rotated queries and keys, heads that share keys, a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scale = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.q, self.kv = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.head = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, CLASSES)

    def normed(self, x: Tensor) -> Tensor:
        return self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))

    def rotated(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        angle = torch.outer(torch.arange(x.shape[-2], dtype=x.dtype), torch.arange(1, half + 1, dtype=x.dtype))
        angle = torch.cat([angle, angle], -1)
        return x * angle.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angle.sin()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.normed(self.words(tokens))
        q = self.rotated(self.q(x).unflatten(-1, (4, 2)).transpose(1, 2))
        k, v = self.kv(x).unflatten(-1, (2, 2, 2)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, self.rotated(k), v, is_causal=True, enable_gqa=True)
        a, b = self.gate(x + y.transpose(1, 2).flatten(2)).chunk(2, -1)
        return self.head(self.normed(F.silu(a) * b)[:, -1])


class Encoder(nn.Module):
    """ViT: a class token, places, torch's own encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, 2, 2)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 5, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 6, batch_first=True, norm_first=True, activation="gelu")
        self.encoder, self.head = (
            nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
            nn.Linear(WIDTH, CLASSES),
        )

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.encoder(x)[:, 0])


class Summed(nn.Module):
    """Attention by einsum, with heads among the axes of the weights, and a table of biases for the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = (nn.Parameter(torch.randn(HEADS, 3, WIDTH) / 3) for _ in range(2))
        self.table, self.head = nn.Parameter(torch.randn(HEADS, LENGTH, LENGTH)), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        q = torch.einsum("ntd,hed->nhte", x, self.q)
        p = (torch.einsum("nhte,nhse->nhts", q, q) + self.table).softmax(-1)
        return self.head(torch.einsum("nhte,hed->ntd", torch.einsum("nhts,nhse->nhte", p, q), self.o).mean(1))


NETWORKS: dict[str, tuple[type[nn.Module], Any]] = {
    "written": (Written, lambda: torch.randint(WORDS, (3, LENGTH))),
    "rotary": (Rotary, lambda: torch.randint(WORDS, (3, LENGTH))),
    "encoder": (Encoder, lambda: torch.randn(3, 1, 4, 4, dtype=torch.float64)),
    "summed": (Summed, lambda: torch.randn(3, LENGTH, WIDTH, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_transformers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    build, draw = NETWORKS[name]
    model, x = build().double().eval(), draw()
    network = ms.read(model, x)
    schedule = fast_schedule(network.graph, tuple(network.parameters))
    slow = [site.leaf for step in schedule.steps for site in step.sites if isinstance(site.contraction, PerSampleVJP)]
    assert slow == []

    def through_autograd(*given: Any) -> None:
        raise AssertionError(f"autograd, through {given[-1]}")

    monkeypatch.setattr(pullback, "gradient_rows", through_autograd)
    found = ms.hessian_diagonal(network, x, curvature="ggn").by_parameter
    traces = ms.hessian_trace(network, x, curvature="ggn").by_parameter
    y = torch.zeros(3, dtype=torch.long)
    for parameter, diagonal in found.items():
        expected = oracles.ggn_diagonal(model, x, y, F.cross_entropy, parameter)
        torch.testing.assert_close(diagonal, expected)
        assert traces[parameter] == pytest.approx(float(expected.sum()))
