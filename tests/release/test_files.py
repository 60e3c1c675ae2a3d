"""What the archives hold, and the files that other sites read, against their schemas."""

import re
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from tests.release.conftest import ROOT, called

VERSION = re.findall(r'__version__ = "(.*)"', (ROOT / "src/minsharp/version.py").read_text())[0]
LARGEST = 1_000_000
"""Bytes of the wheel."""
SCHEMAS = {
    "github-workflows": ".github/workflows/*.yml",
    "dependabot": ".github/dependabot.yml",
    "github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "citation-file-format": "CITATION.cff",
}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(f"minsharp-{VERSION}.dist-info/METADATA"))


def test_both_archives_are_of_this_version(wheel: Path, sdist: Path) -> None:
    assert wheel.name == f"minsharp-{VERSION}-py3-none-any.whl"
    assert sdist.name == f"minsharp-{VERSION}.tar.gz"


def test_the_index_would_take_them(wheel: Path, sdist: Path) -> None:
    called(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    called(sys.executable, "-m", "check_wheel_contents", wheel)
    assert wheel.stat().st_size < LARGEST
    package = ROOT / "src" / "minsharp"
    source = {f"minsharp/{p.relative_to(package).as_posix()}" for p in package.rglob("*") if p.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == {name for name in source if "__pycache__" not in name}
    assert "minsharp/py.typed" in held
    assert any(name.endswith(".html.j2") for name in held)


def test_the_source_holds_what_its_tests_need_and_nothing_else(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        held = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    needed = ("tests/conftest.py", "docs/tutorial.md", "tools/architecture.py", "conftest.py", "LICENSE", "Makefile")
    assert set(needed) <= held
    if (ROOT / ".git").exists():
        tracked = set(called("git", "ls-files").split("\n")) - {""}
        assert held - {"PKG-INFO"} == {name for name in tracked if not name.startswith((".ci/", ".github/"))}


def test_the_front_page_tells_who_and_where(wheel: Path) -> None:
    told = metadata(wheel)
    assert told["Version"] == VERSION
    assert told["License-Expression"] == "MIT"
    assert told["Author"] == "minsharp contributors"
    labels = {entry.partition(",")[0] for entry in told.get_all("Project-URL", [])}
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= labels


def test_the_front_page_points_to_nothing_that_is_not_there(wheel: Path) -> None:
    """On PyPI the README stands alone: each link and picture of it is an address, of the same file."""
    told, written = metadata(wheel), (ROOT / "README.md").read_text()
    shown, links = told.get_payload(), r"(!?)\[[^\]]*\]\(([^)\s]+)\)"
    assert isinstance(shown, str)
    (source,) = (entry.partition(", ")[2] for entry in told.get_all("Project-URL", []) if entry.startswith("Source"))
    for (mark, target), (_, before) in zip(re.findall(links, shown), re.findall(links, written), strict=True):
        kept = before.startswith("https://")
        assert target == (before if kept else f"{source}/{'raw' if mark else 'blob'}/main/{before}")
        assert kept or (ROOT / before.partition("#")[0]).is_file(), before
    assert not re.search(r"\b(?:src|href)=", shown)


def test_the_other_files_tell_the_same_version() -> None:
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert headings[0] == VERSION


def test_the_oldest_versions_are_those_that_are_asked_for() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    needed, extras = text.partition("\ndependencies = [")[2].split("\n]", 1)
    lines = [needed, *re.findall(r"^(?:experiments|images) = \[(.*)\]$", extras, flags=re.M)]
    asked = {name: _whole(least) for name, least in re.findall(r'"([\w-]+)>=([\d.]+)"', " ".join(lines))}
    tested = re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "tests" / "oldest.txt").read_text(), flags=re.M)
    assert asked.items() <= {name: _whole(version) for name, version in tested}.items()


def _whole(version: str) -> list[int]:
    """Three numbers: 2.6 is 2.6.0."""
    return [*map(int, version.split(".")), 0, 0][:3]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_files_for_other_sites(schema: str) -> None:
    files = sorted(ROOT.glob(SCHEMAS[schema]))
    if not files and not (ROOT / ".github").exists():
        pytest.skip("not in the source archive")
    assert files
    called(sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files)


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_workflows_call_what_there_is_and_nothing_that_moves(path: Path) -> None:
    text, targets = path.read_text(), (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z-]+)$", text, flags=re.M):
        assert re.search(rf"^\.PHONY:.* {target}\b", targets, flags=re.M), target
    for action in re.findall(r"uses: (\S+)", text):
        assert action.startswith("./") or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
