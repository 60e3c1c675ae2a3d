"""Forwards that look at values without letting them decide anything."""

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
    with pytest.raises(ms.ReadError, match="mixes the samples"):
        trace(Counting())


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
    with pytest.raises(ms.ReadError, match=r"depends on its own input$"):
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
