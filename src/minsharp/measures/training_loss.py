"""The training loss itself: the confounder that every table of sharpness has to show."""

from torch import nn

from ..losses import Criterion
from ..network.network import Network
from ..reference.objective import Objective
from ..subject.batches import Data
from ..subject.modes import plain_mode
from .score import Score


@plain_mode()
def training_loss(model: nn.Module | Network, data: Data, loss: Criterion | None = None) -> Score:
    """The criterion over all the data, in eval mode, ``reduction`` included. Needs targets.

    No measure of sharpness by itself, but near an interpolating minimum most of them shrink with it.

    A layer with zero weights gives every one of K classes the probability 1/K, so the loss is log K:

    >>> import torch
    >>> model = nn.Linear(3, 4, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> training_loss(model, (torch.ones(5, 3), torch.tensor([0, 1, 2, 3, 0])))
    training_loss 1.38629 (samples 5)
    """
    objective = Objective(model, data, loss, "*")
    with objective.prepared():
        return Score("training_loss", objective.value_here(), details={"samples": objective.samples})
