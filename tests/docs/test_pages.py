"""Pages that are made from the code are what the code makes, and no public name is missing."""

import re
import tomllib

import pytest
from tools import command_line, measures

import minsharp as ms
from minsharp import errors
from minsharp.measures.catalogue import chosen
from tests.docs.pages import ROOT


def test_the_table_of_measures() -> None:
    assert measures.page(measures.PAGE.read_text()) == measures.PAGE.read_text(), "run python -m tools.measures"


def test_every_measure_has_its_words_and_no_other_has() -> None:
    assert list(measures.WORDS) == [measure.name for measure in chosen(None)]
    assert {m.uses for m in chosen(None)} - {None} <= set(measures.COSTS)


def test_the_page_of_commands() -> None:
    pytest.importorskip("zensical", reason="the page is made where the extra `docs` is installed")
    assert command_line.page() == command_line.PAGE.read_text(), "run python -m tools.command_line"


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    shown = set(re.findall(r"^::: minsharp(?:\.\w+)*\.(\w+)$", page, flags=re.M))
    assert "::: minsharp.errors\n" in f"{page}\n"  # all of them
    names = {name for name in ms.__all__ if not hasattr(errors, name)} | set(ms.measures.__all__)
    assert names - {"laws", "losses", "measures"} - shown == set()


def test_badges_are_true() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    text = (ROOT / "README.md").read_text()
    python, torch = re.findall(r"!\[Python (.*?)\].* !\[torch (.*?)\]", text)[0]
    assert python.replace(" ", "") == project["project"]["requires-python"]
    (wanted,) = (need for need in project["project"]["dependencies"] if need.startswith("torch"))
    assert f"torch{torch.replace(' ', '')}" == wanted
    assert f"![{project['project']['license']} licence]" in text
    assert project["tool"]["mypy"]["strict"]


def test_the_extras_that_the_pages_name() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        named = set(re.findall(r"(?:minsharp|\.)\[(\w+)\]", page.read_text()))
        assert named <= set(extras), page.name
        assert "pip install 'minsharp[" not in page.read_text()  # works from the first release on
