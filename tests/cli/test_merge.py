"""`minsharp merge`: the parts add up to the whole, and what does not belong together is refused."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.cli.main import run

Capture = pytest.CaptureFixture[str]


def factory() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).double()


X = torch.randn(9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_parts_add_up(tmp_path: Path, capsys: Capture) -> None:
    model = factory()
    paths = [str(ms.hessian_trace(model, X[i : i + 4]).save(tmp_path / f"{i}.json")) for i in (0, 4, 8)]
    out = tmp_path / "whole.safetensors"
    assert run(["merge", *paths, "--out", str(out), "--json"]) == 0
    whole = ms.hessian_trace(model, X)
    printed = json.loads(capsys.readouterr().out)
    assert printed["total"] == pytest.approx(whole.total, rel=1e-14)
    assert printed["samples"] == 9
    assert ms.load(out).by_parameter == pytest.approx(whole.by_parameter, rel=1e-14)
    assert run(["merge", *paths]) == 0
    assert "Hessian trace of CrossEntropyLoss over 9 samples" in capsys.readouterr().out


def test_a_measurement_is_kept(tmp_path: Path, capsys: Capture) -> None:
    import numpy as np

    np.savez(tmp_path / "x.npz", x=X.numpy())
    out = tmp_path / "diagonal.safetensors"
    data = str(tmp_path / "x.npz")
    assert run(["measure", "tests.cli.test_merge:factory", "--data", data, "--save", str(out)]) == 0
    assert ms.load(out) == ms.hessian_diagonal(factory(), X)
    assert "wrote" in capsys.readouterr().err


def test_what_does_not_add_up(tmp_path: Path, capsys: Capture) -> None:
    model = factory()
    first = str(ms.hessian_trace(model, X).save(tmp_path / "first.json"))
    second = str(ms.hessian_trace(model, X, nn.MSELoss()).save(tmp_path / "second.json"))
    assert run(["merge", first, second]) == 2
    assert "second.json' does not belong to" in (said := capsys.readouterr().err)
    assert "loss CrossEntropyLoss and MSELoss" in said
    assert run(["merge", first, first]) == 2
    assert "is given twice: its samples would count twice" in capsys.readouterr().err
    third = str(ms.minimum_sharpness(model, X).save(tmp_path / "third.json"))
    assert run(["merge", third]) == 2
    assert "holds a MinimumSharpness: only traces, diagonals and Gram matrices add up" in capsys.readouterr().err
