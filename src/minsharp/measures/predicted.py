"""Accuracy under noise on the weights without a single draw.

Noise of variance N_e on the weights moves the margin m_i of a prediction, to first order, by a normal number of
variance

    s_i² = sum_e N_e (dm_i/dw_e)²

so the prediction flips with probability P_i = Phi(-m_i / s_i): to the runner-up, for other classes are not looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..curvature.outputs import classes_first, outputs_of
from ..curvature.rows import variance_rows
from ..frozen import Frozen
from ..losses import Criterion, Loss, as_loss
from ..losses.axis import on_axis
from ..losses.margin import Margin, PlainMargin, two_largest
from ..network.network import Network
from ..network.reader import read
from ..results.files import Saved
from ..subject.batches import Data, batches, first_of, held
from ..subject.model import Pattern, counted
from ..subject.modes import plain_mode
from ..subject.outputs import Pick
from ..text import count, number, percent
from .noise import DEVICES, Biases, Bits, Device, KeptBits, checked, checked_names, checked_size, noise_variances


@dataclass(frozen=True, repr=False)
class PredictedAccuracy(Frozen, Saved):
    """The shares of predictions that are right (none without labels), and that stay as they were, under one noise."""

    accuracy: float | None
    agreement: float
    noise: Device
    sigma: float | None
    bits: KeptBits | None
    biases: Biases
    samples: int

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json."""
        return {**vars(self), "bits": dict(self.bits) if isinstance(self.bits, Mapping) else self.bits}

    def __repr__(self) -> str:
        bits = "bits by parameter" if isinstance(self.bits, Mapping) else f"{self.bits} bits"
        size = (
            bits
            if self.bits is not None
            else f"sigma {number(self.sigma)}"
            if self.sigma is not None
            else "as measured"
        )
        what = f"noise {self.noise!r}, {size}, biases {self.biases}, {count(self.samples)} samples"
        return f"Predicted accuracy {percent(self.accuracy)}, agreement {percent(self.agreement)} ({what})"


@plain_mode()
def predicted_accuracy(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    noise: Device = "absolute",
    sigma: float | None = None,
    bits: Bits | None = None,
    biases: Biases | None = None,
    parameters: Pattern = None,
    outputs: Pick = None,
    class_axis: int | None = None,
) -> PredictedAccuracy:
    """The accuracy that noise on the weights leaves, predicted from margins and their derivatives in one backward pass.

    ``noise`` and ``biases`` are those of `minimum_sharpness`, of size ``sigma``, or, for the last two, of a quantizer
    with so many ``bits`` (a number, or one for each parameter by name, or for each of its channels); "pcm" is the
    programming noise of phase-change memory. A prediction flips with probability Phi(-m / s), m its margin and
    s² = sum_e N_e (dm/dw_e)²: what `noise_robustness` measures with random draws. Trust it where few flip; where most
    do, other classes than the runner-up get their share. The ``loss`` only says which labels count: all but those that
    it ignores.

    One weight, told from zero, flips where the noise is larger than the weight and against it:

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> round(predicted_accuracy(model, torch.ones(1, 1), sigma=1.0).agreement, 4)  # Phi(1)
    0.8413
    """
    treated = checked(noise, biases, DEVICES)
    chosen = checked_size(noise, sigma, bits)
    stream = held(data)
    first, _ = first_of(batches(stream))
    network = read(model, first.inputs, outputs=outputs, class_axis=class_axis)
    checked_names(chosen, network.parameters)
    shape = network.graph.values[network.graph.output].shape
    margin = on_axis(PlainMargin(), shape, first.targets, network.class_axis)
    names = counted(network.parameters, parameters)
    weights = {name: network.parameters[name].detach() for name in names}
    variances = noise_variances(weights, noise, treated, sigma, chosen)
    spread = variance_rows(network, stream, margin, variances).sqrt()  # (samples, predictions)
    stays, right = _shares(network, stream, margin, as_loss(loss), spread)
    return PredictedAccuracy(right, stays, noise, sigma, chosen, treated, len(spread))


def _shares(network: Network, data: Data, margin: Loss, loss: Loss, spread: Tensor) -> tuple[float, float | None]:
    """The expected shares of predictions that stay, and that are right."""
    stays = right = judged = 0.0
    labelled, start = True, 0
    for outputs, batch in outputs_of(network, data):
        outputs = classes_first(outputs, margin).cpu().double()  # (n, K, *positions)
        margins = Margin().margins(outputs).reshape(len(outputs), -1)
        s = spread[start : start + len(outputs)]
        start += len(outputs)
        flips = torch.special.ndtr(-margins / s).where(s > 0, torch.zeros(()).double())
        stays += float((1 - flips).sum())
        first, second = _two_largest(outputs)
        targets = None if batch.targets is None else batch.targets.cpu()
        if targets is None or targets.shape != first.shape or not loss.judges(targets):
            labelled = False
            continue
        labels, counts = loss.judged(targets)
        judged += float(counts.sum())
        same, swapped = (((labels == of) & counts).reshape(flips.shape) for of in (first, second))
        right += float((1 - flips)[same].sum() + flips[swapped].sum())
    return stays / spread.numel(), right / judged if labelled and judged else None


def _two_largest(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The class predicted and the runner-up, (n, *positions); of a single output, its side of zero and the other."""
    if outputs.dim() > 1 and outputs.shape[1] > 1:
        return two_largest(outputs)
    side = (outputs > 0).long()
    return side, 1 - side
