"""What a command works on: the network, the data, the loss, and the settings to tell about them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ..network.network import Network
from ..network.reader import read
from .output import watched
from .sources import Loaded, load_data, load_loss, load_model


@dataclass(frozen=True)
class Task:
    """A network that has been read, its data, and how to measure it."""

    network: Network
    data: Loaded
    loss: nn.Module
    curvature: Any
    parameters: list[str] | None
    settings: dict[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that every measurement takes."""
        return {"curvature": self.curvature, "parameters": self.parameters, "progress": watched()}


def prepare(
    model: str,
    data: str,
    weights: Path | None,
    loss: str,
    curvature: str,
    parameters: list[str] | None = None,
    *,
    samples: int | None,
    batch_size: int | None,
    data_dir: Path | None,
) -> Task:
    """Load what the options name, and read the network once."""
    module = load_model(model, weights)
    loaded = load_data(data, module, samples, batch_size, data_dir)
    settings = {
        "model": model,
        "weights": None if weights is None else str(weights),
        "data": data,
        "loss": str(loss),
        "curvature": str(curvature),
        "parameters": parameters,
    }
    network = read(module, loaded.inputs)
    return Task(network, loaded, load_loss(str(loss)), str(curvature), parameters or None, settings)
