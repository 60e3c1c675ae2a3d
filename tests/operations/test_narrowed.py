"""What is looked at only in part is worked out only there, and every number stays that of dense autograd."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minsharp as ms
from minsharp.operations.rewriting import rewritten
from tests.support import oracles

T, D, K = 6, 4, 3


class Encoder(nn.Module):
    """One block of attention and a perceptron, and what is read of its tokens."""

    def __init__(self, look: Callable[[Tensor], Tensor], causal: bool = False, masked: bool = False):
        super().__init__()
        self.look, self.causal = look, causal
        self.before, self.between = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down, self.head = nn.Linear(D, 5), nn.Linear(5, D), nn.Linear(D, K)
        self.mask: Tensor | None
        self.register_buffer("mask", torch.randn(T, T) if masked else None)

    def forward(self, x: Tensor) -> Tensor:
        """(n, T, D) -> (n, K)."""
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.between(x))))
        return self.head(self.look(x))


class Plain(nn.Module):
    """Scores by products of matrices, the tokens along another axis, a residual connection that all tokens share."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.head = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, K)
        self.places = nn.Parameter(torch.randn(T, D))

    def forward(self, x: Tensor) -> Tensor:
        """(n, T, D) -> (n, K)."""
        x = x + self.places
        weights = (self.q(x) @ self.k(x).mT).softmax(-1)
        y = (x + weights @ self.v(x)).permute(1, 0, 2).relu() * 1.5
        return self.head(y[-1])


LOOKS: dict[str, tuple[Callable[[], nn.Module], set[int]]] = {
    "the first token": (lambda: Encoder(lambda x: x[:, 0]), {1}),
    "the last token": (lambda: Encoder(lambda x: x[:, -1]), {1}),
    "a slice": (lambda: Encoder(lambda x: x[:, 2:4].mean(1)), {2}),
    "two tokens": (lambda: Encoder(lambda x: x[:, 0] + 2 * x[:, 1]), {2}),
    "the first and the last": (lambda: Encoder(lambda x: x[:, 0] + 2 * x[:, -1]), {T}),
    "all": (lambda: Encoder(lambda x: x.mean(1)), {T}),
    "a token and all": (lambda: Encoder(lambda x: x[:, 0] + x.mean(1)), {T}),
    "every second": (lambda: Encoder(lambda x: x[:, ::2].sum(1)), {T}),
    "causal": (lambda: Encoder(lambda x: x[:, 1], causal=True), {1}),
    "with a mask": (lambda: Encoder(lambda x: x[:, 1], masked=True), {1}),
    "plain": (Plain, {1}),
}


def positions(net: ms.Network, name: str) -> set[int]:
    """How many tokens go through the layer before the one that looks: the perceptron, or the queries."""
    graph = rewritten(net.graph, net.graph.parameters)
    weights = {op.arguments["weight"].name: op for op in graph.operations if op.name == "linear"}
    return {graph.values[weights[name].outputs[0]].shape[1]}


@pytest.fixture(params=LOOKS)
def case(request: pytest.FixtureRequest) -> tuple[Any, Tensor, set[int]]:
    build, expected = LOOKS[request.param]
    torch.manual_seed(0)
    return build().double().eval(), torch.randn(3, T, D, dtype=torch.float64), expected


def test_as_dense_autograd(case: tuple[nn.Module, Tensor, set[int]]) -> None:
    model, x, expected = case
    net = ms.read(model, x)
    targets = torch.zeros(len(x), dtype=torch.long)
    trace, diagonal = (f(net, x, curvature="ggn") for f in (ms.hessian_trace, ms.hessian_diagonal))
    truth = {name: oracles.ggn_diagonal(model, x, targets, nn.CrossEntropyLoss(), name) for name in trace.by_parameter}
    assert positions(net, "q.weight" if isinstance(model, Plain) else "down.weight") == expected
    for name, value in truth.items():
        assert trace.by_parameter[name] == pytest.approx(float(value.sum()), rel=1e-10, abs=1e-14)
        torch.testing.assert_close(diagonal.by_parameter[name], value, rtol=1e-9, atol=1e-12)


def test_the_last_attention_runs_for_one_query() -> None:
    net = ms.read(Encoder(lambda x: x[:, 0]), torch.randn(3, T, D))
    graph = rewritten(net.graph, net.graph.parameters)
    (attention,) = (op for op in graph.operations if op.name == "scaled_dot_product_attention")
    shapes = {argument: graph.values[name].shape for argument, name in attention.by_argument.items()}
    assert shapes == {"query": (1, 2, 1, 2), "key": (1, 2, T, 2), "value": (1, 2, T, 2)}


def test_a_causal_attention_runs_for_all_queries() -> None:
    net = ms.read(Encoder(lambda x: x[:, 0], causal=True), torch.randn(3, T, D))
    graph = rewritten(net.graph, net.graph.parameters)
    (attention,) = (op for op in graph.operations if op.name == "scaled_dot_product_attention")
    assert graph.values[attention.by_argument["query"]].shape == (1, 2, T, 2)


def test_activations_are_those_of_all_tokens() -> None:
    torch.manual_seed(0)
    model, x = Encoder(lambda x: x[:, 0]).double(), torch.randn(3, T, D, dtype=torch.float64)
    found = ms.hessian_diagonal(model, x, curvature="ggn", of="activations").by_parameter
    assert found["down"].shape == (T, 5)
    assert found["down"][1:].abs().max() == 0 < found["down"][0].min()


class Packed(nn.Module):
    """Queries, keys and values along an axis of their own, each selected by itself."""

    def __init__(self, places: tuple[int, ...]):
        super().__init__()
        self.qkv, self.head, self.places = nn.Linear(D, 3 * D), nn.Linear(D, K), places

    def forward(self, x: Tensor) -> Tensor:
        """(n, T, D) -> (n, K)."""
        packed = self.qkv(x).unflatten(-1, (3, D)).permute(2, 0, 1, 3)
        q, k, v = (packed[place] for place in self.places)
        return self.head(F.scaled_dot_product_attention(q, k, v).mean(1))


@pytest.mark.parametrize(("places", "once"), [((0, 1, 2), 1), ((2, 0, -2), 1), ((0, 1, 1), 0)])
def test_each_place_selected_is_unbind(places: tuple[int, ...], once: int) -> None:
    torch.manual_seed(0)
    model, x = Packed(places).double(), torch.randn(3, T, D, dtype=torch.float64)
    net = ms.read(model, x)
    assert [op.name for op in rewritten(net.graph, net.graph.parameters).operations].count("unbind") == once
    targets, loss = torch.zeros(3, dtype=torch.long), nn.CrossEntropyLoss()
    for name, value in ms.hessian_diagonal(net, x, curvature="ggn").by_parameter.items():
        truth = oracles.ggn_diagonal(model, x, targets, loss, name)
        torch.testing.assert_close(value, truth, rtol=1e-9, atol=1e-12)
