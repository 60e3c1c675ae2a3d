"""Every block of code and every command in the README and in the docs runs here, or in the test that is named here."""

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
import typer.main

from minsharp.cli.app import app
from minsharp.cli.main import run
from minsharp.measures.catalogue import chosen
from minsharp.measures.registry import MEASURES
from minsharp.models import build
from tests.docs.pages import PAGES, ROOT, blocks, commands, name

ELSEWHERE = {
    "docs/extending.md": "tests/test_extending.py",
    "docs/training.md": "tests/integrations/test_pages.py",
    "docs/scaling.md": "tests/integrations/test_pages.py",
    "docs/notebooks/cnn.md": "tests/docs/test_notebooks.py",
    "docs/notebooks/transformer.md": "tests/docs/test_notebooks.py",
    "docs/notebooks/quantization.md": "tests/docs/test_notebooks.py",
}
WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]
SESSIONS = [page for page in PAGES if any(block.language == "pycon" for block in blocks(page))]
OURS = [page for page in WITH_PYTHON if name(page) not in ELSEWHERE]
TO_BE_RUN = [page for page in PAGES if name(page) in ("docs/start.md", "docs/tutorial.md", "docs/models.md")]


@pytest.fixture
def registry() -> Iterator[None]:
    before = {measure.name: measure for measure in chosen(None)}
    yield
    MEASURES.clear()
    MEASURES.update(before)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("page", OURS, ids=name)
def test_the_program_of_a_page_runs(page: Path) -> None:
    """All blocks of a page, one after the other, as a reader would paste them."""
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        if block.language == "python":
            exec(compile(block.text, name(page), "exec"), names)


@pytest.mark.parametrize("page", SESSIONS, ids=name)
def test_sessions_say_what_happens(page: Path) -> None:
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 30
    assert failed == 0


def test_every_block_is_of_a_kind_that_some_test_runs() -> None:
    for page in PAGES:
        languages = {block.language for block in blocks(page)}
        assert languages <= {"python", "pycon", "text", ""}, name(page)
        for block in blocks(page):
            if not block.language:
                known = re.compile(r"(minsharp|make|pip install|torchrun|python -m|    --)\b|^$|#|    --")
                assert all(known.match(line) for line in block.text.splitlines()), (name(page), block.text)
    for page_name, test in ELSEWHERE.items():
        assert ROOT / page_name in WITH_PYTHON
        text = (ROOT / test).read_text()
        assert Path(page_name).stem in text or "for path in paths()" in text or "notebooks" in test


NETS = """
import torch
from torch import nn

def small(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

def colours():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4), nn.ReLU(), nn.Linear(4, 2))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the commands of the pages speak of."""
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    program = torch.export.export(
        build("MLP", "digits").eval(), (torch.randn(2, 1, 8, 8),), dynamic_shapes=({0: torch.export.Dim.AUTO},)
    )
    torch.export.save(program, "model.pt2")
    (tmp_path / "nets.py").write_text(NETS)
    sizes = {"module.1.weight": (32, 64), "module.1.bias": (32,), "module.3.weight": (10, 32), "module.3.bias": (10,)}
    state = {
        key: torch.full(size, 0.01) + torch.eye(*size) if len(size) == 2 else torch.zeros(size)
        for key, size in sizes.items()
    }
    torch.save({"epoch": 1, "state_dict": state}, "best.pth.tar")
    for kind, shade in (("cats", 60), ("dogs", 200)):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (20 + i, 18), (shade, shade, 10 * i)).save(tmp_path / "photos" / kind / f"{i}.png")
    return tmp_path


@pytest.mark.parametrize("page", TO_BE_RUN, ids=name)
def test_the_commands_of_a_page_run(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = [line for block in blocks(page) if not block.language for line in block.text.splitlines()]
    found = [line for line in shown if line.startswith("minsharp ")]
    assert len(found) > 1
    for command in found:
        assert run(shlex.split(command)[1:]) == 0, capsys.readouterr().err
        written = re.findall(r"--(?:out|report) (\S+)", command)
        assert all((folder / path).is_file() for path in written)
    sys.modules.pop("nets", None)


ALL = [(page, command) for page in PAGES for command in commands(page)]


@pytest.mark.parametrize(("page", "command"), ALL, ids=[f"{name(page)}: {command[:60]}" for page, command in ALL])
def test_every_command_is_one_that_there_is(page: Path, command: str) -> None:
    """Its name, its options and their values, as the command line reads them; what takes hours is not run."""
    words = shlex.split(command)[1:]
    group = typer.main.get_command(app)
    while hasattr(group, "commands"):
        group = group.commands[words.pop(0)]
    group.make_context(group.name, words)


def test_there_are_commands_to_be_checked() -> None:
    assert len(ALL) > 30
    assert {"docs/tutorial.md", "docs/hardware.md", "docs/reproduction.md", "docs/command-line.md"} <= {
        name(page) for page, _ in ALL
    }


def test_make_knows_what_the_pages_call() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for page in PAGES:
        lines = [line for block in blocks(page) if not block.language for line in block.text.splitlines()]
        called = {line.split()[1] for line in lines if line.startswith("make ")}
        assert called <= targets, name(page)


def test_importing_is_light() -> None:
    code = (
        "import sys, minsharp; "
        "heavy = {'matplotlib', 'sklearn', 'jinja2', 'rich', 'typer', 'pooch', 'pandas', 'scipy.optimize'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"
