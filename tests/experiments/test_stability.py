"""The experiment on the edge of stability: a few steps of it, and what the full run in the docs says."""

from pathlib import Path

import pytest

from minsharp.cli.main import run as cli
from minsharp.errors import InputError
from minsharp.experiments import read_results, stability
from minsharp.report.figures import drawn

DOCS = Path(__file__).parents[2] / "docs" / "results" / "stability"


def test_a_short_run() -> None:
    plan = stability.plan(rates=[0.5], steps=20, every=10, train=50)
    rows = stability.work({**plan.settings, **plan.cells[0]})
    assert [row["step"] for row in rows] == [0, 10, 20]
    assert rows[-1]["loss"] < rows[0]["loss"]
    for row in rows:
        assert row["largest eigenvalue"] < row["trace"]
        assert row["minimum sharpness"] <= row["trace"]
    assert rows[0]["largest eigenvalue"] < 2 / 0.5


def test_the_run_of_the_docs_ends_at_the_edge() -> None:
    results = read_results(DOCS)
    ends = {row["lr"]: row for row in results.rows}
    for lr in (0.5, 1.0):
        assert 0.9 < ends[lr]["largest eigenvalue"] / (2 / lr) < 1.1
    assert set(drawn(results)) == {"stability.png", "stability.svg"}
    ((_, figure),) = stability.figures(results)
    assert [axis.get_title() for axis in figure.axes[:2]] == ["lr = 0.5", "lr = 1"]


def test_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"rates=\[0\]: expected learning rates above 0"):
        stability.plan(rates=[0])
    assert cli(["reproduce", "stability", "--address", "auto"]) == 2
    assert "an address is a Ray cluster's: --executor ray" in capsys.readouterr().err
    assert cli(["reproduce", "stability", "--executor", "ray", "--workers", "2"]) == 2
    assert "Ray has as many workers as its cluster has CPUs" in capsys.readouterr().err
