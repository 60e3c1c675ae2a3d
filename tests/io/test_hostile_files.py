"""Hostile and damaged files against the command line: none runs, none shows a traceback, none leaves half a file."""

import re
import resource
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.export import Dim

from minsharp.cli.main import run
from tests.support.hostile import BOMBS, DEFUSED, FACTORY, MIB, RECIPES, Bench, factory, npy, peak_of, zipped

Capture = pytest.CaptureFixture[str]
CONSTANT = 96 * MIB
"""What a command may need beyond the tensors: the interpreter's garbage, a graph in JSON."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("sound")
    x = torch.randn(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(factory().eval(), (x[:3],), dynamic_shapes=[{0: Dim.AUTO}], strict=False)
    torch.export.save(program, folder / "model.pt2")
    np.savez(folder / "data.npz", x=x.numpy())
    return Bench(folder, folder / "model.pt2", folder / "data.npz")


@pytest.fixture
def bench(sound: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.chdir(tmp_path)
    modules, path = set(sys.modules), list(sys.path)
    yield Bench(tmp_path, sound.model, sound.data)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("hostile_"):
            del sys.modules[name]


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file with its bytes, caches of the interpreter aside."""
    found = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    small = {p for p in found if p.is_file() and not p.is_symlink() and p.stat().st_size < MIB}
    return {str(p.relative_to(folder)): p.read_bytes() if p in small else None for p in found}


def told(code: int, out: str, err: str) -> None:
    """An exit code that says no, nothing on stdout, and one printable line on stderr."""
    assert code in (1, 2), err
    assert out == ""
    assert err.startswith("error: "), err
    assert err.count("\n") == 1, err
    assert err[:-1].isprintable(), err
    assert "Traceback" not in err


def test_the_files_they_are_made_of_are_sound(sound: Bench, capsys: Capture) -> None:
    assert run(["measure", str(sound.model), "--data", str(sound.data), "--json"]) == 0
    assert '"trace"' in capsys.readouterr().out


@pytest.mark.parametrize("name", RECIPES)
def test_hostile_files_are_refused(name: str, bench: Bench, capsys: Capture) -> None:
    arguments = [str(a) for a in RECIPES[name](bench)]
    before = contents(bench.folder)
    peak, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    code = run(arguments)
    out, err = capsys.readouterr()
    told(code, out, err)
    assert name not in BOMBS or re.search(DEFUSED, err), err
    assert not bench.mark.exists()
    after = contents(bench.folder)
    assert {name: content for name, content in after.items() if name != "run/cells"} == {
        name: content for name, content in before.items() if name != "run/cells"
    }
    assert time.monotonic() - start < 60
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024 < 2 * CONSTANT


@pytest.fixture(scope="module")
def baseline(sound: Bench) -> int:
    """The peak of a command on sound files."""
    code, peak, errors = peak_of(["measure", sound.model, "--data", sound.data], sound.folder)
    assert code == 0, errors
    return peak


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BOMBS))
def test_bombs_do_not_go_off(name: str, bench: Bench, baseline: int) -> None:
    """Hardly more memory than for a sound file of a few numbers, in a process of its own."""
    code, peak, errors = peak_of(RECIPES[name](bench), bench.folder)
    told(code, "", errors)
    assert peak < baseline + CONSTANT


SIZE = 256 * MIB


def large_npz(bench: Bench) -> list[object]:
    content = npy((SIZE // 56, 7), content=bytes(SIZE // 56 * 56))
    return bench.as_data(zipped({"x.npy": content}, zipfile.ZIP_DEFLATED))


def large_npz_by_columns(bench: Bench) -> list[object]:
    header = repr({"descr": "<f8", "fortran_order": True, "shape": (SIZE // 56, 7)})
    return bench.as_data(zipped({"x.npy": npy((), text=header, content=bytes(SIZE // 56 * 56))}))


def large_weights(bench: Bench) -> list[object]:
    path = bench.folder / "w.pt"
    torch.save({"0.weight": torch.zeros(SIZE // 8, dtype=torch.float64)}, path)
    return ["measure", FACTORY, "--data", bench.data, "--weights", path]


def large_safetensors(bench: Bench) -> list[object]:
    from safetensors.torch import save_file

    path = bench.folder / "w.safetensors"
    save_file({"0.weight": torch.zeros(SIZE // 8, dtype=torch.float64)}, path)
    return ["measure", FACTORY, "--data", bench.data, "--weights", path]


def large_model(bench: Bench) -> list[object]:
    wide = SIZE // 8 // 16
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, wide)).double()
    x = torch.zeros(3, 6, dtype=torch.float64)
    program = torch.export.export(model.eval(), (x,), dynamic_shapes=[{0: Dim.AUTO}], strict=False)
    torch.export.save(program, bench.folder / "large.pt2")
    np.savez(bench.folder / "short.npz", x=np.zeros((3, 5)))
    return ["measure", bench.folder / "large.pt2", "--data", bench.folder / "short.npz"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [large_npz, large_npz_by_columns, large_weights, large_safetensors, large_model], ids=lambda f: f.__name__
)
def test_honest_files_take_less_than_twice_their_tensors(make: object, bench: Bench, baseline: int) -> None:
    """Files that hold all that they announce, and do not fit: read, and then refused."""
    code, peak, errors = peak_of(make(bench), bench.folder)  # type: ignore[operator]
    told(code, "", errors)
    assert peak < baseline + 2 * SIZE + CONSTANT / 2


def test_the_number_of_files(capsys: Capture) -> None:
    count = len(RECIPES)
    with capsys.disabled():
        print(f"\n{count} hostile or damaged files, {len(BOMBS)} of them bombs", file=sys.stderr)
    assert count >= 60
