"""How a network bears noise on its weights: the use that sharpness is a proxy for."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..losses import Criterion
from ..network.network import Network
from ..reference.objective import Objective
from ..results.files import Saved
from ..subject.batches import Data
from ..subject.model import Pattern
from ..subject.modes import plain_mode
from ..text import number, plain_table

Noise = Literal["absolute", "relative"]


@dataclass(frozen=True)
class Measured:
    """A mean over trials, with its standard error."""

    mean: float
    standard_error: float

    def __format__(self, spec: str) -> str:
        return f"{self.mean:{spec}} ± {self.standard_error:{spec}}"


@dataclass(frozen=True)
class NoiseLevel:
    """What a network does under one size of noise. Agreement: the share of predictions that stay as they were."""

    sigma: float
    agreement: Measured
    accuracy: Measured | None
    loss: Measured | None


@dataclass(frozen=True, repr=False)
class NoiseRobustness(Saved):
    """Levels of noise, in the order asked for; level zero is the network as it is."""

    noise: Noise
    trials: int
    levels: tuple[NoiseLevel, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json."""

        def plain(m: Measured | None) -> dict[str, float] | None:
            return None if m is None else {"mean": m.mean, "standard_error": m.standard_error}

        rows = [
            {"sigma": v.sigma, "agreement": plain(v.agreement), "accuracy": plain(v.accuracy), "loss": plain(v.loss)}
            for v in self.levels
        ]
        return {"noise": self.noise, "trials": self.trials, "levels": rows}

    def __repr__(self) -> str:
        def cell(m: Measured | None, spec: str) -> str:
            return "-" if m is None else format(m, spec)

        rows = [
            (number(v.sigma), cell(v.accuracy, ".4f"), cell(v.agreement, ".4f"), cell(v.loss, ".4g"))
            for v in self.levels
        ]
        size = "absolute" if self.noise == "absolute" else "relative to each tensor's root mean square"
        head = f"Gaussian noise on the weights, {size}, {self.trials} trials"
        return f"{head}\n{plain_table(('sigma', 'accuracy', 'agreement', 'loss'), rows, text=0)}"


@plain_mode()
def noise_robustness(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    sigmas: Sequence[float] = (0.01, 0.03, 0.1),
    trials: int = 10,
    noise: Noise = "absolute",
    parameters: Pattern = None,
    seed: int = 0,
) -> NoiseRobustness:
    """Accuracy, agreement and loss under Gaussian noise on the weights, over random trials.

    ``noise="absolute"``: every entry moves by sigma times a standard normal. ``noise="relative"``: by sigma times the
    root mean square of its tensor, which no rescaling of whole layers changes. Without targets only the agreement with
    the undisturbed predictions is measured. The same seed draws the same noise for networks of the same shape.

    Without noise nothing changes:

    >>> model = nn.Linear(3, 2)
    >>> result = noise_robustness(model, torch.randn(5, 3), sigmas=[0.0], trials=2)
    >>> result.levels[0].agreement
    Measured(mean=1.0, standard_error=0.0)
    """
    if noise not in ("absolute", "relative"):
        raise InputError(f"noise={noise!r}: expected 'absolute' or 'relative'")
    if trials < 2:
        raise InputError(f"trials={trials}: expected at least 2, for a standard error")
    if not sigmas or not all(sigma >= 0 for sigma in sigmas):
        raise InputError(f"sigmas={sigmas!r}: expected sizes of noise, none negative, as in sigmas=[0.01, 0.1]")
    objective = Objective(model, data, loss, parameters)
    with objective.prepared(), torch.no_grad():
        still = [_predictions(objective, objective.outputs({}, batch)) for batch in objective.batches]
        levels = tuple(_level(objective, still, float(sigma), trials, noise, seed) for sigma in sigmas)
    return NoiseRobustness(noise, trials, levels)


def _predictions(objective: Objective, outputs: Tensor) -> Tensor:
    """The class; for a single output, its side of zero."""
    axis = objective.loss.class_axis
    return outputs.argmax(axis) if outputs.dim() > 1 and outputs.shape[axis] > 1 else outputs > 0


def _level(objective: Objective, still: list[Tensor], sigma: float, trials: int, noise: Noise, seed: int) -> NoiseLevel:
    runs = [_trial(objective, still, sigma, noise, torch.Generator().manual_seed(seed + k)) for k in range(trials)]
    agreement, accuracy, loss = zip(*runs, strict=True)
    return NoiseLevel(sigma, *(_mean(values) for values in (agreement, accuracy, loss)))  # type: ignore[arg-type]


def _mean(values: Sequence[float | None]) -> Measured | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = sum(known) / len(known)
    spread = sum((value - mean) ** 2 for value in known) / (len(known) - 1)
    return Measured(mean, sqrt(spread / len(known)))


def _trial(
    objective: Objective, still: list[Tensor], sigma: float, noise: Noise, generator: torch.Generator
) -> tuple[float, float | None, float | None]:
    """Agreement, accuracy and loss of one disturbed network."""
    moved = {}
    for name, parameter in objective.parameters.items():
        size = (
            sigma
            if noise == "absolute"
            else sigma * float(parameter.square().sum().div(max(parameter.numel(), 1)).sqrt())
        )
        moved[name] = parameter + size * torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(
            parameter
        )
    agree = right = total = count = judged = 0.0
    labelled = False
    for batch, before in zip(objective.batches, still, strict=True):
        outputs = objective.outputs(moved, batch)
        predictions = _predictions(objective, outputs)
        agree += float((predictions == before).sum())
        count += predictions.numel()
        if batch.targets is not None:
            labelled = True
            total += float(objective.loss.total(outputs, batch.targets))
            if batch.targets.shape == predictions.shape:
                labels, counts = objective.loss.judged(batch.targets)
                right += float(((predictions == labels) & counts).sum())
                judged += float(counts.sum())
    accuracy = right / judged if judged else None
    return agree / count, accuracy, total / objective.divisor if labelled else None
