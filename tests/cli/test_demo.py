"""The demo: what it tells is what it measured."""

import io
import re
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import minsharp as ms
from minsharp import demo
from minsharp.cli.main import run

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")


README = Path(__file__).parents[2] / "README.md"
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*\.?\d*(?:e[+-]\d+)?")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The report of a short demo, and what it has written on stdout and stderr."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Attempting to set identical")  # three networks are too few for a partial tau
        report = demo.run(folder, epochs=2, ratios=(0.0, 0.5, 1.0))
    return report, out.getvalue(), err.getvalue()


def test_the_stories_and_the_files(told: tuple[Path, str, str]) -> None:
    report, out, err = told
    assert report.name == "report.html"
    assert {p.suffix for p in report.parent.iterdir()} >= {".html", ".csv", ".png", ".svg"}
    assert not [p for p in report.parent.iterdir() if p.name.startswith(".")]
    first, second, third = re.split(r"^\d\. ", out.partition("Besides:")[0], flags=re.M)[1:]
    rows = re.findall(r"^ +(?:as trained|rescaled \d) +([\d.e+]+) +([\d.e+]+)$", first, flags=re.M)
    traces, minima = zip(*((float(trace), float(least)) for trace, least in rows), strict=True)
    assert len(set(minima)) == 1
    assert max(traces) > 3 * min(traces) >= 3 * minima[0]
    estimate, error = (float(x) for x in re.findall(r"minsharp, .* ([\d.]+) ± ([\d.]+)$", second, flags=re.M)[0])
    exact = float(re.findall(r"exact, .* ([\d.]+)$", second, flags=re.M)[0])
    assert abs(estimate - exact) < 4 * error
    after = {int(b): (float(x), float(y)) for b, x, y in re.findall(r"(\d) +([\d.]+)% +([\d.]+)%$", third, flags=re.M)}
    assert after[3][1] > after[3][0]
    held, claims = re.findall(r"(\d+) of (\d+) claims hold", out)[0]
    assert held == claims
    assert "minsharp measure" in out
    assert str(report) in out
    assert "[5/5]" in err
    assert all(c.isprintable() or c == "\n" for c in out + err)


def test_the_readme_tells_what_the_demo_prints(told: tuple[Path, str, str]) -> None:
    """Word by word; the numbers as far as another processor may round: one percent, or one image."""
    stories = [story.strip() for story in re.split(r"^\d\. .*$", told[1].partition("Besides:")[0], flags=re.M)[1:]]
    shown = re.findall(r"<!-- printed by make demo -->\n```text\n(.*?)```", README.read_text(), flags=re.S)
    assert len(shown) == len(stories) == 3
    for ours, theirs in zip(stories, shown, strict=True):
        ours, theirs = (re.sub(r"certified to \S+", "certified", " ".join(text.split())) for text in (ours, theirs))
        assert NUMBER.sub("#", ours) == NUMBER.sub("#", theirs)
        for a, b in zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=True):
            assert float(a.replace(",", "")) == pytest.approx(float(b.replace(",", "")), rel=0.01, abs=0.2), theirs


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(ms.InputError, match=r"matplotlib and scikit-learn: pip install 'minsharp\[experiments\]'"):
        demo.run(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run(["demo", "--out", str(tmp_path / "file" / "out")]) == 2
    assert capsys.readouterr().err.startswith("error: cannot make the folder")
