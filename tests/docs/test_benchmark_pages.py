"""Pages that benchmarks write: what they put there, and where."""

import json
import re
from pathlib import Path

import pytest
from benchmarks import calibration
from benchmarks.machine import machine
from benchmarks.report import END, Table, begin, others, put, within

from tests.docs.pages import PAGES, ROOT

WHERE = "2 cores of a CPU. Load average when the run began: 0.50."


def table(title: str, value: str) -> str:
    return Table(title, "A note.", ["", "seconds"], [["ours", value]]).markdown()


def test_a_section_takes_its_place_and_says_where_it_was_measured(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\nWords.\n\n{table('First', '1')}\n\n{table('Last', '3')}\n")
    put(page, [table("First", "2"), table("New", "4")], WHERE)
    expected = ["# Page\n\nWords.", f"{table('First', '2')}\n\n{WHERE}", table("Last", "3")]
    assert page.read_text() == "\n\n".join([*expected, f"{table('New', '4')}\n\n{WHERE}"]) + "\n"
    put(page, [table("First", "2")], WHERE)
    assert page.read_text().count(WHERE) == 2


def test_a_new_beginning_keeps_the_sections_of_others(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Old\n\n{table('First', '1')}\n\n{table('Other', '2')}\n")
    new = f"# New\n\n{table('First', '3')}"
    assert others(page, f"{new}\n") == f"{new}\n\n{table('Other', '2')}\n"


def test_what_is_said_of_the_machine() -> None:
    found = machine("numpy")
    assert "torch thread" in found
    assert ", numpy " in found
    assert "Load average when the run began: " in found


def test_words_between_marks_and_nothing_beside_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n\n{begin('one')}\n\nOld.\n\n{END}\n\n{begin('two')}\n\nKept.\n\n{END}\nAfter.\n")
    within(page, "one", "New.")
    assert page.read_text() == (
        f"Before.\n\n{begin('one')}\n\nNew.\n\n{END}\n\n{begin('two')}\n\nKept.\n\n{END}\nAfter.\n"
    )


@pytest.mark.parametrize("program", ["calibration", "frames", "hardware", "large", "scaling", "smooth"])
def test_a_program_has_one_place(program: str) -> None:
    texts = [page.read_text() for page in PAGES if begin(f"benchmarks.{program}") in page.read_text()]
    assert len(texts) == 1
    assert END in texts[0].split(begin(f"benchmarks.{program}"))[1]


def test_the_table_of_calibration_is_that_of_its_results() -> None:
    scores = {name: calibration.score(json.loads(calibration.place(name).read_text())) for name in calibration.ENTRIES}
    written = calibration.table(scores).body()
    page = (ROOT / "docs" / "estimates.md").read_text()
    assert f"{begin('benchmarks.calibration')}\n\n{written}\n\n{END}" in page
    assert sum(not found.sound for found in scores.values()) <= 2  # of two dozen limits, as the page says


def test_make_bench_runs_what_writes_the_page() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\nbench: ")[1].split("\n\n")[0]
    called = re.findall(r"-m benchmarks\.(\w+)$", recipe, flags=re.M)
    first = ["run", "transformers", "estimates", "rescaling"]
    assert called == [*first, "large", "smooth", "calibration", "reading"]
    assert all((ROOT / "benchmarks" / f"{program}.py").is_file() for program in called)
