"""The code in the README and in the docs runs, and the pages hold together."""

import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import minsharp as ms
from minsharp.cli.main import run
from minsharp.measures.catalogue import chosen
from minsharp.measures.registry import MEASURES
from minsharp.models import build

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "docs/tutorial.md", "docs/models.md"]


@pytest.fixture
def registry() -> Iterator[None]:
    before = {measure.name: measure for measure in chosen(None)}
    yield
    MEASURES.clear()
    MEASURES.update(before)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("page", PAGES)
def test_code_blocks_run(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.S)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_the_tutorials_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = re.findall(r"^minsharp [a-z]+ .*$", (ROOT / "docs/tutorial.md").read_text(), flags=re.M)
    assert len(commands) == 3
    monkeypatch.chdir(tmp_path)
    program = torch.export.export(
        build("MLP", "digits").eval(), (torch.randn(2, 1, 8, 8),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
    )
    torch.export.save(program, "model.pt2")
    for command in commands:
        assert run(shlex.split(command)[1:]) == 0, command
    capsys.readouterr()
    assert {path.name for path in tmp_path.iterdir()} == {"model.pt2", "report.html", "flat.safetensors"}


NETS = """
import torch
from torch import nn

def small(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

def colours():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4), nn.ReLU(), nn.Linear(4, 2))
"""


def test_the_commands_for_ones_own_model_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    commands = re.findall(r"^minsharp [a-z]+ .*$", (ROOT / "docs/models.md").read_text(), flags=re.M)
    assert len(commands) == 3
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "nets.py").write_text(NETS)
    sizes = {"module.1.weight": (32, 64), "module.1.bias": (32,), "module.3.weight": (10, 32), "module.3.bias": (10,)}
    state = {
        name: torch.full(size, 0.01) + torch.eye(*size) if len(size) == 2 else torch.zeros(size)
        for name, size in sizes.items()
    }
    torch.save({"epoch": 1, "state_dict": state}, "best.pth.tar")
    for kind, shade in (("cats", 60), ("dogs", 200)):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (20 + i, 18), (shade, shade, 10 * i)).save(tmp_path / "photos" / kind / f"{i}.png")
    for command in commands:
        assert run(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    sys.modules.pop("nets")
    assert (tmp_path / "flat.safetensors").is_file()


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    functions = [name for name in ms.__all__ if name[0].islower() and name not in ("laws", "losses", "measures")]
    missing = [name for name in functions if not re.search(rf"::: minsharp[\w.]*\.{name}$", page, flags=re.M)]
    assert missing == []


def test_importing_is_light() -> None:
    code = (
        "import sys, minsharp; "
        "heavy = {'matplotlib', 'sklearn', 'jinja2', 'rich', 'typer', 'pooch', 'pandas', 'scipy.optimize'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


def test_the_gallery_says_what_happens() -> None:
    failed, tried = doctest.testfile(str(ROOT / "docs" / "gallery.md"), module_relative=False)
    assert tried > 30
    assert failed == 0
