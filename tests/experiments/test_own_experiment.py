"""A stranger's experiment, the one of the docs: one file, run, resumed, drawn and set on the pages like the paper's."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.cli.main import run as cli
from minsharp.errors import InputError
from minsharp.experiments import EXPERIMENTS, Experiment, Results, find, labels, read_results, register, statistics
from minsharp.report import write_outputs, write_page
from minsharp.report.figures import drawn
from minsharp.report.outputs import summary

DOCS = Path(__file__).parents[2] / "docs"
PAGE, RESULTS = DOCS / "extending.md", DOCS / "results"


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    before, path = dict(EXPERIMENTS), list(sys.path)
    yield
    EXPERIMENTS.clear()
    EXPERIMENTS.update(before)
    sys.path[:] = path
    sys.modules.pop("widths", None)


def command(folder: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "widths.py"], cwd=folder, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which the file of the page was run, and what it printed."""
    (block,) = re.findall(r'```python title="widths.py"\n(.*?)```', PAGE.read_text(), flags=re.S)
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "widths.py").write_text(block)
    return folder, command(folder)


def test_it_runs_and_goes_on(written: tuple[Path, str]) -> None:
    folder, text = written
    out = folder / "results" / "widths"
    assert text.splitlines()[0] == "Means over the seeds"
    assert [line.split()[0] for line in text.splitlines()[4:]] == ["4", "8", "16"]
    names = {"cells", "results.csv", "settings.json", "summary.json", "widths.png", "widths.svg"}
    assert {path.name for path in out.iterdir()} == names
    assert json.loads((out / "settings.json").read_text()) == {"experiment": "widths", "samples": 50}
    (shown,) = json.loads((out / "summary.json").read_text())["tables"]
    assert shown["head"] == ["width", "trace", "minimum sharpness"]
    kept = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    assert len(kept) == 9
    table = (out / "results.csv").read_bytes()
    (out / "cells" / "width-8_seed-1.json").unlink()
    assert command(folder) == text
    assert (out / "results.csv").read_bytes() == table
    assert sum(path.stat().st_mtime_ns != time for path, time in kept.items()) == 1


def test_it_is_found_and_shown_everywhere(
    written: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, text = written
    monkeypatch.chdir(folder)
    found = find("widths:WIDTHS")
    assert find("widths") is found
    results = read_results("results/widths")
    assert results.experiment is found
    (table,) = results.tables
    assert str(table) == text.rstrip()
    write_page(["results/widths"], tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    for words in ("## Width and sharpness\n\nNetworks as they", "### widths", table.markdown(), "![widths]("):
        assert words in page
    minimum = ms.minimum_sharpness(nn.Linear(2, 2), torch.randn(3, 2))
    html = ms.write_report(tmp_path / "report.html", minimum=minimum, experiments=[results]).read_text()
    assert "Means over the seeds" in html
    assert "<h3>Width and sharpness: widths</h3>" in html
    assert html.count('data-words="seed ') == 9


def test_a_name_in_a_folder_imports_nothing(
    written: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a name that is not known nor one that looks like a module."""
    folder, _ = written
    out = folder / "results" / "widths"
    with pytest.raises(InputError, match="experiment 'widths', which is not known here: expected one of trace"):
        read_results(out)
    monkeypatch.chdir(folder)
    (tmp_path / "results.csv").write_bytes((out / "results.csv").read_bytes())
    for name in ("widths:WIDTHS", ["widths"], 3):
        (tmp_path / "settings.json").write_text(json.dumps({"experiment": name}))
        with pytest.raises(InputError, match="not known here"):
            write_outputs(tmp_path)
    assert "widths" not in sys.modules


def test_a_folder_of_another_experiment_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """The settings say what it is, not the columns."""
    results = RESULTS / "trace-digits"
    (tmp_path / "results.csv").write_bytes((results / "results.csv").read_bytes())
    assert read_results(tmp_path).experiment.name == "trace"
    (tmp_path / "settings.json").write_text('{"experiment": "labels"}')
    with pytest.raises(InputError, match="it has no column 'preset', 'protocol', 'ratio'"):
        read_results(tmp_path)


@pytest.mark.parametrize("folder", sorted(RESULTS.iterdir()), ids=lambda folder: folder.name)
def test_every_folder_of_the_docs_is_read(folder: Path) -> None:
    results = read_results(folder)
    assert folder.name.startswith(results.experiment.name)
    command = results.experiment.section.command(results)
    assert f"{command} ".startswith(f"minsharp reproduce {results.experiment.name} ")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "widhts",
            "no experiment 'widhts': expected one of trace, labels, approximations, stability, vits, or package",
        ),
        ("\x1b[2J", r"no experiment '\\x1b\[2J'"),
        ("nowhere:X", "cannot import 'nowhere' for the experiment 'nowhere:X': ModuleNotFoundError"),
        ("json:loads", "'json:loads' is function: expected a minsharp.experiments.Experiment"),
        ("json:nothing", "'json:nothing' is NoneType"),
    ],
)
def test_what_is_not_found(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find(name)


def test_names_are_taken_once() -> None:
    def work(configuration: dict[str, Any], data_dir: str | None) -> list[dict[str, Any]]:
        return []

    trace = find("trace")
    mine = Experiment("trace", work, trace.plan, trace.columns, trace.tables, trace.section)
    with pytest.raises(InputError, match=r"'trace' exists already, in minsharp\.experiments\.trace"):
        register(mine)
    assert register(trace) is trace


def test_correlations_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all tables, figures, verdicts and summaries of a run together."""
    results = read_results(RESULTS / "labels-digits-loss")
    few = Results(results.experiment, results.rows, results.settings, results.folder)
    calls = 0
    correlate: Callable[..., Any] = statistics.correlate

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return correlate(*arguments, **options, resamples=10)

    monkeypatch.setattr(statistics, "correlate", counted)
    assert few.tables
    assert drawn(few)
    assert summary(few)["correlations"]
    assert list(labels.LABELS.section.verdicts([few]))
    assert list(labels.LABELS.plots(few))
    assert calls == len(few.models) * len(few.analysis.measures)


def test_the_command_line_runs_it(
    written: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(written[0])
    out = tmp_path / "own"
    chosen = ["--set", "widths=[2,4]", "--set", "seeds=[7]", "--out", str(out), "--workers", "1"]
    assert cli(["reproduce", "run", "widths:WIDTHS", *chosen]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[4:6]] == ["2", "4"]
    assert cli(["figures", str(out), "--experiment", "widths:WIDTHS"]) == 0
    page = tmp_path / "page.md"
    assert cli(["reproduce", "page", str(out), "--write", str(page), "--experiment", "widths:WIDTHS"]) == 0
    assert "Networks as they are initialised." in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["widths:WIDTHS", "--set", "depth=3"], "widths has no such option; it has widths, seeds, samples"),
        (["widths:WIDTHS", "--set", "depth"], "expected name=value, as in seeds=[0,1]"),
        (["widths:NOTHING"], "'widths:NOTHING' is NoneType: expected a minsharp.experiments.Experiment"),
        (["no_such_module:X"], "cannot import 'no_such_module'"),
        (["depths"], "no experiment 'depths': expected one of"),
    ],
)
def test_the_command_line_refuses(
    arguments: list[str],
    text: str,
    written: tuple[Path, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(written[0])
    assert cli(["reproduce", "run", *arguments]) != 0
    assert text in " ".join(capsys.readouterr().err.replace("\u2502", "").split())
