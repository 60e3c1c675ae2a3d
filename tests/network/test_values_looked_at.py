"""Forwards that look at values without letting them decide anything."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms

IDS = torch.randint(9, (3, 5), generator=torch.Generator().manual_seed(0))


class Masked(nn.Module):
    """torch's own encoder with a mask, which it compares with the causal one to be faster."""

    def __init__(self, hint: bool | None = None) -> None:
        super().__init__()
        self.embed, self.head, self.hint = nn.Embedding(9, 8), nn.Linear(8, 9), hint
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], dtype=self.head.weight.dtype)
        return self.head(self.blocks(self.embed(ids), mask=mask, is_causal=self.hint))


class Asserting(nn.Module):
    """Checks what it is given, as XLM does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        torch._check((ids != 2).sum(1).max().item() <= ids.shape[1])  # what pytest makes of an assert is not exported
        return self.head(self.embed(ids).mean(1))


class Counting(Asserting):
    """Lets the first sample decide over the others."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids).mean(1) * (ids[0] != 2).sum().item())


def trace(model: nn.Module, **options: Any) -> float:
    return ms.hessian_trace(model.double().eval(), IDS, curvature="ggn", **options).total


def test_a_mask_that_torch_looks_into() -> None:
    looks: Any = torch.nn.modules.transformer._detect_is_causal_mask
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Masked()
    found = trace(model, class_axis=-1)
    assert torch.nn.modules.transformer._detect_is_causal_mask is looks
    model.hint = True
    assert found == pytest.approx(trace(model, class_axis=-1), rel=1e-10)


def test_an_assertion_on_values() -> None:
    assert trace(Asserting()) > 0
    with pytest.raises(ms.ReadError, match="item in the model's forward"):
        trace(Counting())


UNUSED: dict[str, Callable[[Any, Tensor], Any]] = {
    "a number": lambda h, x: x.sum().item(),
    "numbers": lambda h, x: x[:1, 0].tolist(),
    "a whole number": lambda h, x: x.argmax().item(),
    "a number of a layer": lambda h, x: h.std().item(),
    "places": lambda h, x: torch.nonzero(x),
    "a mask": lambda h, x: x[x > 0],
    "a mask of a layer": lambda h, x: h[h > 0].mean(),
    "different ones": lambda h, x: torch.unique(x),
}


class Looking(nn.Module):
    """Computes something, and forgets it; or multiplies the outputs by it."""

    def __init__(self, looks: Callable[[Any, Tensor], Any], used: bool = False) -> None:
        super().__init__()
        self.layer, self.head, self.looks, self.used = nn.Linear(6, 5), nn.Linear(5, 3), looks, used
        self.register_buffer("scale", torch.tensor([0.5, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x).relu()
        found = self.looks(h, x)
        out: Tensor = self.head(h)
        return out * found if self.used else out


def looked(model: nn.Module) -> float:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        return ms.hessian_trace(model.double(), torch.randn(6, 6, dtype=torch.float64)).total


@pytest.mark.parametrize("name", UNUSED)
def test_what_nothing_uses_is_not_refused(name: str) -> None:
    assert looked(Looking(UNUSED[name])) == looked(Looking(lambda h, x: None))


@pytest.mark.parametrize("name", ["a number", "a whole number", "a number of a layer"])
def test_a_number_of_the_inputs_is_named(name: str) -> None:
    with pytest.raises(ms.ReadError, match=r"item in the model's forward \(found = self\.looks"):
        looked(Looking(UNUSED[name], used=True))


def test_a_number_of_parameters_is_named() -> None:
    model = Looking(lambda h, x: 0, used=True)
    model.looks = lambda h, x: model.layer.bias.sum().item()
    with pytest.raises(ms.ReadError, match=r"item in .* makes a Python number of parameters"):
        looked(model)


def test_a_number_of_buffers_is_a_number() -> None:
    model = Looking(lambda h, x: 0, used=True)
    model.looks = lambda h, x: model.scale.sum().item()  # type: ignore[operator]
    assert looked(model) == pytest.approx(looked(Looking(lambda h, x: 1.5, used=True)), rel=1e-12)


def decided(h: Tensor, x: Tensor) -> None:
    if torch.isnan(x).any():
        raise ValueError("NaN")


@pytest.mark.parametrize(
    ("looks", "line"),
    [(lambda h, x: int(x.argmax()), r"int\(x\.argmax\(\)\)"), (decided, r"if torch\.isnan\(x\)\.any\(\):")],
)
def test_decisions_on_values_name_the_line(looks: Any, line: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ms.ReadError, match=rf"branches on the values of a tensor.*\n  at .*: .*{line}"):
        looked(Looking(looks))
    assert not any(capfd.readouterr()), "torch.export prints the graph that it has"


class WordlessError(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no words")


def wordless(h: Tensor, x: Tensor) -> None:
    raise WordlessError


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        (wordless, "a WordlessError that has no words"),
        (lambda h, x: sys.exit(0), r"it ends the program \(SystemExit: 0\)"),
    ],
)
def test_whatever_forward_raises_names_the_model(looks: Any, said: str) -> None:
    with pytest.raises(ms.MinsharpError, match=f"Looking does not run on .*: {said}"):
        looked(Looking(looks))


@pytest.mark.parametrize("drops", [nn.functional.dropout, nn.functional.alpha_dropout])
def test_dropout_of_nothing(drops: Any) -> None:
    model = Looking(lambda h, x: drops(x[:, :1], 0.0, True), used=True)
    assert looked(model) == pytest.approx(looked(Looking(lambda h, x: x[:, :1], used=True)), rel=1e-12)
    with pytest.raises(ms.ReadError, match="draws random numbers"):
        looked(Looking(lambda h, x: drops(x[:, :1], 0.5, True), used=True))


class Guarded(nn.Module):
    """Clamps lower where something has overflowed, as T5 of transformers does in float16 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        if y.dtype != torch.float16:
            return y
        most = torch.where(y.isinf().any(), 64504.0, 65504.0)
        return y.clamp(min=-most, max=most)


def test_a_guard_against_overflow_is_told_of_in_half_precision() -> None:
    x = torch.randn(6, 4)
    with pytest.raises(
        ms.ReadError, match=r"any in .* mixes the samples .*measure model\.bfloat16\(\) or model\.float\(\)"
    ):
        ms.hessian_trace(Guarded().half(), x.half())
    assert ms.hessian_trace(Guarded().bfloat16(), x.bfloat16()).total > 0
    with pytest.raises(ms.ReadError, match=r"one for all samples.*one number per sample: x\.flatten\(1\)\.sum\(1\)$"):
        trace(Counting())


class Branching(Asserting):
    """Decides by a value, and says so."""

    def forward(self, ids: Tensor) -> Tensor:
        print("forward")
        x = self.embed(ids)
        return self.head(x.mean(1)) if x.sum() > 0 else self.head(x.sum(1))


def test_where_torch_export_gives_up_it_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Its graph, hundreds of lines on stderr for a transformer; what forward prints stays."""
    for _ in range(2):
        with pytest.raises(ms.ReadError, match="forward branches on the values of a tensor"):
            trace(Branching())
        out, err = capsys.readouterr()
        assert err == ""
        assert "forward" in out
    assert not hasattr(import_module("torch.export._trace"), "print")


class Settling(nn.Module):
    """Changes its weights in its first run, as RWKV of transformers does for inference."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.settled = nn.Linear(4, 3), False

    def forward(self, x: Tensor) -> Tensor:
        if not self.settled:
            with torch.no_grad():
                self.layer.weight.div_(2)
            self.settled = True
        y: Tensor = self.layer(x)
        return y


def test_what_forward_does_once_is_done_by_a_run() -> None:
    torch.manual_seed(0)
    model, x = Settling(), torch.randn(6, 4)
    with pytest.raises(ms.ReadError, match=r"no longer there once it has run: model\.eval\(\)\(inputs\)"):
        ms.hessian_trace(model, x)
    model(x)
    assert ms.hessian_trace(model, x).total == ms.hessian_trace(model.layer, x).total
