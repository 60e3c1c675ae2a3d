"""`minsharp bits` and `minsharp flatten --noise`, as a user meets them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import minsharp as ms
from minsharp.cli.main import run

MODEL = "tests.cli.test_bits:factory"


def factory() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).double()


@pytest.fixture
def data(tmp_path: Path) -> str:
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    save_file({"x": x, "y": factory()(x.double()).argmax(1)}, tmp_path / "data.safetensors")
    return str(tmp_path / "data.safetensors")


def test_bits(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "bits.json", tmp_path / "size.svg"
    arguments = ["bits", MODEL, "--data", data, "--budget", "4", "--out", str(out), "--plot", str(plot), "--json"]
    assert run(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    held = load_file(data)
    expected = ms.allocate_bits(factory(), (held["x"].double(), held["y"]), budget=4.0)
    assert printed["bits"] == json.loads(out.read_text())["bits"] == dict(expected.bits)
    assert printed["increase"] == pytest.approx(expected.increase, rel=1e-9)
    assert "<svg" in plot.read_text()
    assert run(["bits", MODEL, "--data", data, "--size", "40"]) == 0
    assert "bits per weight" in capsys.readouterr().out


def test_bits_that_cannot_be(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bits", MODEL, "--data", data, "--budget", "1"]) == 2
    assert "no assignment meets it" in capsys.readouterr().err
    assert run(["bits", MODEL, "--data", data, "--bits", "few"]) == 2
    assert "--bits few: expected numbers with commas" in capsys.readouterr().err


def test_flatten_for_a_noise(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "flat.safetensors"
    arguments = [
        "flatten",
        MODEL,
        "--data",
        data,
        "--out",
        str(out),
        "--noise",
        "max",
        "--curvature",
        "margin",
        "--json",
    ]
    assert run(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    held = load_file(data)
    options = {"noise": "max", "curvature": "margin"}
    flat = ms.flattest(factory(), held["x"].double(), **options)  # type: ignore[arg-type]
    assert printed["noise"] == "max"
    assert printed["verification"]["holds"]
    for name, weight in load_file(out).items():
        assert torch.allclose(weight, flat.state_dict()[name], rtol=1e-9)
    assert run(["flatten", MODEL, "--data", data, "--out", str(out), "--noise", "max", "--power-of-two"]) == 2
    assert "power_of_two=True goes with" in capsys.readouterr().err
