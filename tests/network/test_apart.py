"""Samples that meet, count each other or know their place are noticed; those that only look as if they did are not."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minsharp as ms
from tests.support.networks import D, Own, X, Y, oracle, plain


def cut(size: int) -> Callable[[Any, Tensor], Tensor]:
    return lambda m, x: plain(m, x) if x.shape[0] % size != size - 1 else plain(m, 2 * x)


TAPS = torch.tensor([1e-7, 1.0, 1e-7], dtype=D)
MEETING: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "a little": (lambda m, x: (lambda o: o + 4.5e-4 * o.roll(1, 0))(plain(m, x)), "roll"),
    "very little": (lambda m, x: (lambda o: o + 1e-7 * o.flip(0))(plain(m, x)), "flip"),
    "softmax": (lambda m, x: m.head(m.a(x).softmax(0)), "softmax"),
    "batch statistics": (lambda m, x: m.head(F.batch_norm(m.a(x), None, None, training=True)), "batch_norm"),
    "cumsum": (lambda m, x: m.head(m.a(x).cumsum(0)), "cumsum"),
    "cummax": (lambda m, x: m.head(m.a(x).cummax(0)[0]), "cummax"),
    "flip": (lambda m, x: m.head(m.a(x.flip(0))), "flip"),
    "sort": (lambda m, x: m.head(m.a(x).sort(0)[0]), "sort"),
    "mean": (lambda m, x: m.head(m.a(x) - 1e-6 * m.a(x).mean(0)), "mean"),
    "normalize": (lambda m, x: m.head(F.normalize(m.a(x), dim=0)), "linalg_vector_norm"),
    "convolution": (
        lambda m, x: m.head(F.conv1d(m.a(x).T[None], torch.ones(6, 1, 3, dtype=D), padding=1, groups=6)[0].T),
        "conv1d",
    ),
    "a small kernel": (
        lambda m, x: m.head(F.conv1d(m.a(x).T[None], TAPS.expand(6, 1, 3), padding=1, groups=6)[0].T),
        "conv1d",
    ),
    "layer norm": (lambda m, x: m.head(F.layer_norm(m.a(x).T, (x.shape[0],)).T), "layer_norm"),
    "detached": (lambda m, x: m.head(m.a(x) * m.a(x).detach().softmax(0)), "softmax"),
    "whole numbers": (lambda m, x: m.head(m.a(x) * (x > 0).int().cumsum(0).to(D)), "cumsum"),
    "a count": (lambda m, x: plain(m, x) * (x > 0).sum().to(D), "sum"),
    "behind a gate": (lambda m, x: m.head(torch.where(m.a(x) > 50, m.a(x).flip(0), m.a(x))), "flip"),
    "there and back": (lambda m, x: (lambda i: plain(m, x[i])[i.argsort()])(x[:, 0].argsort()), "argsort"),
    "divided by n": (lambda m, x: plain(m, x) / x.shape[0], "div"),
    "places": (lambda m, x: plain(m, x) * torch.arange(x.shape[0]).unsqueeze(1), "arange"),
    "a weight over n": (lambda m, x: x @ (m.head.weight / x.shape[0]).T, "div"),
}


@pytest.mark.parametrize("name", MEETING)
def test_samples_that_meet(name: str) -> None:
    function, operation = MEETING[name]
    with pytest.raises(ms.ReadError, match=rf"(mixes the samples|samples of the batch).*|{operation} in") as error:
        ms.read(Own(function), X)
    assert f"{operation} in the model's forward" in str(error.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_hides_nothing(dtype: torch.dtype) -> None:
    function, _ = MEETING["very little"]
    with pytest.raises(ms.ReadError, match="flip in the model's forward"):
        ms.read(Own(function).to(dtype), X.to(dtype))


FIXED: dict[str, Callable[[Any, Tensor], Any]] = {
    "a full tensor": lambda m, x: plain(m, x) * torch.full((x.shape[0], 1), float(x.shape[0]), dtype=D),
    "a length": lambda m, x: plain(m, x) + 1e-7 * len(x),
    "a condition": lambda m, x: plain(m, x) if x.shape[0] < 4 else -plain(m, x),
    "even and odd": cut(2),
    "every fourth": cut(4),
    "three": lambda m, x: plain(m, x) if x.shape[0] != 3 else plain(m, -x),
}


@pytest.mark.parametrize("name", FIXED)
def test_conditions_on_the_number_of_samples(name: str) -> None:
    with pytest.raises(ms.ReadError, match="batch size"):
        ms.read(Own(FIXED[name]), X)


ALONE: dict[str, Callable[[Any, Tensor], Any]] = {
    "a batch of one": lambda m, x: plain(m, x) if x.shape[0] > 1 else plain(m, 2 * x),
    "Python": lambda m, x: plain(m, x) * random.random(),
    "NumPy": lambda m, x: plain(m, x) * np.random.rand(),
}


@pytest.mark.parametrize("name", ALONE)
def test_what_only_running_shows(name: str) -> None:
    with pytest.raises(ms.ReadError, match=r"returns other numbers than torch\.export recorded"):
        ms.read(Own(ALONE[name]), X)


def zero_mean(m: Any, x: Tensor) -> Any:
    h = m.a(x)
    return m.head(h + 1e3 * (h - h.mean(1, keepdim=True)).mean(1, keepdim=True))


def winner(m: Any, x: Tensor) -> Any:
    h = m.a(x)
    return m.head(h * (h == h.amax(1, keepdim=True)))


def pieces(m: Any, x: Tensor) -> Tensor:
    made = torch.empty(x.shape[0], 6, dtype=D)
    made[:, :3] = m.a(x)[:, :3]
    made[:, 3:] = x[:, 3:]
    return made


APART: dict[str, Callable[[Any, Tensor], Any]] = {
    "indexed by place": lambda m, x: m.head(
        m.a(x).view(-1, 2, 3)[torch.arange(x.shape[0]), (x[:, 0] > 0).long()].repeat(1, 2)
    ),
    "n cancels": lambda m, x: m.head(m.a(x).reshape(x.shape[0] * 2, 3).reshape(x.shape[0], 6)),
    "expanded": lambda m, x: m.head(m.a(x) + m.buffer.expand(x.shape[0], 6)),
    "a class token": lambda m, x: m.head(torch.cat([m.b.bias.expand(x.shape[0], 1, 6), m.a(x).unsqueeze(1)], 1).sum(1)),
    "masked": lambda m, x: m.head(m.a(x).masked_fill(x > 0, float("-inf")).softmax(1).nan_to_num(0)),
    "not for negatives": lambda m, x: m.head(m.a(x) * torch.where(x > 0, x.log(), 0.0)),
    "rounding alone": zero_mean,
    "equal to the largest": winner,
    "zero": lambda m, x: m.head(m.a(x) - m.a(x) + m.b(x)),
    "other strides": lambda m, x: m.head(m.a(x).view(-1, 2, 3).transpose(1, 2).contiguous().view(-1, 6)),
    "bits": lambda m, x: m.head(m.a(x) * (x.view(torch.int64) % 2).to(D)),
    "there and back": lambda m, x: m.head(m.a(x.flip(0).flip(0))),
    "a flat index": lambda m, x: m.head(
        m.a(x).view(-1, 3)[torch.arange(x.shape[0]) * 2 + (x[:, 0] > 0).long()].repeat(1, 2)
    ),
    "places that do not count": lambda m, x: m.head(m.a(x) * (torch.arange(x.shape[0]).unsqueeze(1) * 0 + 1)),
    "put where it belongs": lambda m, x: m.head(
        m.a(x)
        * torch.zeros(x.shape[0], 6, dtype=D).index_put((torch.arange(x.shape[0]), (x[:, 0] > 0).long()), x[:, 1])
    ),
    "filled piece by piece": lambda m, x: m.head(pieces(m, x)),
    "a flag that is never up": lambda m, x: m.head(m.a(x).masked_fill((x > 30).any(1, keepdim=True), 0.0)),
}


@pytest.mark.parametrize("name", APART)
def test_samples_that_do_not_meet(name: str) -> None:
    model = Own(APART[name])
    found = ms.hessian_trace(model, (X, Y), curvature="ggn").by_parameter
    for parameter, expected in oracle(model).items():
        assert found.get(parameter, 0.0) == pytest.approx(expected, rel=1e-9, abs=1e-14)


class Residue(nn.Module):
    """What rounding leaves of a difference that is zero, magnified: it is another one in every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(300, 40), nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        twice = (x.unsqueeze(1) * self.layer.weight).sum(2) + self.layer.bias
        out: Tensor = self.head(1e12 * (self.layer(x) - twice))
        return out


def test_rounding_is_told_from_meeting() -> None:
    ms.read(Residue().double(), torch.randn(7, 300, generator=torch.Generator().manual_seed(0), dtype=D))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e-4, 1.0, 5.0])
def test_any_precision_and_size(dtype: torch.dtype, size: float) -> None:
    """Deep networks that magnify every rounding error, and attention."""
    layers = [layer for _ in range(20) for layer in (nn.Linear(6, 6), nn.Tanh())]
    deep = nn.Sequential(*layers, nn.Linear(6, 3)).to(dtype)
    attention = nn.Sequential(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), nn.Flatten(), nn.Linear(12, 3))
    for model, x in ((deep, X), (attention.to(dtype), X.view(3, 2, 6))):
        for parameter in model.parameters():
            parameter.data.mul_(size)
        ms.read(model, x.to(dtype))


def test_few_samples_that_are_all_the_same() -> None:
    """The example need not show that samples meet: others are drawn."""
    meeting = Own(MEETING["softmax"][0])
    for example in (torch.zeros(1, 6, dtype=D), torch.ones(7, 6, dtype=D), X[:2]):
        with pytest.raises(ms.ReadError, match="softmax in the model's forward"):
            ms.read(meeting, example)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_words(mode: str) -> None:
    """torch says for each word which sample it is of: that differs from batch to batch, and what comes out does not."""
    ms.read(nn.EmbeddingBag(6, 3, mode=mode), torch.randint(6, (4, 3), generator=torch.Generator().manual_seed(0)))


class Tokens(nn.Module):
    """Words of which only five are known."""

    def __init__(self, meet: bool) -> None:
        super().__init__()
        self.words, self.head, self.meet = nn.Embedding(5, 4), nn.Linear(4, 3), meet

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(ids).sum(1))
        return out + 1e-3 * out.roll(1, 0) if self.meet else out


@pytest.mark.parametrize("ids", [torch.zeros(1, 3), torch.full((2, 3), 4.0), torch.arange(15).view(5, 3) % 5])
def test_words(ids: Tensor) -> None:
    """Numbers that stand for something else are not made up where that fails."""
    assert ms.hessian_trace(Tokens(False), ids.long()).total > 0
    if len(ids.unique()) > 1 or int(ids.max()) < 4:
        with pytest.raises(ms.ReadError, match="roll in the model's forward"):
            ms.read(Tokens(True), ids.long())


class Rounded(torch.autograd.Function):
    """A backward that is not the derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def under_autocast(m: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16, enabled=False), torch.no_grad():
        h = m.a(x)
    return m.head(h)


def rounded(m: Any, x: Tensor) -> Any:
    return m.head(Rounded.apply(m.a(x)))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("function", [rounded, under_autocast])
def test_derivatives_that_are_not_those_of_the_operations(function: Callable[[Any, Tensor], Any]) -> None:
    with pytest.raises(ms.ReadError, match=r"in 'a\.weight' that autograd takes is not that of the operations"):
        ms.read(Own(function), X)


def beside(other: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Any]:
    """A layer times one and what other samples, or the place in the batch, make of a sample: (n, 1)."""
    return lambda m, x: m.head(m.a(x).relu() * (1 + other(x)))


HIDDEN: dict[str, tuple[Callable[[Any, Tensor], Any], str]] = {
    "any": (beside(lambda x: (x.flip(0) > 30).any(1, keepdim=True)), "flip"),
    "relu": (beside(lambda x: (x.roll(1, 0) - 25).relu().sum(1, keepdim=True)), "roll"),
    "cummax": (beside(lambda x: (x.cummax(0)[0] - 25).relu()), "cummax"),
    "truth values": (beside(lambda x: (x > 30).flip(0)), "flip"),
    "counted": (beside(lambda x: (x > 30).cumsum(0)), "cumsum"),
    "sorted": (beside(lambda x: (x - 25).relu().sort(0)[0]), "sort"),
    "of a layer": (lambda m, x: m.head(m.a(x) * (1 + (m.a(x) > 50).flip(0))), "flip"),
    "a late place": (beside(lambda x: (torch.arange(x.shape[0]) > 100).unsqueeze(1)), "arange"),
    "a late place of a sample": (beside(lambda x: torch.arange(x.shape[0]).unsqueeze(1) > 100 + x), "arange"),
    "at the outputs": (lambda m, x: plain(m, x) + (x.flip(0) > 30).any(1, keepdim=True), "flip"),
    "in a table": (lambda m, x: plain(m, x) + m.buffer[(x.flip(0) > 30).any(1).long()].unsqueeze(1), "flip"),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_samples_that_meet_for_other_numbers(name: str) -> None:
    """Not for those that the network is read with: what the data hold later must not change what was claimed."""
    function, operation = HIDDEN[name]
    with pytest.raises(ms.ReadError, match=rf"It starts at {operation} in the model's forward"):
        ms.read(Own(function), X)


def test_whole_numbers_that_meet_for_others() -> None:
    class Near(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(9, 6), nn.Linear(6, 3)

        def forward(self, ids: Tensor) -> Tensor:
            near = (ids.roll(1, 0) == 7).any(1, keepdim=True)
            out: Tensor = self.head(self.words(ids).mean(1) * (1 + near))
            return out

    with pytest.raises(ms.ReadError, match="roll in the model's forward"):
        ms.read(Near(), torch.zeros(12, 4, dtype=torch.long))


def test_a_number_per_sample() -> None:
    """Inputs (n,), without any other axis."""
    ms.read(Own(lambda m, x: m.head(x.unsqueeze(1) * m.buffer)), X[:, 0])
    with pytest.raises(ms.ReadError, match="flip in the model's forward"):
        ms.read(Own(lambda m, x: m.head((x + (x > 30).flip(0)).unsqueeze(1) * m.buffer)), X[:, 0])


@pytest.mark.parametrize(
    "counts",
    [
        lambda out: out * max(out.shape[0], 50),
        lambda out: out[torch.arange(out.shape[0]).clamp(max=7)],
        lambda out: out * (1 + out.shape[0] // 100),
        lambda out: out + torch.full((out.shape[0], 1), out.shape[0] // 100),
    ],
)
def test_large_batches_are_no_other_than_small_ones(counts: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ms.ReadError, match=r"outputs for one sample|batch sizes"):
        ms.read(Own(lambda m, x: counts(plain(m, x))), X)
