"""ASAM of normalized logits: adaptive sharpness that the size of the logits does not change either."""

from torch import Tensor, nn

from ..losses import Criterion
from ..network.network import Network
from ..reference.objective import Objective, Parameters
from ..subject.batches import Batch, Data
from ..subject.model import Pattern
from ..subject.modes import plain_mode
from .sam import adaptive_ball
from .score import Score


@plain_mode()
def normalized_logits_sharpness(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    rho: float = 0.5,
    steps: int = 20,
    average: bool = False,
    samples: int = 20,
    parameters: Pattern = None,
    seed: int = 0,
) -> Score:
    """`asam_sharpness` of the network whose logits are divided by their standard deviation over the classes.

        o_k / sqrt(1/K sum_j (o_j - mean o)²)          (Andriushchenko et al. 2023, with the ball of Kwon et al. 2021)

    for each sample, and each position, by itself: a network that is sure of what it says has no smaller loss than one
    that says the same in a low voice. Needs targets, and two classes or more. So normalized the loss is bounded, and
    one step of ascent often falls: ``steps`` is 20, as there.

    Ten times the logits are as sharp:

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Linear(3, 4, bias=False).double()
    >>> data = (torch.randn(8, 3).double(), torch.arange(8) % 4)
    >>> before = normalized_logits_sharpness(model, data).value
    >>> _ = model.weight.data.mul_(10)
    >>> abs(normalized_logits_sharpness(model, data).value / before - 1) < 1e-9
    True
    """
    ball = adaptive_ball(_Normalized(model, data, loss, parameters), rho, steps, samples, seed)
    name = "normalized_logits_sharpness"
    return ball.average(name) if average else ball.worst(name)


class _Normalized(Objective):
    """The criterion of the normalized logits."""

    def outputs(self, parameters: Parameters, batch: Batch) -> Tensor:
        """The logits over their standard deviation along the classes."""
        logits = super().outputs(parameters, batch)
        return logits / logits.std(self.loss.class_axis, correction=0, keepdim=True)
