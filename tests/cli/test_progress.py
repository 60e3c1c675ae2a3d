"""Whoever waits at a terminal sees how far a command is, and how much time is left."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from minsharp import demo
from minsharp.cli.main import run
from minsharp.demo.steps import Steps

MODEL = f"{__name__}:factory"
LEFT = r"\d+/\d+ \d+:\d\d:\d\d"
Capture = pytest.CaptureFixture[str]


def factory() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).double()


def plain(capsys: Capture) -> tuple[str, str]:
    """What was written, without colours and the like."""
    out, err = (re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text) for text in capsys.readouterr())
    return out, err


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
    out, err = plain(capsys)
    for name in bars:
        assert re.search(rf"{re.escape(name)}[^\n]* {LEFT}", err), name
    assert not re.search(LEFT, out)


def test_the_cells_of_an_experiment(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    given = [
        "reproduce",
        "labels",
        "--models",
        "MLP",
        "--train",
        "60",
        "--epochs",
        "1",
        "--ratios",
        "0",
        "--seeds",
        "2",
    ]
    given += ["--measures", "training-loss", "--workers", "1", "--out"]
    monkeypatch.setenv("COLUMNS", "200")
    assert run([*given, str(tmp_path / "unseen")]) == 0
    assert "left:" not in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run([*given, str(tmp_path / "seen")]) == 0
    out, err = plain(capsys)
    assert re.search(r"labels[^\n]* 2/2 cells \d+:\d\d:\d\d left: \d+:\d\d:\d\d", err)
    assert "left:" not in out


def test_the_steps_of_the_demo(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """With stories that take no time: where it is, and how far a step is."""
    seen: list[float] = []

    def experience(digits: object, step: Steps) -> tuple[None, None, None]:
        for title in ("one", "two", "three"):
            step(title)
            step.within(0.5)
            seen.append(step.done)
        return None, None, None

    stubs = {"experience": experience, "label_noise": lambda *_: None, "write": lambda *_: tmp_path / "report.html"}
    for name, stub in {**stubs, "stories": lambda *_: (), "besides": lambda *_: ()}.items():
        monkeypatch.setattr(demo, name, stub)
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["demo", "--out", str(tmp_path / "unseen")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "[1/5] one"
    assert lines[4] == "[5/5] writing the report and the figures"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(["demo", "--out", str(tmp_path / "seen")]) == 0
    out, err = plain(capsys)
    assert re.search(r"demo, \[5/5\] writing[^\n]* 100/100 ", err)
    assert re.search(rf"demo, \[\d/5\][^\n]* {LEFT}", err)
    assert not re.search(LEFT, out)
    ends = [sum(demo.SHARES[:i]) for i in range(3)]
    assert seen[:3] == [end + share / 2 for end, share in zip(ends, demo.SHARES, strict=False)]
    assert sum(demo.SHARES) == 100
