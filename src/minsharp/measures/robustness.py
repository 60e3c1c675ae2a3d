"""How a network bears noise on its weights: the use that sharpness is a proxy for."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..errors import InputError, NonFiniteError
from ..losses import Criterion
from ..network.network import Network
from ..progress import bar
from ..reference.objective import Objective
from ..results.files import Saved
from ..subject.batches import Data
from ..subject.model import Pattern, parameters_of
from ..subject.modes import plain_mode, seeded
from ..text import count, number, plain_table
from .noise import (
    DEVICES,
    Biases,
    Bits,
    Device,
    KeptBits,
    bits_of,
    checked,
    checked_names,
    checked_size,
    is_noisy,
    is_size,
    levels,
    noise_variances,
    quantized,
)


@dataclass(frozen=True)
class Measured:
    """A mean over trials, with its standard error."""

    mean: float
    standard_error: float

    def __format__(self, spec: str) -> str:
        return f"{self.mean:{spec}} ± {self.standard_error:{spec}}"


@dataclass(frozen=True)
class NoiseLevel:
    """What a network does under one size of noise. Agreement: the share of predictions that stay as they were.

    ``sigma`` is None where each parameter has a number of bits of its own.
    """

    sigma: float | None
    agreement: Measured
    accuracy: Measured | None
    loss: Measured | None
    bits: KeptBits | None = None


@dataclass(frozen=True, repr=False)
class NoiseRobustness(Saved):
    """Levels of noise, in the order asked for; level zero is the network as it is."""

    noise: Device
    trials: int
    levels: tuple[NoiseLevel, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json."""

        def plain(m: Measured | None) -> dict[str, float] | None:
            return None if m is None else {"mean": m.mean, "standard_error": m.standard_error}

        rows = [
            {
                "sigma": v.sigma,
                "bits": v.bits,
                "agreement": plain(v.agreement),
                "accuracy": plain(v.accuracy),
                "loss": plain(v.loss),
            }
            for v in self.levels
        ]
        return {"noise": self.noise, "trials": self.trials, "levels": rows}

    def __repr__(self) -> str:
        def cell(m: Measured | None, spec: str) -> str:
            return "-" if m is None else format(m, spec)

        rows = [(_size(v), cell(v.accuracy, ".4f"), cell(v.agreement, ".4f"), cell(v.loss, ".4g")) for v in self.levels]
        rounded = any(level.bits is not None for level in self.levels)
        made = "Weights rounded to nearest" if rounded else "Gaussian noise on the weights"
        head = f"{made}, {_SIZES[self.noise]}, {count(self.trials)} trial{'s' if self.trials > 1 else ''}"
        columns = ("bits" if rounded else "sigma", "accuracy", "agreement", "loss")
        return f"{head}\n{plain_table(columns, rows, text=0)}"


_SIZES: dict[str, str] = {
    "absolute": "absolute",
    "relative": "relative to each tensor's root mean square",
    "max": "relative to each tensor's largest weight",
    "max-per-channel": "relative to each output channel's largest weight",
    "pcm": "as phase-change memory is programmed",
}


def _size(level: NoiseLevel) -> str:
    return (
        number(level.sigma) if level.bits is None else "mixed" if isinstance(level.bits, Mapping) else str(level.bits)
    )


@plain_mode()
def noise_robustness(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    sigmas: Sequence[float] | None = None,
    bits: Sequence[Bits] | None = None,
    trials: int = 10,
    noise: Device = "absolute",
    biases: Biases | None = None,
    parameters: Pattern = None,
    seed: int = 0,
    progress: bool = False,
) -> NoiseRobustness:
    """Accuracy, agreement and loss under Gaussian noise on the weights, over random trials.

    ``noise="absolute"``: every entry moves by sigma times a standard normal. ``noise="relative"``: by sigma times the
    root mean square of its tensor, which no rescaling of whole layers changes. ``noise="max"``, "max-per-channel": by
    sigma times the largest weight of its tensor, or output channel. ``noise="pcm"``: by sigma times what programming it
    into phase-change memory does (Joshi et al. 2020), so that sigma 1 is the hardware. Unless given, ``sigmas`` are
    that alone for "pcm", and 0.01, 0.03 and 0.1 for the others. With ``bits=[8, 4]`` under "max" or "max-per-channel"
    there is no chance in it: weights are rounded to nearest, symmetrically, with each of these numbers of bits (or, a
    mapping, with one for each parameter, or a list of one for each of its channels). ``biases`` are "noisy" or "exact";
    unless given, exact under all but the first two. `predicted_accuracy` says the same without a draw.

    Without targets only the agreement with the undisturbed predictions is measured. The same seed draws the same noise
    for networks of the same shape. ``progress`` shows a bar.

    Without noise nothing changes:

    >>> model = nn.Linear(3, 2)
    >>> result = noise_robustness(model, torch.randn(5, 3), sigmas=[0.0], trials=2)
    >>> result.levels[0].agreement
    Measured(mean=1.0, standard_error=0.0)
    """
    treated = checked(noise, biases, DEVICES)
    seeded(seed)
    if not isinstance(trials, int) or trials < 2:
        raise InputError(f"trials={trials!r}: expected at least 2, for a standard error")
    strengths = _strengths(noise, sigmas)
    chosen = None if bits is None else _sizes(noise, bits, parameters_of(model))
    objective = Objective(model, data, loss, parameters)
    with objective.prepared(), torch.no_grad():
        still = [_predictions(objective, _finite(objective.outputs({}, batch))) for batch in objective.batches]
        if chosen is not None:
            with bar(f"rounding, {noise}", len(chosen), progress) as advance:
                rounded = (_rounded(objective, still, each, noise, treated) for each in chosen)
                return NoiseRobustness(noise, 1, tuple(_counted(rounded, advance)))
        draw = _Draw(noise, treated, seed)
        with bar(f"noise, {noise}", len(strengths) * trials, progress) as advance:
            found = tuple(_level(objective, still, sigma, trials, draw, advance) for sigma in strengths)
    return NoiseRobustness(noise, trials, found)


def _strengths(noise: Device, sigmas: Any) -> list[float]:
    """The sizes of the noise, in the order given; what the device has, or three small ones, where none are."""
    if sigmas is None:
        return [1.0] if noise == "pcm" else [0.01, 0.03, 0.1]
    plain = sigmas.tolist() if hasattr(sigmas, "tolist") else sigmas
    found = list(plain) if isinstance(plain, Iterable) and not isinstance(plain, str | Mapping) else []
    if not found or not all(is_size(sigma) for sigma in found):
        raise InputError(f"sigmas={sigmas!r}: expected sizes of noise, none negative, as in sigmas=[0.01, 0.1]")
    return list(map(float, found))


def _sizes(noise: Device, bits: Any, parameters: Iterable[str]) -> list[KeptBits]:
    """The bits of each run."""
    runs = list(bits) if isinstance(bits, Iterable) and not isinstance(bits, Mapping | str) else []
    if not runs:
        raise InputError(f"bits={bits!r}: expected numbers of bits in a list, as in bits=[8, 4]")
    found = [checked_size(noise, None, each) for each in runs]
    for each in found:
        checked_names(each, parameters)
    return [each for each in found if each is not None]


def _finite(outputs: Tensor) -> Tensor:
    """The outputs; refuses those that are not numbers."""
    if not bool(torch.isfinite(outputs).all()):
        raise NonFiniteError("the outputs on this data are not finite: a weight, an input or an activation is not")
    return outputs


def _predictions(objective: Objective, outputs: Tensor) -> Tensor:
    """The class; for a single output, its side of zero."""
    axis = objective.loss.class_axis
    return outputs.argmax(axis) if outputs.dim() > 1 and outputs.shape[axis] > 1 else outputs > 0


class _Draw(NamedTuple):
    """How noise is drawn."""

    noise: Device
    biases: Biases
    seed: int

    def __call__(self, weights: Mapping[str, Tensor], sigma: float, trial: int) -> dict[str, Tensor]:
        """The weights with noise on them."""
        generator = seeded(self.seed + trial)
        moved = {}
        for name, N in noise_variances(weights, self.noise, self.biases, sigma, None).items():
            weight = weights[name]
            draw = torch.randn(weight.shape, generator=generator, dtype=torch.float32).to(weight)
            moved[name] = weight + N.sqrt() * draw
        return moved


Run = TypeVar("Run")


def _counted(runs: Iterable[Run], advance: Callable[[int], None]) -> Iterator[Run]:
    """The same, and the bar moves on after each."""
    for run in runs:
        advance(1)
        yield run


def _level(
    objective: Objective, still: list[Tensor], sigma: float, trials: int, draw: _Draw, advance: Callable[[int], None]
) -> NoiseLevel:
    runs = (_trial(objective, still, draw(objective.parameters, sigma, k)) for k in range(trials))
    agreement, accuracy, loss = zip(*_counted(runs, advance), strict=True)
    return NoiseLevel(sigma, *(_mean(values) for values in (agreement, accuracy, loss)))  # type: ignore[arg-type]


def _rounded(objective: Objective, still: list[Tensor], bits: KeptBits, noise: Device, biases: Biases) -> NoiseLevel:
    """The network rounded to so many bits: no chance, and no error. Its sigma is that of noise of the same variance."""
    weights = objective.parameters
    chosen = {name: w for name, w in weights.items() if is_noisy(w.dim(), biases)}
    moved = {name: quantized(w, bits_of(name, w, bits), noise) for name, w in chosen.items()}  # type: ignore[arg-type]
    agreement, accuracy, loss = (None if v is None else Measured(v, 0.0) for v in _trial(objective, still, moved))
    assert agreement is not None
    sigma = 1 / (sqrt(12) * levels(bits)) if isinstance(bits, int) else None
    return NoiseLevel(sigma, agreement, accuracy, loss, bits)


def _mean(values: Sequence[float | None]) -> Measured | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = sum(known) / len(known)
    spread = sum((value - mean) ** 2 for value in known) / (len(known) - 1)
    return Measured(mean, sqrt(spread / len(known)))


def _trial(
    objective: Objective, still: list[Tensor], moved: dict[str, Tensor]
) -> tuple[float, float | None, float | None]:
    """Agreement, accuracy and loss of one disturbed network."""
    agree = right = total = count = judged = 0.0
    labelled, classes = False, True
    for batch, before in zip(objective.batches, still, strict=True):
        outputs = objective.outputs(moved, batch)
        predictions = _predictions(objective, outputs)
        agree += float((predictions == before).sum())
        count += predictions.numel()
        if batch.targets is not None:
            labelled = True
            total += float(objective.loss.total(outputs, batch.targets))
            classes = classes and batch.targets.shape == predictions.shape and objective.loss.judges(batch.targets)
            if classes:
                labels, counts = objective.loss.judged(batch.targets)
                right += float(((predictions == labels) & counts).sum())
                judged += float(counts.sum())
    accuracy = right / judged if classes and judged else None
    return agree / count, accuracy, total / objective.divisor if labelled else None
