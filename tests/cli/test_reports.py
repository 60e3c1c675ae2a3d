"""The reports that commands write: what they measured, in sections of its own."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from minsharp.cli.main import run
from tests.report.test_report import Tree

MODEL = f"{__name__}:factory"
Capture = pytest.CaptureFixture[str]


def factory() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5, bias=False), nn.Linear(5, 4))


def regressor() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)).double()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 6)), np.arange(24) % 4
    np.savez(tmp_path / "data.npz", x=x, y=y)
    np.savez(tmp_path / "line.npz", x=x, y=x[:, :1])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sections(path: Path) -> tuple[list[str], str]:
    tree = Tree(path.read_text(encoding="utf-8"))
    return [str(section["id"]) for section in tree.all("section")], " ".join(" ".join(tree.words).split())


def test_of_the_whole_group_with_an_estimate(folder: Path) -> None:
    given = ["measure", MODEL, "--data", "data.npz", "--scope", "full", "--curvature", "ggn", "--tolerance", "0.2"]
    assert run([*given, "--report", "r.html"]) == 0
    names, text = sections(folder / "r.html")
    assert names == ["numbers", "layers", "scales", "noise", "certificates", "settings"]
    assert "The frames, and what their matrices act on" in text
    assert "dashed ones were predicted" in text
    assert "relative noise" in text.lower()


def test_of_bits(folder: Path, capsys: Capture) -> None:
    given = ["bits", MODEL, "--data", "data.npz", "--bits", "2,4,8", "--budget", "3.5", "--noise", "max-per-channel"]
    assert run([*given, "--report", "r.html"]) == 0
    names, text = sections(folder / "r.html")
    assert names == ["numbers", "layers", "scales", "noise", "bits", "certificates", "settings"]
    assert "Rounded to nearest, one scale per output channel" in text
    assert re.search(r"bits by parameter, [\d.]+ in the mean", text)
    assert "wrote r.html" in capsys.readouterr().err


def test_of_the_flattest_network(folder: Path) -> None:
    given = ["flatten", MODEL, "--data", "data.npz", "--out", "f.safetensors", "--noise", "max", "--report", "r.html"]
    assert run(given) == 0
    names, text = sections(folder / "r.html")
    assert names == ["numbers", "layers", "scales", "noise", "certificates", "settings"]
    assert "Effect of noise 'max'" in text
    assert "Noise of a tensor's largest weight" in text


def test_of_a_network_without_classes(folder: Path) -> None:
    given = ["measure", f"{__name__}:regressor", "--data", "line.npz", "--loss", "mse", "--scope", "layer"]
    assert run([*given, "--report", "r.html"]) == 0
    names, _ = sections(folder / "r.html")
    assert "noise" in names


@pytest.mark.parametrize("command", [["bits"], ["flatten", "--out", "f.safetensors"], ["measure"]])
def test_where_it_could_not_be_written(command: list[str], folder: Path, capsys: Capture) -> None:
    name, *more = command
    assert run([name, "no.such:thing", "--data", "data.npz", *more, "--report", "r.pdf"]) == 2
    assert "cannot write 'r.pdf': expected a name that ends in .html or .htm" in capsys.readouterr().err
