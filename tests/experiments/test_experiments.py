"""The experiments: small real runs, killed and resumed; the statistics against scipy; the page against the results."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from minsharp.cli.main import run as cli
from minsharp.data import load, permute_labels
from minsharp.errors import InputError
from minsharp.experiments import (
    Columns,
    Experiment,
    Plan,
    Section,
    approximations,
    grid,
    labels,
    read_results,
    run,
    statistics,
    store,
    trace,
)
from minsharp.experiments.plan import TIMING, Configuration, ResultRow
from minsharp.experiments.statistics import correlate
from minsharp.experiments.training import Recipe, evaluate, train_epochs, train_to_loss
from minsharp.models import build
from minsharp.report.outputs import write_outputs
from minsharp.report.reproduction import page
from tests.support.processes import hears_interrupts

TINY = ["--preset", "digits", "--models", "MLP", "--train", "60", "--epochs", "300", "--ratios", "0,0.5,1"]


def without_times(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        head, *rows = list(csv.reader(file))
    keep = [i for i, name in enumerate(head) if not name.endswith(TIMING)]
    assert len(keep) < len(head)
    return [[row[i] for i in keep] for row in (head, *rows)]


# Statistics


def ties(n: int, seed: int) -> tuple[np.ndarray[Any, Any], ...]:
    generator = np.random.default_rng(seed)
    return tuple(generator.integers(0, 6, n).astype(float) for _ in range(3))


@pytest.mark.parametrize("seed", range(5))
def test_correlations_are_scipys(seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, y, z = ties(20, seed) if seed % 2 else generator.normal(size=(3, 20)) @ generator.normal(size=(20, 20))
    found = correlate("m", "x", x, y, z, resamples=10)
    assert found.pearson.value == pytest.approx(scipy.stats.pearsonr(x, y).statistic, abs=1e-12)
    assert found.spearman.value == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)
    xy, xz, yz = (scipy.stats.kendalltau(a, b).statistic for a, b in ((x, y), (x, z), (y, z)))
    assert found.kendall.value == pytest.approx(xy, abs=1e-12)
    assert found.with_loss == pytest.approx(xz, abs=1e-12)
    assert found.partial.value == pytest.approx((xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2)), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_resamples_are_what_scipy_gives_for_them(seed: int) -> None:
    """A resample as counts against the resample written out."""
    x, y, z = ties(12, seed)
    drawn = np.random.default_rng(seed).integers(0, 12, 12)
    w = np.bincount(drawn, minlength=12)[None].astype(float)
    a, b, c = x[drawn], y[drawn], z[drawn]
    assert statistics._kendall(x, y, w)[0] == pytest.approx(scipy.stats.kendalltau(a, b).statistic, abs=1e-12)
    assert statistics._pearson(x, y, w)[0] == pytest.approx(scipy.stats.pearsonr(a, b).statistic, abs=1e-12)
    spearman = statistics._pearson(statistics._ranks(x, w), statistics._ranks(y, w), w)[0]
    assert spearman == pytest.approx(scipy.stats.spearmanr(a, b).statistic, abs=1e-12)
    assert statistics._kendall(z, z, w)[0] == pytest.approx(scipy.stats.kendalltau(c, c).statistic, abs=1e-12)


def test_intervals() -> None:
    """They hold the value, narrow with the number of networks, and come from a seed."""
    generator = np.random.default_rng(0)
    widths = []
    for n in (20, 200):
        x = generator.normal(size=n)
        y = x + generator.normal(size=n)
        found = correlate("m", "x", x, y, generator.normal(size=n))
        assert found.kendall.low < found.kendall.value < found.kendall.high
        widths.append(found.kendall.high - found.kendall.low)
    assert widths[1] < 0.5 * widths[0]
    assert correlate("m", "x", x, y, x * y) == correlate("m", "x", x, y, x * y)


def test_the_interval_covers_the_truth() -> None:
    """Kendall's tau of a bivariate normal is 2/pi arcsin(rho): the 95 % interval holds it most of the time."""
    rho, truth, hits = 0.6, 2 / np.pi * np.arcsin(0.6), 0
    for seed in range(40):
        x, noise = np.random.default_rng(seed).normal(size=(2, 60))
        found = correlate("m", "x", x, rho * x + np.sqrt(1 - rho**2) * noise, noise, resamples=400)
        hits += found.kendall.low <= truth <= found.kendall.high
    assert hits >= 33


NAN = float("nan")
DEGENERATE = {
    "constant": ([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 3.0, 2.0]),
    "nearly constant": ([0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2][:1] * 4, [1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 3.0, 2.0]),
    "two networks": ([1.0, 2.0], [1.0, 2.0], [1.0, 3.0]),
    "one finite": ([1.0, NAN, NAN, float("inf")], [1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 3.0, 2.0]),
    "none": ([], [], []),
}


@pytest.mark.parametrize("case", DEGENERATE)
def test_what_is_not_defined_is_a_dash(case: str) -> None:
    found = correlate("m", "x", *DEGENERATE[case])
    assert [str(getattr(found, name)) for name in statistics.STATISTICS] == ["-"] * 4
    assert found.to_dict()["kendall"] == {"value": None, "low": None, "high": None}


def test_the_loss_has_no_partial_tau_given_itself() -> None:
    x, y, _ = np.random.default_rng(0).normal(size=(3, 30))
    found = correlate("m", "training loss", x, y, x)
    assert np.isnan(found.partial.value)
    assert not np.isnan(found.kendall.value)


def test_networks_without_a_value_are_left_out() -> None:
    x, y, z = np.random.default_rng(0).normal(size=(3, 10))
    holes = x.copy()
    holes[3] = NAN
    rest = np.arange(10) != 3
    assert correlate("m", "x", holes, y, z) == correlate("m", "x", x[rest], y[rest], z[rest])


# Training


def digits(n: int, ratio: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    data = load("digits").subset(n)
    return data.train_x, permute_labels(data.train_y, ratio, 0)


def small(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return build("SmallMLP", "digits")


@pytest.mark.parametrize(("target", "seed"), [(1.5, 0), (0.3, 1), (0.05, 2), (0.05, 3)])
def test_the_target_loss_is_reached_closely(target: float, seed: int) -> None:
    x, y = digits(80)
    model = small(seed)
    fitted = train_to_loss(model, x, y, Recipe(lr=0.05, epochs=0, limit=200, target=target, batch=16), seed)
    assert fitted.reached
    assert evaluate(model, x, y).loss == pytest.approx(target, rel=1e-3)


def test_a_target_out_of_reach() -> None:
    x, y = digits(80)
    fitted = train_to_loss(small(), x, y, Recipe(lr=0.01, epochs=0, limit=2, target=1e-3, batch=40), 0)
    assert (fitted.epochs, fitted.steps, fitted.reached) == (2, 4, False)
    diverged = train_to_loss(small(), x, y, Recipe(lr=1e6, epochs=0, limit=50, target=1e-3, batch=40), 0)
    assert not diverged.reached


def test_the_schedule_is_the_papers() -> None:
    """The same steps by hand: momentum, weight decay, and a learning rate that falls with every step."""
    x, y = digits(50)
    recipe = Recipe(lr=0.1, epochs=3, limit=0, target=0.0, batch=20)
    model, by_hand = small(), small()
    assert train_epochs(model, x, y, recipe, seed=4).steps == 9
    generator, k = torch.Generator().manual_seed(4), 0
    velocity = [torch.zeros_like(p) for p in by_hand.parameters()]
    for _ in range(3):
        for batch in torch.randperm(50, generator=generator).split(20):
            loss = torch.nn.functional.cross_entropy(by_hand(x[batch]), y[batch])
            gradients = torch.autograd.grad(loss, list(by_hand.parameters()))
            for p, v, g in zip(by_hand.parameters(), velocity, gradients, strict=True):
                v.mul_(0.9).add_(g + 1e-5 * p.detach())
                p.data -= 0.1 / (1 + 1e-4 * k) * v
            k += 1
    for p, q in zip(model.parameters(), by_hand.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6)


# Cells


def square(configuration: Configuration, data_dir: str | None) -> list[ResultRow]:
    """Work that counts its calls in a folder, and fails where it is told to."""
    n = configuration["n"]
    if n == configuration.get("stumble"):
        raise InputError(f"cannot square {n}")
    if data_dir is not None:
        (Path(data_dir) / f"{n}-{time.time_ns()}").touch()
    return [{"n": n, "square": n * n * configuration["factor"], "threads": torch.get_num_threads(), "seconds": 0.1}]


def squares(numbers: list[int], **shared: int) -> Plan:
    return Plan({"factor": 1, **shared}, grid(n=numbers))


SQUARES = Experiment("squares", square, squares, Columns(("n",), ("square",)), lambda results: [], Section("Squares"))


def test_cells_are_kept_and_not_run_twice(tmp_path: Path) -> None:
    calls, out = tmp_path / "calls", tmp_path / "out"
    calls.mkdir()
    rows = run(SQUARES, squares([3, 1, 10]), out, workers=2, data_dir=str(calls))
    assert [(row["n"], row["square"]) for row in rows] == [(1, 1), (3, 9), (10, 100)]
    assert {row["threads"] for row in rows} == {1}
    table = (out / "results.csv").read_text()
    (out / "cells" / "n-3.json").write_text('{"cell": {"n": 3}, "ro')  # what a dying disk may leave
    run(SQUARES, squares([1, 3, 10]), out, workers=1, data_dir=str(calls))
    assert (out / "results.csv").read_text() == table
    assert sorted(path.name.split("-")[0] for path in calls.iterdir()) == ["1", "10", "3", "3"]
    with pytest.raises(InputError, match=r"(?s)other settings:.*factor: 1 in the folder, 2 asked for.*--force"):
        run(SQUARES, squares([1], factor=2), out)
    assert (out / "results.csv").read_text() == table
    rows = run(SQUARES, squares([1], factor=2), out, workers=1, force=True)
    assert [(row["n"], row["square"]) for row in rows] == [(1, 2)]


def test_an_error_in_a_cell_keeps_the_others(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot square 2"):
        run(SQUARES, squares([1, 2], stumble=2), tmp_path, workers=1)
    assert store.read_cell(tmp_path / "cells" / "n-1.json") is not None
    assert not (tmp_path / "results.csv").exists()


def test_tables_go_to_csv_and_back(tmp_path: Path) -> None:
    rows: list[ResultRow] = [
        {"a": 1, "b": 0.1 + 0.2, "c": "text, more", "d": True},
        {"a": 2, "b": float("inf"), "e": None},
    ]
    store.write_csv(tmp_path / "t.csv", rows)
    first, second = store.read_csv(tmp_path / "t.csv")
    assert first | {"e": None} == rows[0] | {"e": None}
    assert np.isnan([second["b"], second["c"], second["d"], second["e"]]).all()


def test_results_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"results.csv does not exist: expected a folder that `minsharp reproduce`"):
        write_outputs(tmp_path)
    (tmp_path / "results.csv").write_text("x,y\n1,2\n")
    with pytest.raises(InputError, match=r"no results of `minsharp reproduce`: the columns are x, y"):
        write_outputs(tmp_path)


# The command line


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", "from minsharp.cli.main import main; main()", "reproduce", "labels", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, preexec_fn=hears_interrupts
    )


def wait_for_cells(out: Path, count: int, process: "subprocess.Popen[str]") -> None:
    while len(list((out / "cells").glob("*.json"))) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def alive(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for workers in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_run_that_was_stopped_goes_on(how: signal.Signals, tmp_path: Path, uninterrupted: Path) -> None:
    """Killed in the middle: no worker is left behind, and the resumed run gives the same table, byte for byte."""
    out = tmp_path / "out"
    process = start(*TINY, "--seeds", "4", "--measures", "training loss", "--out", str(out), "--workers", "2")
    wait_for_cells(out, 2, process)
    assert len(alive(process.pid)) >= 3
    os.kill(process.pid, how)
    _, errors = process.communicate(timeout=60)
    assert not (out / "results.csv").exists()
    deadline = time.monotonic() + 30
    while alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(process.pid)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "cells are done and kept in" in errors
        assert "the same command goes on" in errors
        assert "Traceback" not in errors
    done = {path: path.stat().st_mtime_ns for path in (out / "cells").glob("*.json")}
    assert 2 <= len(done) < 12
    again = start(*TINY, "--seeds", "4", "--measures", "training loss", "--out", str(out), "--workers", "1")
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert without_times(out / "results.csv") == without_times(uninterrupted / "results.csv")


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("uninterrupted")
    assert cli(["reproduce", "labels", *TINY, "--seeds", "4", "--measures", "training loss", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Label noise at equal loss with all default measures."""
    out = tmp_path_factory.mktemp("measured")
    plan = labels.plan("digits", "loss", models=["MLP"], ratios=[0.0, 0.4, 1.0], seeds=[0], train=60)
    run(labels.LABELS, plan, out, workers=2)
    write_outputs(out)
    return out


def test_other_settings_are_refused(uninterrupted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "labels", *TINY, "--seeds", "4", "--measures", "training loss", "--out", str(uninterrupted)]
    assert cli([*command, "--protocol", "loss"]) == 2
    assert "protocol: epochs in the folder, loss asked for" in capsys.readouterr().err
    assert cli(["figures", str(uninterrupted)]) == 0


def test_every_network_reaches_the_loss_and_every_measure_has_a_value(measured: Path) -> None:
    rows = store.read_csv(measured / "results.csv")
    assert [row["ratio"] for row in rows] == [0.0, 0.4, 1.0]
    for row in rows:
        assert row["training loss"] == pytest.approx(0.01, rel=1e-2)
        assert row["reached"] is True
        assert row["train accuracy"] == 1.0
        assert row["gap"] == pytest.approx(row["train accuracy"] - row["test accuracy"])
        assert all(np.isfinite(row[name]) for name in labels.MEASURES), row["errors"]
        assert row["minimum sharpness (neuron)"] <= row["minimum sharpness"] <= row["trace"]
    assert rows[0]["gap"] < rows[2]["gap"]


def test_everything_comes_again_from_the_csv(measured: Path, tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_bytes((measured / "results.csv").read_bytes())
    assert cli(["figures", str(tmp_path)]) == 0
    names = {"ranking.png", "ranking.svg", "scatter-MLP.png", "scatter-MLP.svg", "summary.json", "results.csv"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert (tmp_path / "scatter-MLP.svg").read_bytes() == (measured / "scatter-MLP.svg").read_bytes()
    again, first = (json.loads((folder / "summary.json").read_text()) for folder in (tmp_path, measured))
    assert again["correlations"] == first["correlations"]
    assert first["settings"]["protocol"] == "loss"
    assert again["settings"] is None
    assert first["seeds"] == [0]


def test_the_ranking_is_that_of_the_table(measured: Path) -> None:
    results = read_results(measured)
    rows = results.rows
    found = {c.measure: c.kendall.value for c in results.analysis.correlations}
    gap = [row["gap"] for row in rows]
    for name, tau in found.items():
        assert tau == pytest.approx(scipy.stats.kendalltau([row[name] for row in rows], gap).statistic), name
    ranking = json.loads((measured / "summary.json").read_text())["ranking"]["MLP"]["kendall"]
    assert [found[name] for name in ranking] == sorted(found.values(), reverse=True)


def test_the_page(measured: Path, tmp_path: Path) -> None:
    results = read_results(measured)
    assert labels.LABELS.section.command(results) == (
        "minsharp reproduce labels --preset digits --protocol loss --models MLP --ratios 0,0.4,1 --seeds 1 --train 60"
    )
    text = page([results], tmp_path)
    for table in results.tables:
        assert table.markdown() in text
    head = text.partition("## How to read this")[0]
    assert "| measure | digits, equal loss, MLP |" in head
    found = {c.measure: c for c in results.analysis.correlations}
    rows = dict(re.findall(r"^\| ([a-z A-Z()-]+) \| (\S+) / \S+ \|$", head, flags=re.M))
    assert {name: cell.rstrip("†") for name, cell in rows.items()} == {
        name: f"{c.kendall.value:.2f}" for name, c in found.items()
    }
    assert all((found[name].kendall.low > 0) == ("†" in cell) for name, cell in rows.items())
    assert "3 reached the training loss 0.01 and are compared" in text
    path = tmp_path / "docs" / "page.md"
    assert cli(["reproduce", "page", str(measured), "--write", str(path)]) == 0
    assert "scatter-MLP.png" in path.read_text()
    assert "(page-labels.png)" in path.read_text()
    assert (path.parent / "page-labels.png").stat().st_size > 10_000


def test_the_page_in_the_docs_is_what_the_results_in_the_docs_give() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "reproduction.md").read_text()
    folders = list(dict.fromkeys(re.findall(r"\]\((results/[\w-]+)/", text)))
    results = [read_results(docs / folder) for folder in folders]
    assert page(results, docs, {labels.LABELS: "reproduction-labels.png"}) == text, "run minsharp reproduce page"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["labels", "--preset", "cifar"], "--preset cifar: expected one of digits, mnist-small, paper"),
        (["labels", "--protocol", "time"], "--protocol time: expected 'epochs' or 'loss'"),
        (["labels", "--models", "LeNet"], "preset 'digits' has no model 'LeNet': expected some of MLP, CNN"),
        (["labels", "--measures", "trace,size"], "unknown ['size']"),
        (["labels", "--seeds", "a"], "expected '10', '3-5' or '1,3,5'"),
        (["labels", "--ratios", "0;1"], "expected numbers with commas between them"),
        (["labels", "--ratios", "0,2"], "ratio=2.0: expected a fraction"),
        (["trace", "--data", "cifar"], "--data cifar: expected one of digits, mnist, fashion-mnist"),
        (["trace", "--samples", "0"], "--samples 0: expected at least 1"),
        (["trace", "--samples", "5000"], "--samples 5000: digits has 1000 training images"),
        (["trace", "--models", "MLP"], "no model 'MLP' in this experiment: expected some of SmallMLP, SmallCNN"),
        (["approximations", "--probes", "0"], "expected numbers of at least 1"),
        (["trace", "--data", "mnist", "--data-dir", "nowhere"], "nowhere lacks train-images"),
    ],
)
def test_what_is_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli(["reproduce", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# Trace and approximations


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("traces")
    run(trace.TRACE, trace.plan("digits", samples=[10], seeds=[0, 1]), out, workers=1)
    write_outputs(out)
    return out


def agree(rows: list[ResultRow]) -> None:
    for row in rows:
        assert row["trace relative difference"] < 1e-4, row
        assert row["diagonal relative difference"] < 1e-4, row


def test_traces(traces: Path) -> None:
    rows = store.read_csv(traces / "results.csv")
    assert [(row["model"], row["seed"]) for row in rows] == [(m, s) for m in ("SmallCNN", "SmallMLP") for s in (0, 1)]
    agree(rows)
    assert {"traces.png", "times.svg", "summary.json"} <= {path.name for path in traces.iterdir()}
    (table,) = read_results(traces).tables
    assert table.rows[1][:3] == ("SmallMLP", "10", "2")
    assert table.rows[1][-1] == "617"  # 11.11 s / 0.018 s


@pytest.mark.slow
def test_all_traces_on_digits(tmp_path: Path) -> None:
    rows = run(trace.TRACE, trace.plan("digits"), tmp_path, workers=1)
    assert len(rows) == 60
    agree(rows)


def test_approximations(tmp_path: Path) -> None:
    plan = approximations.plan("digits", models=["SmallMLP"], samples=[10], seeds=[0], probes=[1, 64])
    rows = run(approximations.APPROXIMATIONS, plan, tmp_path, workers=1)
    assert read_results(tmp_path).experiment is approximations.APPROXIMATIONS
    errors = {(row["method"], row["probes"]): row["relative error"] for row in rows}
    assert errors[approximations.EXACT, 0] < 1e-5
    assert errors["Tsuzuku et al., arXiv", 64] < 0.5 * errors["Tsuzuku et al., arXiv", 1]
    assert {path.name for path in write_outputs(tmp_path)} == {
        *("summary.json", "approximations.png", "approximations.svg"),
    }
    assert approximations.APPROXIMATIONS.section.command(read_results(tmp_path)) == (
        "minsharp reproduce approximations --data digits --models SmallMLP --samples 10 --seeds 1 --probes 1,64"
    )
