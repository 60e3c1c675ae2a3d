"""An experiment for the tests of clusters: some cells, each of a little work."""

import time
from typing import Any

import torch
from torch import nn

import minsharp as ms
from minsharp.experiments import Columns, Experiment, Plan, Section, Table, grid, register


def plan(seeds: int = 6, slow: float = 0.0) -> Plan:
    return Plan({"slow": slow, "device": "cpu"}, grid(width=[3, 5], seed=range(seeds)))


def work(given: dict[str, Any], data_dir: str | None) -> list[dict[str, Any]]:
    torch.manual_seed(given["seed"])
    model = nn.Sequential(nn.Linear(4, given["width"]), nn.ReLU(), nn.Linear(given["width"], 3))
    start = time.perf_counter()
    time.sleep(given["slow"])
    if given["seed"] == 99:
        raise ZeroDivisionError("seed 99")
    trace = ms.hessian_trace(model, torch.randn(20, 4)).total
    return [{"width": given["width"], "seed": given["seed"], "trace": trace, "seconds": time.perf_counter() - start}]


def tables(results: Any) -> list[Table]:
    return [Table("Rows", ("rows",), ((str(len(results.rows)),),))]


SWEEP = register(
    Experiment("sweep", work, plan, Columns(("width", "seed"), ("trace", "seconds")), tables, Section("Sweep"))
)
