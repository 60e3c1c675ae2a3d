"""What the reports of several commands show: networks under noise, measured and predicted."""

from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from ..errors import MinsharpError
from ..measures.predicted import PredictedAccuracy, predicted_accuracy
from ..measures.robustness import NoiseRobustness, noise_robustness
from ..network.network import Network
from ..network.reader import read
from ..network.rescale import rescale
from ..text import number
from .output import note, watched
from .task import Task

SIZES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Sizes of the noise, relative to the typical weight."""
FINE = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""The same for noise that grows with the largest weight."""


def versions(task: Task, scales: Any) -> dict[str, Network]:
    """The network as it is, and the flattest one."""
    flat = rescale(task.network, scales)
    return {"as it is": task.network, "flattest": read(flat, task.data.inputs, **task.reading)}


def under_noise(task: Task, networks: Mapping[str, Network], kinds: Sequence[str]) -> dict[str, Any]:
    """What draws say of some kinds of noise, and what margins say; absolute sizes are those of the first network."""
    note("testing the networks under noise for the report")
    sizes = {kind: _sizes(task.network, kind) for kind in kinds}
    drawn: Any = {"progress": watched()}
    data, loss = task.data.batches, task.loss
    measured = {
        name: [noise_robustness(network, data, loss, sigmas=s, noise=kind, **drawn) for kind, s in sizes.items()]  # type: ignore[arg-type]
        for name, network in networks.items()
    }
    asked = [{"noise": kind, "sigma": sigma} for kind, s in sizes.items() for sigma in s]
    return {"robustness": measured, "predictions": _predicted(task, networks, asked)}


def rounded(task: Task, networks: Mapping[str, Network], bits: Sequence[Any], kind: str) -> dict[str, Any]:
    """What rounding does, tried and predicted."""
    note("rounding the networks for the report")
    tried: Any = {"bits": bits, "noise": kind, "progress": watched()}
    data, loss = task.data.batches, task.loss
    measured: Mapping[str, NoiseRobustness] = {
        name: noise_robustness(network, data, loss, **tried) for name, network in networks.items()
    }
    asked = [{"noise": kind, "bits": each} for each in bits]
    return {"robustness": measured, "predictions": _predicted(task, networks, asked)}


def _sizes(network: Network, kind: str) -> list[float]:
    if kind in ("max", "max-per-channel"):
        return list(FINE)
    unit = _typical(network) if kind == "absolute" else 1.0
    return [float(number(unit * size, 2)) for size in SIZES]


def _typical(network: Network) -> float:
    """The root mean square of all weights."""
    weights = [p.detach().double() for p in network.parameters.values()]
    return sqrt(sum(float(p.square().sum()) for p in weights) / sum(p.numel() for p in weights))


def _predicted(
    task: Task, networks: Mapping[str, Network], asked: Sequence[Any]
) -> dict[str, list[PredictedAccuracy]] | None:
    """What margins say; nothing where the outputs are no classes."""
    data, loss = task.data.batches, task.loss
    try:
        return {name: [predicted_accuracy(net, data, loss, **one) for one in asked] for name, net in networks.items()}
    except MinsharpError:
        return None


def write(path: Path, task: Task, **sections: Any) -> None:
    """A report on the task's network."""
    from ..report import write_report

    settings = {name: value for name, value in task.settings.items() if value is not None}
    write_report(path, title=f"How sharp is {Path(task.settings['model']).name}?", settings=settings, **sections)
    note(f"wrote {path}")
