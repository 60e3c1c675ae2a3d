"""The command line where the terminal, the disk or the packages fail it: one line, an exit code, nothing left over."""

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minsharp import files
from minsharp.cli.main import TRACEBACK, run
from minsharp.errors import InputError
from minsharp.experiments.store import write_csv
from tests.support.hostile import FACTORY, Bench, code, label_rows, run_folder
from tests.support.processes import hears_interrupts

Capture = pytest.CaptureFixture[str]
CLI = [sys.executable, "-m", "minsharp"]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    x = torch.randn(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "data.npz", x=x.numpy())
    return Bench(tmp_path, tmp_path / "none.pt2", tmp_path / "data.npz")


def environment(**more: str) -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **more}


def shell(command: str, *arguments: object, **more: str) -> "subprocess.CompletedProcess[str]":
    """The command line as a shell runs it: `{}` stands for it and its arguments."""
    words = " ".join(f"'{a}'" for a in [*CLI, *arguments])
    script = ["bash", "-c", command.replace("{}", words)]
    return subprocess.run(script, capture_output=True, text=True, check=False, env=environment(**more))


def measured(bench: Bench, *more: object) -> list[object]:
    return ["measure", FACTORY, "--data", bench.data, *more]


def told(error: str, *words: str) -> None:
    assert error.startswith("error: "), error
    assert error.count("\n") == 1, error
    assert "Traceback" not in error
    for word in words:
        assert word in error


# Streams


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_is_full(bench: Bench) -> None:
    done = shell("{} > /dev/full", *measured(bench, "--json"))
    told(done.stderr, "No space left on device")
    assert done.returncode == 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_other_outputs_that_are_full(bench: Bench) -> None:
    told(shell("{} > /dev/full", *measured(bench)).stderr, "No space left on device")
    assert shell("{} 2> /dev/full", "measure", "nothing", "--data", "x").returncode == 2
    assert shell("{} > /dev/full", "--help").returncode == 1


def test_outputs_that_are_closed(bench: Bench) -> None:
    assert shell("{} <&- >&- 2>&-", *measured(bench)).returncode == 0
    done = shell("{} 2>&-", *measured(bench, "--json"))
    assert json.loads(done.stdout)["samples"] == 12


@pytest.mark.slow
def test_one_output_that_is_closed(bench: Bench) -> None:
    assert shell("{} >&-", *measured(bench)).stderr == ""
    done = shell("{} 2>&-", "measure", "nothing", "--data", "x")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("more", [[], pytest.param(["--json"], marks=pytest.mark.slow)])
def test_readers_that_leave(more: list[str], bench: Bench) -> None:
    done = shell("{} | true; exit ${PIPESTATUS[0]}", *measured(bench, *more))
    assert done.stderr == ""
    assert done.returncode == 1


PLAIN = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize("more", [{"PYTHONIOENCODING": "ascii:strict"}, pytest.param(PLAIN, marks=pytest.mark.slow)])
def test_terminals_without_letters(more: dict[str, str], bench: Bench) -> None:
    arguments = ["compare", FACTORY, "--data", bench.data, "--measures", "trace", "--rescalings", 0]
    done = shell("{}", *arguments, **more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "trace" in done.stdout


def test_names_of_files_in_any_bytes(bench: Bench) -> None:
    strange = os.fsdecode(os.fsencode(bench.folder) + b"/d\xff\x1b[31m")
    (bench.data).rename(f"{strange}.npz")
    code, flat = [*CLI, "flatten", FACTORY, "--data", f"{strange}.npz"], f"{strange}.safetensors"
    done = subprocess.run([*code, "--out", flat], capture_output=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stderr
    again = [*CLI, "measure", FACTORY, "--data", f"{strange}.npz", "--weights", flat, "--json", "--report"]
    done = subprocess.run([*again, f"{strange}.html"], capture_output=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["weights"] == flat
    assert "\x1b" not in Path(f"{strange}.html").read_text(encoding="utf-8")
    missing = [*CLI, "measure", FACTORY, "--data", f"{strange}.none.npz"]
    done = subprocess.run(missing, capture_output=True, check=False, env=environment())
    assert b"d\\udcff\\x1b[31m.none.npz" in done.stderr


LOUD = """
class Net(torch.nn.Module):
    def __init__(s):
        super().__init__()
        print("made")
        s.l = torch.nn.Linear(6, 3).double()
    def forward(s, x):
        print("called")
        return s.l(x)
make = Net
"""


def test_models_that_print_do_not_spoil_the_results(bench: Bench, capsys: Capture) -> None:
    assert run([*map(str, code(bench, LOUD)), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["samples"] == 12
    assert "made\n" in err
    assert "called\n" in err


# Ctrl-C


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")
@pytest.mark.parametrize("library", ["libtorch_cpu", pytest.param("libtorch_python", marks=pytest.mark.slow)])
def test_an_interruption_while_torch_is_loaded(library: str, bench: Bench) -> None:
    process = subprocess.Popen(
        [*CLI, *map(str, measured(bench))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=hears_interrupts,
    )
    while library not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)
    assert (out, err) == ("", "\ninterrupted\n")


def test_a_factory_that_is_interrupted(bench: Bench, capsys: Capture) -> None:
    assert run([str(a) for a in code(bench, "def make(): raise KeyboardInterrupt")]) == 130
    assert capsys.readouterr() == ("", "\ninterrupted\n")


# What nobody foresaw


def test_an_error_that_nobody_foresaw(bench: Bench, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise TypeError("one\ntwo\x1b[31m")

    monkeypatch.setattr("minsharp.cli.task.read", fail)
    arguments = [str(a) for a in measured(bench)]
    assert run(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    told(err, "error: unexpected TypeError: one two\\x1b[31m. MINSHARP_TRACEBACK=1 shows where it came from")
    monkeypatch.setenv(TRACEBACK, "1")
    assert run(arguments) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "in fail" in err


def test_too_little_memory(bench: Bench, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("minsharp.cli.task.read", fail)
    assert run([str(a) for a in measured(bench)]) == 1
    told(capsys.readouterr().err, "there is not enough memory", "--samples")


@pytest.mark.parametrize(
    ("package", "arguments", "words"),
    [
        ("sklearn.datasets", ["measure", FACTORY, "--data", "digits"], "'digits' needs scikit-learn"),
        ("pooch", ["measure", FACTORY, "--data", "mnist"], "downloading data needs pooch"),
        ("matplotlib", ["figures", "run"], "drawing figures needs matplotlib"),
        ("matplotlib", ["reproduce", "labels", "--out", "new"], "drawing figures needs matplotlib"),
    ],
)
def test_packages_that_are_missing(
    package: str, arguments: list[str], words: str, bench: Bench, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder(bench)
    monkeypatch.setitem(sys.modules, package, None)
    before = sorted(bench.folder.rglob("*"))
    assert run(arguments) == 2
    told(capsys.readouterr().err, words, "pip install 'minsharp[experiments]'")
    assert sorted(bench.folder.rglob("*")) == before


# Disks


LIMIT = 300


def short_of_space() -> None:
    """For `preexec_fn`: no file may grow beyond a few bytes, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


WRITERS: dict[str, list[str]] = {
    "report": ["measure", FACTORY, "--data", "data.npz", "--report", "r.html"],
    "weights": ["flatten", FACTORY, "--data", "data.npz", "--out", "f.safetensors"],
    "figures": ["figures", "run"],
    "page": ["reproduce", "page", "run", "--write", "page.md"],
    "settings": ["reproduce", "labels", "--epochs", "1", "--out", "new"],
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in ("weights", "settings") else pytest.mark.slow) for n in WRITERS]
)
def test_a_disk_without_space(name: str, bench: Bench) -> None:
    run_folder(bench)
    settings = {"preset": "digits", "protocol": "epochs", "measures": ["trace"], "train": None, "device": "cpu"}
    bench.write("run/settings.json", json.dumps({**settings, "recipes": {"MLP": {"epochs": 1, "target": 0.1}}}))
    before = {path: path.read_bytes() for path in bench.folder.rglob("*") if path.is_file()}
    done = subprocess.run(
        [*CLI, *WRITERS[name]],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        preexec_fn=short_of_space,
        cwd=bench.folder,
    )
    assert done.returncode == 2, done.stderr
    told(done.stderr.replace("testing the networks under noise for the report\n", ""), "cannot write '")
    assert {path: path.read_bytes() for path in bench.folder.rglob("*") if path.is_file()} == before


def test_a_disk_that_fails_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some disks say that they are full only when the file is flushed."""

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "t").write_text("old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match="No space left on device"):
        files.write_text(tmp_path / "t", "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("t", "old")]


def test_a_folder_that_vanishes(bench: Bench, capsys: Capture) -> None:
    out = bench.folder / "gone"
    out.mkdir()
    text = f"import os\ndef make():\n    os.rmdir({str(out)!r})\n    return torch.nn.Linear(6, 3).double()"
    arguments = ["flatten", *map(str, code(bench, text)[1:])]
    assert run([*arguments, "--out", str(out / "f.safetensors")]) == 2
    told(capsys.readouterr().err, "there is no folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_folders_and_files_without_rights(bench: Bench, capsys: Capture) -> None:
    folder = bench.folder / "closed"
    folder.mkdir(mode=0o500)
    bench.data.chmod(0)
    for arguments in (
        ["flatten", FACTORY, "--data", bench.data, "--out", folder / "f.safetensors"],
        ["reproduce", "labels", "--out", folder],
        measured(bench),
    ):
        assert run([str(a) for a in arguments]) == 2
        told(capsys.readouterr().err, "cannot")


# Names in results


def test_names_in_results_do_not_leave_the_folder(bench: Bench, capsys: Capture) -> None:
    folder = run_folder(bench)
    names = ["../../evil", "/tmp/evil", "$\\frac{", "a\x1b[31m\n|", "<script>"]
    write_csv(folder / "results.csv", [{**row, "model": name} for name in names for row in label_rows()])
    before = set(bench.folder.rglob("*"))
    assert run(["figures", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert all(c.isprintable() or c == "\n" for c in out + err)
    new = set(bench.folder.rglob("*")) - before
    assert {path.parent for path in new} == {folder}
    assert len(new) == 2 * (len(names) + 1) + 1
    settings = {"preset": "digits", "protocol": "epochs", "measures": ["trace"], "train": None, "device": "cpu"}
    bench.write("run/settings.json", json.dumps({**settings, "recipes": {"MLP": {"epochs": 1, "target": 0.1}}}))
    assert run(["reproduce", "page", str(folder), "--write", str(bench.folder / "page.md")]) == 0
    page = (bench.folder / "page.md").read_text(encoding="utf-8")
    assert "<script>" not in re.sub(r"(?s)```.*?```", "", page)  # a command is shown as it is
    assert all(c.isprintable() or c == "\n" for c in page)
