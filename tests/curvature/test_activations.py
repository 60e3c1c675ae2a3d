"""The inputs of layers as parameters, against hooks on the model itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import minsharp as ms
from minsharp.curvature.activations import activations
from minsharp.errors import InputError

CE = nn.CrossEntropyLoss()
N = 4


class Oracle:
    """Adds zeros of one's own to what goes into a module at one of its calls, by a hook, and differentiates in them."""

    def __init__(self, model: nn.Module, module: str, call: int, x: Any, y: Tensor, place: int = 0):
        self.model, self.call, self.x, self.y, self.place = model.eval(), call, x, y, place
        self.module = model.get_submodule(module)
        self.shape = self._shape()

    def _run(self, change: Callable[[Tensor], Tensor]) -> Tensor:
        calls = iter(range(1 << 30))

        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> Any:
            given = list(args)
            if next(calls) == self.call:
                given[self.place] = change(given[self.place])
            return tuple(given)

        handle = self.module.register_forward_pre_hook(hook)
        try:
            return self.model(self.x)
        finally:
            handle.remove()

    def _shape(self) -> torch.Size:
        found: list[torch.Size] = []

        def look(v: Tensor) -> Tensor:
            found.append(v.shape)
            return v

        self._run(look)
        return found[0]

    @property
    def outputs(self) -> Callable[[Tensor], Tensor]:
        return lambda d: self._run(lambda v: v + d)

    def hessian(self) -> Tensor:
        """The diagonal of the Hessian in all entries of all samples, shaped like the input."""
        zero = torch.zeros(self.shape, dtype=torch.float64)
        with sdpa_kernel(SDPBackend.MATH):
            H = torch.autograd.functional.hessian(lambda d: CE(self.outputs(d), self.y), zero)
        return H.reshape(zero.numel(), -1).diagonal().reshape(self.shape)

    def gauss_newton(self) -> Tensor:
        """Likewise of J^T (d²loss/do²) J."""
        zero = torch.zeros(self.shape, dtype=torch.float64)
        with sdpa_kernel(SDPBackend.MATH):
            J = torch.autograd.functional.jacobian(self.outputs, zero)
        o = self.outputs(zero).detach()
        S = torch.autograd.functional.hessian(lambda o: CE(o, self.y), o).reshape(o.numel(), -1)
        J = J.reshape(o.numel(), -1)
        return torch.einsum("ip,ij,jp->p", J, S, J).reshape(self.shape)


class Residual(nn.Module):
    """Convolutions, pools, a norm, a connection past a layer that bends."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.inner = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(self.norm(self.first(x)).relu(), 2)
        h = h + self.inner(h).relu()
        return self.head(F.avg_pool2d(h, 1).flatten(1))


class Again(nn.Module):
    """One layer, called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.loop, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x).relu()
        for _ in range(3):
            h = self.loop(h).relu()
        return self.head(h)


class Cells(nn.Module):
    """A cell that runs along a sequence, with two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(2, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x[:, 0].repeat(1, 2)[:, :3]
        for t in range(2):
            h = self.cell(x[:, t], h)
        return self.head(h)


class Transformer(nn.Module):
    """Tokens, positions, attention with its samples on the second axis, and rows of all tokens end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(5, 4), nn.Parameter(torch.randn(3, 4))
        self.norm, self.attention = nn.LayerNorm(4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.up, self.last, self.head = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.tokens(x) + self.positions)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        h = self.last(F.gelu(self.up(h.flatten(0, 1)))).view(-1, 3, 4)
        return self.head(h.mean(1))


def images() -> Tensor:
    return torch.randn(N, 2, 4, 4).double()


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], dict[str, tuple[str, int, int]]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)),
        lambda: torch.randn(N, 3).double(),
        {"0": ("0", 0, 0), "2": ("2", 0, 0)},
    ),
    "smooth": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 3)),
        lambda: torch.randn(N, 3).double(),
        {"0": ("0", 0, 0), "2": ("2", 0, 0), "3": ("3", 0, 0)},
    ),
    "residual": (Residual, images, {n: (n, 0, 0) for n in ("first", "norm", "inner", "head")}),
    "again": (
        Again,
        lambda: torch.randn(N, 3).double(),
        {"enter": ("enter", 0, 0), "head": ("head", 0, 0)}
        | {n: ("loop", k, 0) for k, n in enumerate(("loop", "loop (2)", "loop (3)"))},
    ),
    "cells": (
        Cells,
        lambda: torch.randn(N, 2, 2).double(),
        {
            "cell (input)": ("cell", 0, 0),
            "cell (hx)": ("cell", 0, 1),
            "cell (input) (2)": ("cell", 1, 0),
            "cell (hx) (2)": ("cell", 1, 1),
            "head": ("head", 0, 0),
        },
    ),
    "transformer": (
        Transformer,
        lambda: torch.randint(5, (N, 3)),
        {n: (n, 0, 0) for n in ("norm", "up", "last", "head")},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_traces_and_diagonals_are_those_of_hooks(name: str) -> None:
    torch.manual_seed(2)
    make, draw, places = CASES[name]
    model, x, y = make().double().eval(), draw(), torch.tensor([0, 1, 2, 1])
    layers = activations(ms.read(model, x))
    trace = ms.hessian_trace(layers, (x, y), curvature="ggn")
    diagonal = ms.hessian_diagonal(layers, (x, y), curvature="ggn").by_parameter
    assert set(places) <= set(trace.by_parameter)
    for layer, (module, call, place) in places.items():
        oracle = Oracle(model, module, call, x, y, place)
        expected = oracle.gauss_newton()
        assert trace.by_parameter[layer] == pytest.approx(float(expected.sum()), rel=1e-9)
        rows = expected.reshape(N, -1).sum(0)  # samples first, or (n*T, ...) with the samples outermost
        assert torch.allclose(diagonal[layer].flatten(), rows, rtol=1e-8, atol=1e-14)
        if trace.exact[layer]:
            assert torch.allclose(oracle.hessian(), expected, rtol=1e-8, atol=1e-12)
    exact = {layer for layer in places if trace.exact[layer]}
    bends = {"smooth": {"3"}, "cells": {"head"}, "transformer": {"last", "head"}}
    assert exact == bends.get(name, set(places))


def test_names_tell_what_goes_in_where() -> None:
    model = Transformer()
    layers = activations(ms.read(model, torch.zeros(2, 3, dtype=torch.int64)))
    expected = ["add (positions)", "norm", "attention", "attention.out_proj", "up", "last", "head"]
    assert list(layers.parameters) == expected
    assert layers.skipped == {"tokens": "its input is torch.int64, and the loss has no derivative in it"}


def test_names_stay_apart() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add, self.weight = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
            self.tied = nn.Linear(3, 3)
            self.pair = nn.Bilinear(3, 3, 3)
            self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))

        def forward(self, x: Tensor) -> Tensor:
            h = (x + self.add) * self.weight + self.add
            h = F.linear(self.tied(h), self.tied.weight)
            return self.normed(self.pair(h, h))

    names = list(activations(ms.read(Own(), torch.zeros(2, 3))).parameters)
    sums = ["add (add)", "mul (weight)", "add (add) (2)"]
    assert names == [*sums, "tied", "tied (2)", "pair (input1)", "pair (input2)", "normed"]


def test_the_samples_may_be_on_any_axis() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x.transpose(0, 1)).relu()  # (T, n, 3)
            h = self.b(h.flatten(0, 1)).relu().view(2, -1, 3)  # (T * n, 3): every T has all samples
            return self.head(h.mean(0))

    torch.manual_seed(0)
    model, x, y = Turned().double(), torch.randn(N, 2, 3).double(), torch.tensor([0, 1, 2, 1])
    layers = activations(ms.read(model, x))
    diagonal = ms.hessian_diagonal(layers, x).by_parameter
    for name in ("a", "b"):
        expected = Oracle(model, name, 0, x, y).hessian().view(2, N, 3).sum(1)
        assert torch.allclose(diagonal[name].view(2, 3), expected, rtol=1e-9)


def test_the_weights_of_the_moment_are_used_and_nothing_is_touched() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    layers = activations(ms.read(model, x))
    first = ms.hessian_trace(layers, x).total
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    with torch.no_grad():
        model.get_parameter("2.weight").mul_(0)
    assert first > 0
    assert ms.hessian_trace(layers, x).total == 0


def test_layers_are_chosen_by_pattern() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3)
    layers = activations(ms.read(model, x))
    assert list(ms.hessian_trace(layers, x, parameters="2").by_parameter) == ["2"]


def test_a_network_without_layers_that_can_be_differentiated_is_refused() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.table(x).mean(1)

    network = ms.read(Bag(), torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(InputError, match=r"no layer has inputs .*\n  table: its input is torch.int64"):
        activations(network)
