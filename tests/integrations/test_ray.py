"""Cells on a real Ray cluster: the table of the local executor, also when a node dies, and across executors."""

import csv
import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import minsharp as ms
from minsharp.cli.main import run as cli
from minsharp.experiments import Plan, run
from tests.integrations.sweep import SWEEP, plan

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore")


def _table(out: Path) -> str:
    """results.csv without the columns of times."""
    rows = list(csv.DictReader(io.StringIO((out / "results.csv").read_text())))
    return "\n".join(",".join(v for name, v in row.items() if not name.endswith("seconds")) for row in rows)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without CPUs, and two nodes of one each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield made
    ray.shutdown()
    made.shutdown()


def test_a_node_dies(cluster: Any, tmp_path: Path) -> None:
    from minsharp.integrations.ray import Ray

    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    executor, alive, kept = Ray(), list(nodes), []

    class Murderous(Ray):
        def run(self, job: Any, cells: Any) -> Iterator[Any]:
            for cell in executor.run(job, cells):
                kept.append(cell)
                if len(alive) == 2:  # in the middle: cells are in flight on both
                    cluster.remove_node(alive.pop(), allow_graceful=False)
                yield cell

    planned = plan(seeds=5, slow=0.5)
    run(SWEEP, planned, tmp_path / "ray", executor=Murderous())
    run(SWEEP, planned, tmp_path / "local", workers=1)
    assert len(alive) == 1
    assert len(kept) == 10
    assert _table(tmp_path / "ray") == _table(tmp_path / "local")
    assert (tmp_path / "ray" / "settings.json").read_bytes() == (tmp_path / "local" / "settings.json").read_bytes()


def test_the_two_continue_each_other(tmp_path: Path) -> None:
    """Cells that fail end the run with their reason, and what was done before stays."""
    from minsharp.integrations.ray import Ray

    few, all_cells = plan(seeds=1), plan(seeds=2)
    bad = Plan(all_cells.settings, (*all_cells.cells, {"width": 3, "seed": 99}))
    run(SWEEP, few, tmp_path / "mixed", workers=1)
    with pytest.raises(ms.MinsharpError, match="width-3_seed-99: ZeroDivisionError: seed 99"):
        run(SWEEP, bad, tmp_path / "mixed", executor=Ray())
    assert not ray.is_initialized()
    given = ["--set", "seeds=2", "--executor", "ray", "--out", str(tmp_path / "mixed")]
    assert cli(["reproduce", "run", "tests.integrations.sweep:SWEEP", *given]) == 0
    run(SWEEP, all_cells, tmp_path / "local", workers=1)
    assert _table(tmp_path / "mixed") == _table(tmp_path / "local")


def test_the_head_dies(tmp_path: Path) -> None:
    """What was in flight is lost, and nothing else: the command says so, and another executor goes on."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    out, given = tmp_path / "left", ["--set", "seeds=2", "--set", "slow=3"]
    command = ["reproduce", "run", "tests.integrations.sweep:SWEEP", *given, "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    running = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "minsharp", *command, "--executor", "ray", "--address", made.address],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        while running.poll() is None and not list(out.glob("cells/width*.json")):
            time.sleep(0.1)
        made.head_node.kill_gcs_server(check_alive=False)
        made.head_node.kill_raylet(check_alive=False)
        _, said = running.communicate(timeout=120)
    finally:
        running.kill()
        made.shutdown()
    assert running.returncode != 0
    assert re.search(r"error: the head of the Ray cluster at '.*' is gone: .* [1-3] of 4 cells are done and kept", said)
    assert cli(["reproduce", "run", "tests.integrations.sweep:SWEEP", *given, "--out", str(out), "--workers", "1"]) == 0
    run(SWEEP, plan(seeds=2, slow=3.0), tmp_path / "local", workers=1)
    assert _table(out) == _table(tmp_path / "local")


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "ray://127.0.0.1:1", "auto", "nowhere", "no.such.host.invalid:6379"]
)
def test_no_cluster(address: str, tmp_path: Path) -> None:
    from minsharp.integrations.ray import Ray

    with pytest.raises(ms.InputError, match=rf"a Ray cluster is not to be reached at '{address}': "):
        run(SWEEP, plan(seeds=1), tmp_path / "none", executor=Ray(address))
