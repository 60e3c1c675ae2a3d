"""Pages that benchmarks write: what they put there, and where."""

from pathlib import Path

from benchmarks.machine import machine
from benchmarks.report import Table, others, put

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
