"""How long the exact answer takes on this machine: what ``minsharp bench`` does."""

from collections.abc import Callable, Mapping
from math import ceil
from pathlib import Path
from statistics import median, stdev
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..curvature.hessian import hessian_diagonal, hessian_trace
from ..errors import InputError
from ..losses import Criterion, as_loss
from ..losses.axis import on_axis
from ..network.network import Network
from ..network.reader import read
from ..progress import bar
from ..reference.estimators import hutchinson_trace
from ..subject.batches import Batch, batches
from ..text import number
from ..text.terminal import rich_table
from .choices import DataChoice, ModelChoice
from .output import console, note, print_json, watched
from .sources import Loaded, load_loss
from .task import load

PROBES = 30
TARGET = 0.01
BUILT_IN = {"SmallMLP": 1000, "SmallCNN": 200, "LeNet": 50}
"""The paper's networks, untrained, and how many random images they get."""


def timed(
    model: ModelChoice | None, data: DataChoice | None, loss: str, samples: int | None, repeat: int, *, as_json: bool
) -> None:
    """Time every method on every network, and print the medians."""
    criterion = load_loss(loss)
    found = [_timed(name, *work, criterion, repeat) for name, work in _problems(model, data, samples)]
    if as_json:
        print_json({"threads": torch.get_num_threads(), "networks": found})
        return
    columns = ["network", "samples", "trace", "diagonal", "bare backprops", "Hutchinson at 1 %", "probes"]
    rows = [
        [row["network"], str(row["samples"]), *(number(row[key], 3) for key in _TIMES), str(row["hutchinson_probes"])]
        for row in found
    ]
    how = f"median of {repeat}, threads: {torch.get_num_threads()}; Hutchinson foreseen from {PROBES} probes"
    console().print(rich_table(f"Seconds, {how}", columns, rows))


_TIMES = ("trace_seconds", "diagonal_seconds", "backprops_seconds", "hutchinson_seconds")


def _problems(
    model: ModelChoice | None, data: DataChoice | None, samples: int | None
) -> list[tuple[str, tuple[Network, Loaded]]]:
    if model is None:
        return [(name, _built_in(name, samples or count)) for name, count in BUILT_IN.items()]
    if data is None:
        raise InputError(f"what data does {model.name} take? minsharp bench {model.name} --data digits")
    return [(Path(model.name).name, load(model, data))]


def _built_in(name: str, count: int) -> tuple[Network, Loaded]:
    from ..models import build

    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = build(name)
        inputs, targets = torch.randn(count, 1, 28, 28), torch.randint(10, (count,))
    return read(module, inputs), Loaded(inputs, targets, (inputs, targets))


def _timed(name: str, network: Network, data: Loaded, criterion: Criterion | None, repeat: int) -> dict[str, Any]:
    """Each method in turn in every round, so that whatever else the machine does hits all alike."""
    if not watched():
        note(f"timing {name}")
    exact = all(network.exactness[n] for n, p in network.parameters.items() if p.requires_grad)
    kind = "hessian" if exact else "ggn"
    # more samples at a time are not always faster
    size = min((100, 1000), key=lambda n: _clock(lambda: _backprops(network, data, criterion, n)))
    methods: dict[str, Callable[[], object]] = {
        "trace_seconds": lambda: hessian_trace(network, data.batches, criterion, curvature=kind),  # type: ignore[arg-type]
        "diagonal_seconds": lambda: hessian_diagonal(network, data.batches, criterion, curvature=kind),  # type: ignore[arg-type]
        "backprops_seconds": lambda: _backprops(network, data, criterion, size),
    }
    rounds = _rounds(name, methods, repeat)[1:]  # the first one warms up
    row: dict[str, Any] = {"network": name, "samples": sum(map(len, batches(data.batches))), "curvature": kind}
    row |= {key: median(times[key] for times in rounds) for key in methods}
    total = hessian_trace(network, data.batches, criterion, curvature="ggn").total
    return {**row, **_hutchinson(network, data, criterion, total)}


def _rounds(name: str, methods: Mapping[str, Callable[[], object]], repeat: int) -> list[dict[str, float]]:
    """The seconds of each method in each round, and in one before them."""
    rounds = []
    with bar(f"timing {name}", (1 + repeat) * len(methods), watched(), idle=True) as advance:
        for _ in range(1 + repeat):
            times = {}
            for key, method in methods.items():
                times[key] = _clock(method)
                advance(1)
            rounds.append(times)
    return rounds


def _clock(method: Callable[[], object]) -> float:
    start = perf_counter()
    method()
    return perf_counter() - start


def _backprops(network: Network, data: Loaded, criterion: Criterion | None, size: int) -> None:
    """A forward pass, and each column of the loss's factor pulled back to where parameters enter; nothing else."""
    shape, held = network.graph.values[network.graph.output].shape, set(network.parameters)
    loss = on_axis(as_loss(criterion), shape, data.targets, network.class_axis)
    uses = [op for op in network.graph.operations if any(name in held for _, name in op.reads)]
    where = [name for op in uses for name in op.outputs]
    for batch in batches(data.batches):
        for part in _parts(batch, size):
            values = network.state()
            values |= {name: values[name].clone().requires_grad_() for name in network.parameters}
            values = network.graph.run({**values, **network.bind(part.inputs)})
            outputs: Tensor = values[network.graph.output]
            columns = loss.columns(outputs.detach(), part.targets)
            ends = [values[name] for name in where]
            for k in range(columns.rank):
                column = columns.slice(k, k + 1).squeeze(1).to(outputs)
                torch.autograd.grad(outputs, ends, column, retain_graph=True, allow_unused=True)


def _parts(batch: Batch, size: int) -> list[Batch]:
    return [batch.part(i, i + size) for i in range(0, len(batch), size)]


def _hutchinson(network: Network, data: Loaded, criterion: Criterion | None, total: float) -> dict[str, Any]:
    """Seconds to a standard error of 1 % of the trace, from the spread and the time of a few probes."""
    if data.targets is None:
        return {"hutchinson_probes": None, "hutchinson_seconds": None}
    start = perf_counter()
    estimate = hutchinson_trace(network, data.batches, criterion, probes=PROBES)
    each = (perf_counter() - start) / PROBES
    probes = max(ceil((stdev(estimate.probes) / total / TARGET) ** 2), 1) if total > 0 else None
    return {"hutchinson_probes": probes, "hutchinson_seconds": None if probes is None else probes * each}
