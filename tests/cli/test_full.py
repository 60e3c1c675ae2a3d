"""The whole group on the command line: two linear maps in a row have a frame."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import minsharp as ms
from minsharp.cli.main import run


def pair() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)).double()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.npz"
    rng = np.random.default_rng(0)
    np.savez(path, x=rng.normal(size=(30, 6)), y=rng.integers(4, size=30))
    return path


def test_measure_flatten_and_compare_know_the_whole_group(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, x = f"{__name__}:pair", torch.from_numpy(np.load(data)["x"])
    least = ms.minimum_sharpness(pair(), x, scope="full").value
    report, out = tmp_path / "out.html", tmp_path / "flat.safetensors"

    options = ["--scope", "full", "--json"]
    assert run(["measure", model, "--data", str(data), *options, "--report", str(report)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["minimum_sharpness"]["full"]["value"] == pytest.approx(least, rel=1e-12)
    assert found["minimum_sharpness"]["full"]["frames"][0]["size"] == 3
    assert found["verification"]["full"]["holds"]
    page = report.read_text(encoding="utf-8")
    assert "0.weight[0], 3 x 3" in page
    assert "the singular values are shown" in page
    assert "no rescaling or change of basis goes lower" in page

    assert run(["flatten", model, "--data", str(data), *options, "--out", str(out)]) == 0
    flat = pair()
    flat.load_state_dict(load_file(out))
    assert torch.allclose(flat(x), pair()(x), rtol=1e-9)
    assert ms.hessian_trace(flat, x).total == pytest.approx(least, rel=1e-6)
    capsys.readouterr()

    names = ["trace", "minimum sharpness (full)"]
    chosen = [word for name in names for word in ("--measures", name)]
    assert run(["compare", model, "--data", str(data), *options, *chosen]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["trace"]["drift"] > 1e-2
    assert rows["minimum sharpness (full)"]["drift"] < 1e-8
