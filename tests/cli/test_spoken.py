"""Messages of the library in the words of the command line: every argument that has an option is written as one."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import minsharp
from minsharp.cli.app import app
from minsharp.cli.main import run
from minsharp.cli.spoken import Option, options_of, spoken

MEASURE = options_of(["measure", "model.pt2"], app)
Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Say it: class_axis=-1 if last, class_axis=1 if", "Say it: --class-axis -1 if last, --class-axis 1 if"),
        ("tolerance=nan: as in tolerance=0.01, or 0", "--tolerance nan: as in --tolerance 0.01, or 0"),
        ('ask for curvature="ggn", which', "ask for --curvature ggn, which"),
        ("narrow: parameters=['0.*', '1.bias']", "narrow: --parameters '0.*' --parameters 1.bias"),
        ("or outputs='a b' or outputs=0.", "or --outputs 'a b' or --outputs 0."),
        ("so: pass data=(inputs, targets)", "so: the file of --data has to hold y (or labels) beside x"),
        ('curvature="jacobian" is no choice, nor memory=5', 'curvature="jacobian" is no choice, nor memory=5'),
        ('pass f(x, curvature="ggn")', 'pass f(x, curvature="ggn")'),
        ('(curvature="ggn")', "(--curvature ggn)"),
        ("class_axis=True: expected", "class_axis=True: expected"),
        ("my_tolerance=0.1, a.tolerance=0.1, tolerance=x", "my_tolerance=0.1, a.tolerance=0.1, tolerance=x"),
    ],
)
def test_what_is_said(said: str, expected: str) -> None:
    assert spoken(said, MEASURE) == expected


def test_the_options_are_those_of_the_command() -> None:
    assert spoken("power_of_two=True", MEASURE) == "power_of_two=True"
    flatten = options_of(["flatten", "model.pt2", "--data", "x"], app)
    assert spoken("power_of_two=True and power_of_two=False", flatten) == "--power-of-two and power_of_two=False"
    assert spoken("seeds=[0, 1]", options_of(["reproduce", "labels"], app)) == "--seeds 0,1"
    assert spoken("budget=4.0 or size=100_000", options_of(["bits"], app)) == "--budget 4.0 or --size 100000"
    for words in ([], ["no-such-command"], ["--version"]):
        assert options_of(words, app) == {}


def _messages() -> Iterator[str]:
    """Every text of the library that is no docstring."""
    for path in Path(minsharp.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
        if "cli" not in path.parts:
            texts = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in docs)
            yield from (n.value for n in texts if isinstance(n.value, str))


HINT = re.compile(r"(?<![\w.(])(class_axis|tolerance|seed|curvature|parameters)=(-?\d|\"\w+\"|'\w+')")


def test_every_hint_of_the_library_is_one_of_the_command_line() -> None:
    hints = [text for text in _messages() if HINT.search(text)]
    assert len(hints) > 15
    for text in hints:
        left = [found for found in HINT.finditer(spoken(text, MEASURE)) if "jacobian" not in text]
        calls = [found for found in left if re.search(r"\w\([^)]*$", text[: found.start()])]
        assert left == calls, text


class Smooth(nn.Module):
    """Outputs (n, 5, 3) that are not piecewise linear; for two outputs, also their sum."""

    def __init__(self, two: bool = False) -> None:
        super().__init__()
        self.layer, self.two = nn.Linear(4, 3), two

    def forward(self, x: Tensor) -> Any:
        logits = self.layer(x).tanh()
        return (logits, logits.sum(-1)) if self.two else logits


def smooth() -> nn.Module:
    return Smooth()


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3))


def two() -> nn.Module:
    return Smooth(two=True)


@pytest.mark.parametrize(
    ("make", "shape", "options", "text"),
    [
        (smooth, (6, 5, 4), [], "--class-axis -1 if they are on the last axis"),
        (smooth, (6, 4), [], "an estimate with an error bar: --tolerance 0.01 (what is left out"),
        (smooth, (6, 4), [], "for the Gauss-Newton trace: --curvature ggn"),
        (smooth, (6, 4), ["--tolerance", "2"], "--tolerance 2.0: expected a relative standard error below 1"),
        (smooth, (6, 4), ["--parameters", "no.*"], "--parameters 'no.*': nothing matches"),
        (smooth, (6, 4), ["--tolerance", "0.1"], "The file of --data has to hold y (or labels) beside x, or ask"),
        (two, (6, 4), [], "--outputs 0 or --outputs 1"),
    ],
)
def test_errors_of_the_command_line(
    make: Callable[[], nn.Module],
    shape: tuple[int, ...],
    options: list[str],
    text: str,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, x=torch.randn(shape).numpy())
    assert run(["measure", f"{__name__}:{make.__name__}", "--data", str(data), *options]) in (1, 2)
    err = capsys.readouterr().err
    assert text in err
    assert not HINT.search(err)


def test_a_warning_too(tmp_path: Path, capsys: Capture) -> None:
    option = Option("--curvature", str, repeated=False)
    assert spoken('or curvature="ggn"', {"curvature": option}) == "or --curvature ggn"
    data = tmp_path / "data.npz"
    np.savez(data, x=torch.randn(6, 4).numpy(), y=torch.arange(6).numpy() % 3)
    arguments = ["measure", f"{__name__}:deep", "--data", str(data), "--scope", "layer", "--tolerance", "1e-6"]
    assert run(arguments) == 0
    err = capsys.readouterr().err
    assert "warning: " in err
    assert "or --curvature ggn" in err


def test_the_reasons_in_a_table_too(tmp_path: Path, capsys: Capture) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, x=torch.randn(6, 4).numpy(), y=torch.arange(6).numpy() % 3)
    arguments = ["compare", f"{__name__}:smooth", "--data", str(data), "--measures", "trace", "--rescalings", "1"]
    assert run(arguments) == 0
    assert "--tolerance 0.01 (what is left out" in " ".join(capsys.readouterr().out.split())
