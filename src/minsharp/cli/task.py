"""What a command works on: the network, the data, the loss, and the settings to tell about them."""

from dataclasses import dataclass
from typing import Any

from ..curvature.tolerance import checked_tolerance
from ..losses import Criterion
from ..network.network import Network
from ..network.reader import read
from .choices import DataChoice, ModelChoice
from .factories import load_model
from .output import watched
from .sources import Loaded, load_data, load_loss


@dataclass(frozen=True)
class Task:
    """A network that has been read, its data, and how to measure it."""

    network: Network
    data: Loaded
    loss: Criterion | None
    curvature: Any
    parameters: list[str] | None
    settings: dict[str, Any]
    reading: dict[str, Any]
    """How the network was read."""
    estimate: dict[str, Any]
    """The tolerance, and the seed of the draws."""

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that every measurement takes."""
        chosen = {"curvature": self.curvature, "parameters": self.parameters, **self.estimate}
        return {**chosen, "progress": watched()}


def prepare(
    model: ModelChoice,
    data: DataChoice,
    loss: str,
    curvature: str,
    parameters: list[str] | None = None,
    *,
    tolerance: float = 0.0,
    seed: int = 0,
) -> Task:
    """Load what the options name, and read the network once."""
    tolerance = checked_tolerance(tolerance)
    network, loaded = load(model, data)
    estimate = {"tolerance": tolerance, "seed": seed}
    settings = {
        **model.settings,
        **data.settings,
        "loss": str(loss),
        "curvature": str(curvature),
        "parameters": parameters,
        **(estimate if tolerance else {}),
    }
    criterion = load_loss(str(loss))
    return Task(network, loaded, criterion, str(curvature), parameters or None, settings, model.reading, estimate)


def load(model: ModelChoice, data: DataChoice) -> tuple[Network, Loaded]:
    """The network, read on its data."""
    module = load_model(model)
    loaded = load_data(data, module)
    return read(module, loaded.inputs, **model.reading), loaded
