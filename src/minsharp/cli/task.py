"""What a command works on: the network, the data, the loss, and the settings to tell about them."""

from dataclasses import dataclass
from typing import Any

from ..losses import Criterion
from ..network.network import Network
from ..network.reader import read
from .factories import ModelChoice, load_model
from .output import watched
from .sources import DataChoice, Loaded, load_data, load_loss


@dataclass(frozen=True)
class Task:
    """A network that has been read, its data, and how to measure it."""

    network: Network
    data: Loaded
    loss: Criterion
    curvature: Any
    parameters: list[str] | None
    settings: dict[str, Any]
    reading: dict[str, Any]
    """How the network was read."""

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that every measurement takes."""
        return {"curvature": self.curvature, "parameters": self.parameters, "progress": watched()}


def prepare(
    model: ModelChoice, data: DataChoice, loss: str, curvature: str, parameters: list[str] | None = None
) -> Task:
    """Load what the options name, and read the network once."""
    network, loaded = load(model, data)
    settings = {
        **model.settings,
        **data.settings,
        "loss": str(loss),
        "curvature": str(curvature),
        "parameters": parameters,
    }
    return Task(network, loaded, load_loss(str(loss)), str(curvature), parameters or None, settings, model.reading)


def load(model: ModelChoice, data: DataChoice) -> tuple[Network, Loaded]:
    """The network, read on its data."""
    module = load_model(model)
    loaded = load_data(data, module)
    return read(module, loaded.inputs, **model.reading), loaded
