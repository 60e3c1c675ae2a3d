"""The wheel in an empty environment: it is all there, the README runs, and the extras install."""

import json
import re
from pathlib import Path

import pytest

from tests.release.conftest import CONSTRAINTS, ROOT, called, pip

EXTRAS = re.findall(
    r"^(\w+) = \[",
    (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0],
    flags=re.M,
)
OF_DEVELOPERS = {"dev", "docs", "test"}
"""Extras that `minsharp doctor` leaves out."""
REALLY = ("images", "experiments")
"""Extras that are small enough to be installed; of the others, a set of versions is found that goes together."""


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)


def test_it_is_the_wheel_and_it_is_well(installed: Path, tmp_path: Path) -> None:
    code = "import minsharp, pathlib; print(pathlib.Path(minsharp.__file__).parent)"
    assert "site-packages" in called(installed, "-I", "-c", code, cwd=tmp_path)
    told = json.loads(called(installed, "-I", "-m", "minsharp", "doctor", "--json", cwd=tmp_path))
    assert told["trouble"] is None
    assert all(test["holds"] for test in told["self_test"])
    assert all(told["packages"].values())
    assert set(told["extras"]) == set(EXTRAS) - OF_DEVELOPERS


def test_the_command_is_there(installed: Path, tmp_path: Path) -> None:
    assert "Usage: minsharp" in called(installed.parent / "minsharp", "--help", cwd=tmp_path)


def test_nothing_but_what_is_needed_was_installed(installed: Path) -> None:
    names = {line.partition("==")[0].lower() for line in called(installed, "-m", "pip", "freeze").splitlines()}
    assert names.isdisjoint({"matplotlib", "scikit-learn", "pooch", "pillow", "pytest", "pandas"})


def test_the_readme_runs(installed: Path, tmp_path: Path) -> None:
    found = blocks(ROOT / "README.md")
    assert found
    (tmp_path / "readme.py").write_text("\n".join(found))
    called(installed, "-I", "-W", "ignore", "readme.py", cwd=tmp_path)


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras_find_versions(extra: str, installed: Path, wheel: Path) -> None:
    options = ("--dry-run", "--quiet", "--disable-pip-version-check", "--constraint", CONSTRAINTS)
    called(installed, "-m", "pip", "install", *options, f"minsharp[{extra}] @ {wheel.as_uri()}")


def test_small_extras_are_installed(installed: Path, wheel: Path, tmp_path: Path) -> None:
    """Last, for it changes the environment."""
    pip(installed, "install", f"minsharp[{','.join(REALLY)}] @ {wheel.as_uri()}")
    told = json.loads(called(installed, "-I", "-m", "minsharp", "doctor", "--json", cwd=tmp_path))
    for extra in REALLY:
        assert all(told["extras"][extra].values()), extra
    given = ["measure", "minsharp.models:digits_small_mlp", "--data", "digits", "--samples", "20", "--json"]
    measured = json.loads(called(installed, "-I", "-W", "ignore", "-m", "minsharp", *given, cwd=tmp_path))
    assert measured["samples"] == 20
