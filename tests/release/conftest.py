"""What is published, in `dist`, and an environment that holds nothing but it."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"


def called(*command: object, cwd: Path = ROOT, code: int = 0) -> str:
    """The output of a command that ends with a code; without it, all that it printed."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MINSHARP"))}
    done = subprocess.run(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env=plain,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def _only(pattern: str) -> Path:
    found = list((ROOT / "dist").glob(pattern))
    assert len(found) == 1, f"expected one dist/{pattern}, as `make dist` leaves it: {found}"
    return found[0]


@pytest.fixture(scope="session")
def wheel() -> Path:
    return _only("*.whl")


@pytest.fixture(scope="session")
def sdist() -> Path:
    return _only("*.tar.gz")


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment into which the wheel was installed, and what it asks for."""
    place = tmp_path_factory.mktemp("empty")
    venv.create(place, with_pip=True)
    python = place / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    pip(python, "install", wheel)
    return python


def pip(python: Path, command: str, *arguments: object) -> str:
    """pip, with the versions that the tests run with."""
    options = ("--quiet", "--disable-pip-version-check", "--constraint", CONSTRAINTS)
    return called(python, "-m", "pip", command, *options, *arguments)
