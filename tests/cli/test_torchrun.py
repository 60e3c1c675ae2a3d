"""`torchrun -m minsharp measure`: the numbers of one process, printed once; a failure is everybody's."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import minsharp as ms

ROOT = Path(__file__).parents[2]
X = torch.randn(7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def factory() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).double()


def broken() -> nn.Module:
    if os.environ["RANK"] == "1":
        raise ValueError("no weights here")
    return factory()


class _Dying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = factory()

    def forward(self, x: torch.Tensor) -> Any:
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)


def dying_later() -> nn.Module:
    """On rank 1 the process is killed when it has measured its part, and would tell."""
    if os.environ["RANK"] == "1":
        torch.distributed.send_object_list = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
    return factory()


@pytest.fixture
def data(tmp_path: Path) -> str:
    np.savez(tmp_path / "x.npz", x=X.numpy())
    return str(tmp_path / "x.npz")


def _torchrun(processes: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    paths = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(
        [*command, "-m", "minsharp", *arguments], capture_output=True, text=True, timeout=120, env=environment
    )


@pytest.mark.parametrize(("processes", "samples"), [(2, 7), (3, 2)])
def test_the_numbers_of_one_process(processes: int, samples: int, data: str, tmp_path: Path) -> None:
    """Uneven parts; with two samples on three processes, one part is empty."""
    out = tmp_path / "kept.json"
    given = ["tests.cli.test_torchrun:factory", "--data", data, "--samples", str(samples), "--json"]
    done = _torchrun(processes, "measure", *given, "--save", str(out))
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)  # once
    trace = ms.hessian_trace(factory(), X[:samples])
    assert printed["samples"] == ms.load(out).samples == samples
    assert printed["trace"]["by_parameter"] == pytest.approx(trace.by_parameter, rel=1e-12)
    least = ms.minimum_sharpness(factory(), X[:samples], scope="neuron").value
    assert printed["minimum_sharpness"]["neuron"]["value"] == pytest.approx(least, rel=1e-12)


@pytest.mark.parametrize("processes", [2, 3])
def test_one_rank_fails(processes: int, data: str) -> None:
    done = _torchrun(processes, "measure", "tests.cli.test_torchrun:broken", "--data", data)
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.count("error: rank 1: ") == 1
    assert "no weights here" in done.stderr


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("model", ["_Dying", "dying_later"])
def test_one_rank_is_killed(model: str, processes: int, data: str) -> None:
    """As it reads, or as it would tell what it measured: all end, long before any time is up."""
    start = time.monotonic()
    done = _torchrun(processes, "measure", f"tests.cli.test_torchrun:{model}", "--data", data)
    assert done.returncode != 0
    assert done.stdout == ""
    assert time.monotonic() - start < 60


def test_what_runs_on_one_process_only(data: str) -> None:
    done = _torchrun(2, "compare", "tests.cli.test_torchrun:factory", "--data", data)
    assert done.returncode != 0
    assert done.stderr.count("error: minsharp compare runs on one process: call it without torchrun") == 1
