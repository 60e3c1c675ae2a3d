"""The pages on hardware say what the cells of the benchmark hold."""

import shutil
import sys
from pathlib import Path

import pytest
from benchmarks.hardware import __main__ as benchmark

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_are_those_of_the_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(DOCS.parent)
    (tmp_path / "figures").mkdir()
    shutil.copy(DOCS / "hardware.md", tmp_path)
    page = tmp_path / "hardware-results.md"
    monkeypatch.setattr(sys, "argv", ["benchmarks.hardware", "--minutes", "0", "--page", str(page)])
    benchmark.main()
    assert "Written to" in capsys.readouterr().out
    for name in ("hardware-results.md", "hardware.md"):
        assert (tmp_path / name).read_text() == (DOCS / name).read_text(), name
