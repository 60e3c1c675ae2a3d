"""The demo: what it tells is what it measured."""

import re
from pathlib import Path

import pytest

import minsharp as ms
from minsharp import demo
from minsharp.cli.main import run

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")


@pytest.mark.filterwarnings("ignore:Attempting to set identical")  # three networks are too few for a partial tau
def test_the_story_and_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = demo.run(tmp_path / "out", epochs=2, ratios=(0.0, 0.5, 1.0))
    out, err = capsys.readouterr()
    assert report == tmp_path / "out" / "report.html"
    assert {p.suffix for p in report.parent.iterdir()} >= {".html", ".csv", ".png", ".svg"}
    assert not [p for p in report.parent.iterdir() if p.name.startswith(".")]
    was, now = (float(x) for x in re.findall(r"minimum sharpness was ([\d.e+-]+), and is ([\d.e+-]+)\.\n", out)[0])
    assert now == pytest.approx(was, rel=1e-4)
    before, fooled = (float(x) for x in re.findall(r"network goes from ([\d.e+-]+) to ([\d.e+-]+),", out)[0])
    assert fooled > 3 * before
    trace, least = (float(x) for x in re.findall(r"Trace ([\d.e+-]+) -> ([\d.e+-]+);", out)[0])
    assert least < trace
    held, claims = re.findall(r"(\d+) of (\d+) claims hold", out)[0]
    assert held == claims
    assert "minsharp measure" in out
    assert str(report) in out
    assert "[5/5]" in err
    assert all(c.isprintable() or c == "\n" for c in out + err)


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(ms.InputError, match=r"matplotlib and scikit-learn: pip install 'minsharp\[experiments\]'"):
        demo.run(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run(["demo", "--out", str(tmp_path / "file" / "out")]) == 2
    assert capsys.readouterr().err.startswith("error: cannot make the folder")
