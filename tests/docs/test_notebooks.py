"""The notebooks run, print what they printed, and their pages show it."""

import re
from pathlib import Path

import nbformat
import pytest
from tools import notebooks

pytestmark = pytest.mark.filterwarnings("ignore")
NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e[+-]\d+)?")


def _close(ours: str, theirs: str) -> None:
    """The same words; numbers as far as another processor may round, or below what rounding leaves of zero."""
    assert NUMBER.sub("#", " ".join(ours.split())) == NUMBER.sub("#", " ".join(theirs.split()))
    for a, b in zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=True):
        assert float(a.replace(",", "")) == pytest.approx(float(b.replace(",", "")), rel=0.01, abs=1e-6), theirs


@pytest.mark.parametrize("path", notebooks.paths(), ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_printed(path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    text, pictures = notebooks.page(path, stored)
    assert text == path.with_suffix(".md").read_text(), "run python -m tools.notebooks"
    assert all((path.parent / name).read_bytes() == content for name, content in pictures.items())
    again = notebooks.printed(notebooks.executed(path))
    assert sum(map(bool, again)) >= 5
    for ours, theirs in zip(again, notebooks.printed(stored), strict=True):
        _close(ours, theirs)


def test_there_are_three() -> None:
    assert [path.stem for path in notebooks.paths()] == ["cnn", "quantization", "transformer"]
    assert all(path.stat().st_size < 200_000 for path in notebooks.paths())
