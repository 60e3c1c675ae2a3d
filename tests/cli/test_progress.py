"""Whoever waits at a terminal sees how far a command is, and how much time is left."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from minsharp.cli.main import run

MODEL = f"{__name__}:factory"
LEFT = r"\d+/\d+ \d+:\d\d:\d\d"
Capture = pytest.CaptureFixture[str]


def factory() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).double()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(12, 6)), y=np.arange(12) % 4)
    monkeypatch.chdir(tmp_path)
    return "data.npz"


@pytest.mark.parametrize(
    ("arguments", "bars"),
    [
        (["measure", "--verify"], ["samples", "second derivatives"]),
        (["measure", "--report", "r.html"], ["samples", "second derivatives", "noise, absolute", "noise, relative"]),
        (["flatten", "--out", "f.safetensors"], ["samples", "second derivatives"]),
        (["compare", "--rescalings", "1", "--measures", "trace"], ["measures"]),
        (["bits", "--plot", "b.svg"], ["samples", "rounding, max"]),
        (["bench", "--repeat", "1"], [f"timing {MODEL}"]),
    ],
    ids=lambda given: " ".join(given[:2]),
)
def test_bars_with_the_time_left(
    arguments: list[str], bars: list[str], data: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, *more = arguments
    given = [command, MODEL, "--data", data, *more]
    monkeypatch.setenv("COLUMNS", "200")
    assert run(given) == 0
    assert not re.search(LEFT, capsys.readouterr().err)  # nobody looks
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(given) == 0
    out, err = (re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text) for text in capsys.readouterr())
    for name in bars:
        assert re.search(rf"{re.escape(name)}[^\n]* {LEFT}", err), name
    assert not re.search(LEFT, out)
