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
PAGES = ["README.md", "docs/tutorial.md", "docs/hardware.md"]


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
