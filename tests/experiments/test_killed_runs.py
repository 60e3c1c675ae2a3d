"""Runs that are killed, or that meet another one on their folder: nothing is lost, nothing is done twice."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minsharp.cli.main import run as cli
from minsharp.errors import InputError
from minsharp.experiments import run, store
from minsharp.experiments.plan import TIMING
from minsharp.files import LOCK, held, write_text
from tests.experiments.test_experiments import SQUARES, alive, squares
from tests.support.processes import hears_interrupts

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for workers in /proc")

CELLS = 12
LABELS = ["reproduce", "labels", "--models", "MLP", "--train", "60", "--epochs", "150", "--ratios", "0,0.5,1"]
LABELS += ["--seeds", "4", "--measures", "training loss,trace", "--workers", "2"]
Process = subprocess.Popen[str]


def started(out: Path) -> Process:
    command = [sys.executable, "-m", "minsharp", *LABELS, "--out", str(out)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, start_new_session=True, preexec_fn=hears_interrupts
    )


def done(out: Path) -> list[Path]:
    return [path for path in (out / "cells").glob("*.json") if not path.name.startswith(".")]


def waits(process: Process, what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def untimed(path: Path) -> bytes:
    """The table without its timing columns, byte for byte."""
    head, *rows = list(csv.reader(io.StringIO(path.read_bytes().decode(), newline="")))
    keep = [i for i, name in enumerate(head) if not name.endswith(TIMING)]
    assert len(keep) < len(head)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[row[i] for i in keep] for row in (head, *rows)])
    return text.getvalue().encode()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    process = started(out)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert len(done(out)) == CELLS
    return untimed(out / "results.csv")


def at_the_start(process: Process, out: Path) -> None:
    waits(process, (out / "settings.json").exists)


def after_one_cell(process: Process, out: Path) -> None:
    waits(process, lambda: len(done(out)) >= 1)


def after_half_of_the_cells(process: Process, out: Path) -> None:
    waits(process, lambda: len(done(out)) >= CELLS // 2)


def while_a_cell_is_written(process: Process, out: Path) -> None:
    waits(process, lambda: len(done(out)) >= 1 and any((out / "cells").glob(".*.draft")))


def between_the_last_cell_and_the_table(process: Process, out: Path) -> None:
    """The parent stands still while the workers finish what they have."""
    waits(process, lambda: len(done(out)) >= CELLS - 2)
    os.kill(process.pid, signal.SIGSTOP)
    waits(process, lambda: len(done(out)) == CELLS)


MOMENTS = [
    at_the_start,
    after_one_cell,
    after_half_of_the_cells,
    while_a_cell_is_written,
    between_the_last_cell_and_the_table,
]


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda f: f.__name__)
def test_a_killed_run_goes_on_to_the_same_table(
    moment: Callable[[Process, Path], None], tmp_path: Path, undisturbed: bytes
) -> None:
    out = tmp_path / "out"
    process = started(out)
    moment(process, out)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(process.pid)
    assert not (out / "results.csv").exists()
    assert (out / LOCK).read_text() == f"{process.pid}\n"
    kept = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in done(out)}
    print(f"\n{moment.__name__}: killed with {len(kept)} of {CELLS} cells done", file=sys.stderr)
    again = started(out)
    _, errors = again.communicate(timeout=600)
    assert again.returncode == 0, errors
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in kept} == kept
    assert untimed(out / "results.csv") == undisturbed
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]


@pytest.mark.slow
def test_a_worker_that_is_killed(tmp_path: Path, undisturbed: bytes) -> None:
    out = tmp_path / "out"
    process = started(out)
    waits(process, lambda: len(done(out)) >= 2)
    for pid in alive(process.pid):
        if pid != process.pid and b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
            break
    _, errors = process.communicate(timeout=120)
    assert process.returncode in (1, 2)
    assert "error: A worker died" in errors
    assert "Traceback" not in errors
    assert not (out / LOCK).exists()
    again = started(out)
    _, errors = again.communicate(timeout=600)
    assert again.returncode == 0, errors
    assert untimed(out / "results.csv") == undisturbed


# Two runs on one folder


HOLD = "import sys, time; from pathlib import Path; from minsharp.files import held\nwith held(Path(sys.argv[1])):\n"
HOLD += "    print('held', flush=True); time.sleep(600)"


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Process]:
    """Another process that holds the folder."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=hears_interrupts) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_folder_belongs_to_one_run(
    holder: Process, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.iterdir())
    arguments = ["reproduce", "labels", "--epochs", "1", "--out", str(tmp_path)]
    for force in ([], ["--force"]):
        assert cli([*arguments, *force]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert f"error: '{tmp_path}' is in use by another run, process {holder.pid}" in err
        assert "--out" in err
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(InputError, match=f"process {holder.pid}"):
        run(SQUARES, squares([1]), tmp_path)


def test_the_lock_of_a_killed_run_holds_nobody_up(holder: Process, tmp_path: Path) -> None:
    holder.kill()
    holder.wait()
    assert (tmp_path / LOCK).read_text() == f"{holder.pid}\n"
    with held(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
    assert not (tmp_path / LOCK).exists()


@pytest.mark.parametrize("content", [b"", b"99999999\n", b"\xff\x00\x1b[31m", b"1" * 5000])
def test_locks_that_nobody_holds(content: bytes, tmp_path: Path) -> None:
    (tmp_path / LOCK).write_bytes(content)
    with held(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
    assert not list(tmp_path.iterdir())


def test_the_lock_goes_with_an_error_and_with_an_interruption(holder: Process, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(KeyboardInterrupt), held(other):
        raise KeyboardInterrupt
    assert not list(other.iterdir())
    holder.send_signal(signal.SIGINT)
    holder.wait()
    assert not (tmp_path / LOCK).exists()


# Cells that are damaged are run again; what does not belong is left out


DAMAGED: dict[str, bytes] = {
    "cut": b'{"cell": {"n": 3}, "ro',
    "empty": b"",
    "noise": bytes(range(256)),
    "a list": b"[]",
    "nested": b"[" * 100_000,
    "without rows": b'{"cell": {"n": 3}}',
    "rows of the wrong kind": b'{"cell": {"n": 3}, "rows": {"n": 3}}',
    "a row of the wrong kind": b'{"cell": {"n": 3}, "rows": [3]}',
    "a nested cell": b'{"cell": {"n": 3}, "rows": [{"n": [3]}]}',
    "another cell": b'{"cell": {"n": 10}, "rows": [{"n": 10, "square": 5}]}',
    "a cell that is no dict": b'{"cell": 3, "rows": []}',
    "a huge number": b'{"cell": {"n": 3}, "rows": [{"n": ' + b"9" * 5000 + b"}]}",
}


@pytest.fixture(scope="module")
def squared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("squares") / "out"
    run(SQUARES, squares([1, 3, 10]), out, workers=1)
    return out


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_cells_do_not_count(name: str, squared: Path) -> None:
    cell = squared / "cells" / "n-3.json"
    sound = cell.read_bytes()
    try:
        cell.write_bytes(DAMAGED[name])
        assert store.read_cell(cell) is None
        assert [row["n"] for row in store.finished(squared / "cells")] == [1, 10]
    finally:
        cell.write_bytes(sound)


def test_damaged_cells_are_run_again(squared: Path, tmp_path: Path) -> None:
    table = (squared / "results.csv").read_bytes()
    (squared / "cells" / "n-3.json").write_bytes(DAMAGED["another cell"])
    (squared / "cells" / ".n-1.json.x.draft").write_bytes(b"half")
    (squared / "cells" / "stranger.json").write_text(json.dumps({"cell": {"n": "a"}, "rows": [{"n": "a"}]}))
    run(SQUARES, squares([1, 3, 10]), squared, workers=1)
    assert (squared / "results.csv").read_bytes() == table
    assert not [p for p in squared.rglob("*") if p.name.startswith(".")]


def test_force_leaves_no_results_of_other_settings(tmp_path: Path) -> None:
    """Killed at once after --force, a folder does not hold a table that its settings did not make."""
    run(SQUARES, squares([1]), tmp_path, workers=1)
    for name in ("summary.json", "a.png", "a.svg"):
        write_text(tmp_path / name, "old")
    with pytest.raises(InputError, match="cannot square 2"):
        run(SQUARES, squares([2], factor=3, stumble=2), tmp_path, workers=1, force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cells", "settings.json"]
    assert not list((tmp_path / "cells").iterdir())
