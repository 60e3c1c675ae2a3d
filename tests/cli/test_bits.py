"""`minsharp bits` and `minsharp flatten --noise`, as a user meets them."""

import json
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import minsharp as ms
from minsharp.cli.main import run
from minsharp.measures.prices import Costs

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


def test_what_the_costs_are_made_of(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held, report = load_file(data), tmp_path / "report.html"
    pair = (held["x"].double(), held["y"])
    save_file({"x": held["x"]}, tmp_path / "unlabelled.safetensors")
    for costs in get_args(Costs):
        assert run(["bits", MODEL, "--data", data, "--costs", costs, "--json"]) == 0
        expected = ms.allocate_bits(factory(), pair, costs=costs)
        printed = json.loads(capsys.readouterr().out)
        assert (printed["costs"], printed["bits"]) == (costs, dict(expected.bits))
        assert printed["increase"] == pytest.approx(expected.increase, rel=1e-9)
    arguments = ["bits", MODEL, "--data", str(tmp_path / "unlabelled.safetensors"), "--budget", "2"]
    assert run([*arguments, "--report", str(report)]) == 0
    warning = "2 bits in 0.weight, 2.weight: what curvature alone predicts"
    printed = " ".join(capsys.readouterr().out.split())
    assert warning in printed
    assert "or ask for --costs both with labelled data" in printed
    assert run([*arguments, "--json"]) == 0
    assert "or ask for --costs both" in json.loads(capsys.readouterr().out)["warning"]
    assert warning in report.read_text()
    assert run([*arguments, "--costs", "measured"]) == 2
    assert "is measured with targets" in capsys.readouterr().err
    assert run(["bits", MODEL, "--data", data, "--costs", "guess"]) == 2
    assert "'guess' is not one of 'curvature', 'measured', 'both'" in capsys.readouterr().err


def smooth() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()


def test_reports_of_smooth_networks_go_without_what_they_cannot_have(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.html"
    arguments = ["bits", "tests.cli.test_bits:smooth", "--data", data, "--costs", "measured", "--report", str(report)]
    assert run(arguments) == 0
    captured = capsys.readouterr()
    assert "bits per weight" in captured.out
    assert "the report goes without the flattest network" in captured.err
    assert "--tolerance 0.01" in captured.err
    assert report.exists()


def test_what_is_asked_is_checked_before_measuring(
    data: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("minsharp.cli.bits.hessian_diagonal", measured)
    arguments = ["bits", MODEL, "--data", data]
    assert run([*arguments, "--costs", "both", "--per", "channel"]) == 2
    assert "--costs both" in capsys.readouterr().err
    assert run([*arguments, "--budget", "1"]) == 2
    assert "no assignment meets it" in capsys.readouterr().err


def test_bits_of_channels(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot, report = tmp_path / "bits.json", tmp_path / "size.svg", tmp_path / "report.html"
    files = ["--out", str(out), "--plot", str(plot), "--report", str(report)]
    assert run(["bits", MODEL, "--data", data, "--per", "channel", "--noise", "max-per-channel", *files]) == 0
    printed = capsys.readouterr().out
    held = load_file(data)
    options = {"budget": 4.0, "per": "channel", "noise": "max-per-channel"}
    expected = ms.allocate_bits(factory(), (held["x"].double(), held["y"]), **options)  # type: ignore[arg-type]
    assert json.loads(out.read_text())["bits"] == {name: list(each) for name, each in expected.bits.items()}  # type: ignore[arg-type]
    assert all(expected.shown(name) in printed for name in expected.bits)
    assert "<svg" in plot.read_text()
    assert expected.shown("0.weight") in report.read_text()
    assert run(["bits", MODEL, "--data", data, "--per", "layer"]) == 2
    assert "'layer' is not one of 'tensor', 'channel'" in capsys.readouterr().err


def test_bits_that_cannot_be(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bits", MODEL, "--data", data, "--budget", "1"]) == 2
    assert "no assignment meets it" in capsys.readouterr().err
    assert run(["bits", MODEL, "--data", data, "--bits", "few"]) == 2
    assert "--bits few: expected numbers with commas" in capsys.readouterr().err
    assert run(["bits", MODEL, "--data", data, "--bits", "1,4"]) == 2
    assert "--bits 1: expected a whole number from 2" in capsys.readouterr().err
    assert run(["bits", MODEL, "--data", data, "--noise", "relative"]) == 2
    assert "'relative' is not one of 'max', 'max-per-channel'" in capsys.readouterr().err
    assert run(["bits", MODEL, "--data", data, "--budget", "4", "--size", "40"]) == 2
    assert "--budget 4.0, --size 40: expected one of them" in capsys.readouterr().err


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
    assert "--power-of-two goes with" in capsys.readouterr().err


def normalised() -> nn.Module:
    torch.manual_seed(3)
    layers = (nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4))
    model = nn.Sequential(*layers).double().eval()
    with torch.no_grad():
        layers[1].weight.copy_(torch.rand(5) + 0.5)
        layers[1].running_var.copy_(torch.rand(5) + 0.5)  # type: ignore[union-attr]
    return model


def test_batchnorm_is_folded_first(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "flat.safetensors"
    factory = "tests.cli.test_bits:normalised"
    shared = ["--data", data, "--noise", "max", "--fold-batchnorm", "--json"]
    assert run(["flatten", factory, "--out", str(out), "--biases", "noisy", *shared]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["fold_batchnorm"], printed["biases"]) == (True, "noisy")
    held = load_file(data)
    folded, pair = ms.fold_batchnorm(normalised()), (held["x"].double(), held["y"])
    flat = ms.flattest(folded, pair, noise="max", biases="noisy")
    assert load_file(out).keys() == folded.state_dict().keys()
    for name, weight in load_file(out).items():
        assert torch.allclose(weight, flat.state_dict()[name], rtol=1e-9)
    folded.load_state_dict(load_file(out))
    assert torch.allclose(folded(pair[0]), normalised()(pair[0]), rtol=1e-9)
    assert run(["bits", factory, *shared]) == 0
    expected = ms.allocate_bits(ms.fold_batchnorm(normalised()), pair, budget=4.0)
    assert json.loads(capsys.readouterr().out)["bits"] == dict(expected.bits)


def test_measuring_says_that_batchnorm_can_be_folded(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    measured = ["measure", "tests.cli.test_bits:normalised", "--data", data]
    assert run(measured) == 0
    assert "BatchNorm pins weights before it: --fold-batchnorm folds it" in " ".join(capsys.readouterr().out.split())
    assert run([*measured, "--fold-batchnorm"]) == 0
    assert "BatchNorm" not in capsys.readouterr().out
    assert run([*measured, "--fold-batchnorm", "--scope", "neuron", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    held, folded = load_file(data), ms.fold_batchnorm(normalised())
    expected = ms.minimum_sharpness(folded, held["x"].double(), scope="neuron").value
    assert told["minimum_sharpness"]["neuron"]["value"] == pytest.approx(expected, rel=1e-9)
    assert told["fold_batchnorm"] is True


def test_a_smooth_network(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its group is trivial; its bits need a tolerance, or the Gauss-Newton matrix."""
    factory, out = "tests.cli.test_bits:smooth", tmp_path / "flat.safetensors"
    assert run(["bits", factory, "--data", data]) != 0
    assert "tolerance" in capsys.readouterr().err
    assert run(["bits", factory, "--data", data, "--tolerance", "0.1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean_bits"] <= 4
    arguments = ["--data", data, "--out", str(out), "--noise", "max", "--curvature", "ggn"]
    assert run(["flatten", factory, *arguments]) == 0
    assert "nothing to rescale" in capsys.readouterr().out
    assert run(["flatten", factory, *arguments, "--noise", "gauss"]) == 2
    assert "'gauss' is not one of 'absolute', 'relative', 'max', 'max-per-channel'" in capsys.readouterr().err


def test_a_report_goes_without_a_minimum_that_cannot_be(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.html"
    arguments = ["bits", "tests.cli.test_bits:smooth", "--data", data, "--tolerance", "0.1", "--report", str(report)]
    assert run(arguments) == 0
    assert "What the flattest network changes" in report.read_text()

    def refuse(*args: object, **kwargs: object) -> None:
        raise ms.InputError("below zero")

    monkeypatch.setattr("minsharp.cli.bits.minimum_sharpness", refuse)
    assert run(arguments) == 0
    assert "the report goes without the flattest network: below zero" in capsys.readouterr().err
    assert "What the flattest network changes" not in report.read_text()
    assert "Bits of each tensor" in report.read_text()
