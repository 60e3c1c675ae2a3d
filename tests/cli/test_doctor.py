"""The doctor: what is installed, and whether it computes what it should."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import minsharp as ms
from minsharp.cli import doctor, selftest
from minsharp.cli.main import run
from minsharp.version import __version__

Capture = pytest.CaptureFixture[str]


def test_a_sound_installation(capsys: Capture) -> None:
    assert run(["doctor"]) == 0
    out, _ = capsys.readouterr()
    assert out.startswith(f"minsharp        {__version__}, Python {sys.version.split()[0]}")
    assert "cpu             trace against a dense Hessian holds: relative error" in out
    shown = re.findall(r"^\[(\w+)\]", out, flags=re.M)
    assert sorted(shown) == ["experiments", "images", "lightning", "ray", "torchmetrics", "transformers"]


def test_as_json(capsys: Capture) -> None:
    assert run(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["minsharp"] == __version__
    assert [test["device"] for test in told["self_test"]] == selftest.devices()
    assert all(test["holds"] and test["error"] < 1e-12 for test in told["self_test"])
    assert told["trouble"] is None
    assert "dev" not in told["extras"]


def test_a_wrong_trace_is_found(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ms.hessian_trace

    def wrong(*arguments: Any) -> Any:
        return SimpleNamespace(total=1.000001 * right(*arguments).total)

    monkeypatch.setattr(selftest, "hessian_trace", wrong)
    assert run(["doctor"]) == 1
    out, err = capsys.readouterr()
    assert "FAILS" in out
    assert "error: the self-test fails on cpu: relative error 1.0e-06, allowed 2.2e-13" in err


def test_an_engine_that_fails_is_told(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> Any:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(selftest, "hessian_trace", fails)
    assert run(["doctor", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["self_test"][0]["trouble"] == "RuntimeError: no such instruction"
    assert "the self-test fails on cpu: RuntimeError: no such instruction" in err


def test_a_torch_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')\n")
    places = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "minsharp", "doctor"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": places},
    )
    assert done.returncode == 1
    assert done.stdout.startswith("minsharp ")
    assert done.stderr.count("\n") == 1
    assert "error: minsharp cannot be loaded: ImportError: libgomp.so.1" in done.stderr


def test_what_is_missing_or_too_old(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["torch>=2.6", "numpy>=99.1", "nonesuch>=1.2; extra == 'odd'", "minsharp[odd]; extra == 'more'"]
    monkeypatch.setattr(doctor, "requires", lambda name: lines)
    assert run(["doctor"]) == 1
    out, err = capsys.readouterr()
    assert "[odd]           nonesuch is missing; pip install 'minsharp[odd]', or '.[odd]' from a checkout" in out
    assert "[more]          nonesuch is missing; pip install 'minsharp[more]'" in out
    assert "(needs 99.1)" in err


def test_a_version_with_a_letter_is_compared_by_its_numbers() -> None:
    assert doctor.Part("torch", "2.6", "2.13.0+cpu").is_well
    assert not doctor.Part("torch", "2.6", "2.5.1+cpu").is_well
    assert str(doctor.Part("torch", "2.6", "2.5.1")) == "torch 2.5.1 (needs 2.6)"
    assert doctor.Part("torch", "", torch.__version__).is_well
