"""Every block of code and every command in the README and in the docs runs here, or in the test that is named here."""

import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.run as torchrun
import typer.main
from safetensors.torch import save_file

import minsharp as ms
from minsharp.cli.app import app
from minsharp.cli.main import run
from minsharp.measures.catalogue import chosen
from minsharp.measures.registry import MEASURES
from minsharp.models import build
from tests.docs.pages import PAGES, ROOT, blocks, commands, modules, name

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
NOT_RUN = {
    "names in a sentence": ("minsharp reproduce", "minsharp figures", "minsharp reproduce page"),
    "tests/cli/test_at_once.py": ("minsharp --version", "minsharp --install-completion"),
    "tests/cli/test_demo.py": ("minsharp demo --out minsharp-demo",),
    "tests/experiments/test_experiments.py": (
        "minsharp reproduce trace --data digits",
        "minsharp reproduce trace --data mnist",
        "minsharp reproduce labels --preset digits --protocol epochs",
        "minsharp reproduce labels --preset digits --protocol loss",
        "minsharp reproduce labels --preset mnist-small --protocol epochs",
        "minsharp reproduce labels --preset mnist-small --protocol loss",
        "minsharp reproduce approximations --data digits --seeds 3",
    ),
    "tests/experiments/test_stability.py": (
        "minsharp reproduce stability --rates 0.5,1",
        "minsharp reproduce stability --out results/stability",
    ),
    "tests/experiments/test_vits.py": ("minsharp reproduce vits",),
    "tests/integrations/test_ray.py": (
        "minsharp reproduce labels --executor ray",
        "minsharp reproduce labels --executor ray --address ray://head:10001",
    ),
    "tests/integrations/test_timm.py": (
        "minsharp measure timm:create_model --arg model_name=resnet18 --arg num_classes=10 --weights best.pth "
        "--data photos/train --image resize=256 --image crop=224 --samples 500",
    ),
    "tests/test_extending.py": ('minsharp reproduce run widths:WIDTHS --set "widths=[2,4]"',),
}
"""Commands that take minutes, or what is not here: by the test that does the same in the small, or elsewhere."""
TO_BE_RUN = {page: [c for c in commands(page) if c not in {c for cs in NOT_RUN.values() for c in cs}] for page in PAGES}


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

def resnet20():  # of its kind
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
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
    _files()
    return tmp_path


def _files() -> None:
    """Data, the weights of a network, and traces of parts of the data, as safetensors and JSON."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(30, 3, 8, 8, generator=generator), torch.arange(30) % 10
    np.savez("calibration.npz", x=images.numpy(), y=labels.numpy())
    names: dict[str, Any] = {}
    exec(NETS, names)
    save_file(names["resnet20"]().state_dict(), "resnet20.safetensors")
    model, x = names["small"](4), torch.randn(12, 64, generator=generator)
    for parts in (("first", "second"), ("0", "1", "2")):
        for rank, part in enumerate(parts):
            ms.hessian_trace(model, ms.shard(x, rank=rank, size=len(parts))).save(f"{part}.json")


@pytest.mark.parametrize("page", [page for page, found in TO_BE_RUN.items() if found], ids=name)
def test_the_commands_of_a_page_run(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in TO_BE_RUN[page]:
        assert run(shlex.split(command)[1:]) == 0, capsys.readouterr().err
        written = re.findall(r"--(?:out|report|csv|plot|save) (\S+)", command)
        assert all((folder / path).is_file() for path in written)
    sys.modules.pop("nets", None)


ALL = [(page, command) for page in PAGES for command in commands(page)]


def test_what_is_not_run_is_shown_and_has_a_test() -> None:
    shown = {command for _, command in ALL}
    for test, left_out in NOT_RUN.items():
        assert shown.issuperset(left_out), test
        assert test == "names in a sentence" or (ROOT / test).is_file()
    assert sum(map(len, TO_BE_RUN.values())) > 15


def _parsed(words: list[str]) -> None:
    """The name of a command, its options and their values, as the command line reads them."""
    group = typer.main.get_command(app)
    while words and hasattr(group, "commands") and not words[0].startswith("-"):
        group = group.commands[words.pop(0)]
    if words and not words[0].startswith("--install"):
        group.make_context(group.name, words, resilient_parsing=words == ["--version"])


@pytest.mark.parametrize(("page", "command"), ALL, ids=[f"{name(page)}: {command[:60]}" for page, command in ALL])
def test_every_command_is_one_that_there_is(page: Path, command: str) -> None:
    """What takes hours, too: it is read, and not run."""
    _parsed(shlex.split(command)[1:])


MODULES = [(page, command) for page in (*PAGES, ROOT / "CONTRIBUTING.md") for command in modules(page)]
IDS = [f"{name(page)}: {command[:60]}" for page, command in MODULES]


@pytest.mark.parametrize(("page", "command"), MODULES, ids=IDS)
def test_every_module_is_one_that_there_is(page: Path, command: str) -> None:
    """Most measure for minutes or hours, so none is run: the module is there, and takes the options that are shown."""
    words = shlex.split(command, comments=True)
    if words[0] == "torchrun":
        given = torchrun.get_args_parser().parse_args(words[1:])
        assert (given.module, given.training_script) == (True, "minsharp")
        _parsed(given.training_script_args)
        return
    module, arguments = words[2], words[3:]
    if module == "pytest":
        assert all((ROOT / word).exists() for word in arguments if not word.startswith("-"))
        return
    text = _program(module).read_text()
    assert '__name__ == "__main__"' in text, module
    taken = set(re.findall(r'add_argument\(\s*"([^"]+)"', text))
    assert {word for word in arguments if word.startswith("--")} <= taken, command
    others = {first for first in arguments[:1] if not first.startswith("--")}
    assert not others or "sys.argv" in text or any(not one.startswith("-") for one in taken), command


def _program(module: str) -> Path:
    """The file that ``python -m`` runs."""
    place = ROOT.joinpath(*module.split("."))
    return place / "__main__.py" if place.is_dir() else place.with_suffix(".py")


def test_there_are_modules_to_be_checked() -> None:
    shown = {word for _, command in MODULES for word in command.split()}
    assert {"benchmarks.frames", "benchmarks.hardware", "tests.fuzz", "--minimise", "--nproc-per-node"} <= shown


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
