"""Bits for each tensor: what predicts the cost of random assignments, and what the best of them does."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from time import process_time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor, nn

import minsharp as ms
from benchmarks.report import Table
from minsharp.measures.bits import rounding_increase
from minsharp.measures.noise import quantized
from minsharp.reference.objective import Objective
from minsharp.text import decimals

from .bench import Bench, right, rounded, shown
from .networks import Data

NAME = "resnet20"
TRIALS = 200
CHOICES = range(3, 9)
FEW = 200  # images, for the methods that would take too long on all
PROBES = (50, 200)
CELL = 25  # probes
Costs = dict[str, float | Tensor]  # a weight for each squared error of rounding, by parameter
Method = Callable[[Bench, nn.Module, Data], tuple[float, Costs]]  # processor seconds, and what they gave


def drawn(names: list[str]) -> list[dict[str, int]]:
    """Bits for each tensor."""
    generator = np.random.default_rng(0)
    return [{n: int(generator.choice(CHOICES)) for n in names} for _ in range(TRIALS)]


def increases(bench: Bench) -> list[float]:
    """How much the loss of the images for calibration grows, measured, for each assignment."""

    def work() -> list[float]:
        model, (x, y) = bench.network(NAME)[0], bench.train(bench.options.calibration)
        data = list(zip(x.split(50), y.split(50), strict=True))
        (still,) = ms.noise_robustness(model, data, sigmas=[0.0], trials=2).levels
        levels = ms.noise_robustness(model, data, noise="max", bits=drawn(list(weights(model)))).levels
        assert still.loss is not None
        return [level.loss.mean - still.loss.mean for level in levels if level.loss is not None]

    return bench.cell(f"assignments/increases-{bench.options.calibration}", work)  # type: ignore[no-any-return]


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that get bits."""
    return {n: p.detach().double() for n, p in model.named_parameters() if p.dim() > 1}


def scores(bench: Bench, method: str, samples: int) -> list[Any]:
    """Spearman's rank correlation of a method's prediction with what is measured, and its processor seconds."""

    def work() -> list[Any]:
        model = bench.network(NAME)[0]
        held = weights(model)
        seconds, h = METHODS[method](bench, model, bench.train(samples))
        if "rounding" in method:
            errors = [{n: (w - quantized(w, b[n], "max")).square() for n, w in held.items()} for b in drawn(list(held))]
            predicted = [sum(float((h[n] * e).sum()) for n, e in each.items()) for each in errors]
        else:
            each_bits = drawn(list(held))
            predicted = [
                sum(rounding_increase(_full(h[n], w), w, b[n], "max") for n, w in held.items()) for b in each_bits
            ]
        return [float(spearmanr(predicted, increases(bench)).statistic), seconds]

    return bench.cell(f"assignments/{method}-{samples}", work)  # type: ignore[no-any-return]


def _full(h: float | Tensor, weight: Tensor) -> Tensor:
    return torch.as_tensor(h, dtype=torch.float64).expand(weight.shape)


def _diagonal(curvature: Any) -> Method:
    def measured(bench: Bench, model: nn.Module, data: Data) -> tuple[float, Costs]:
        h = bench.diagonal(NAME, curvature, len(data[0])).by_parameter
        return bench.seconds(NAME, curvature, len(data[0])), dict(h)

    return measured


def _fisher(bench: Bench, model: nn.Module, data: Data) -> tuple[float, Costs]:
    """The mean of squared gradients of the loss, sample by sample."""
    start = process_time()
    sums = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in model.named_parameters()}
    for x, y in zip(*(t.split(1) for t in data), strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        for total, g in zip(sums.values(), gradients, strict=True):
            total += g.double().square() / len(data[0])
    return process_time() - start, dict(sums)


def _ones(bench: Bench, model: nn.Module, data: Data) -> tuple[float, Costs]:
    return 0.0, dict.fromkeys(weights(model), 1.0)


METHODS: dict[str, Method] = {
    "allocate_bits, Hessian": _diagonal("hessian"),
    "allocate_bits, margin": _diagonal("margin"),
    "rounding errors weighed by the diagonal": _diagonal("hessian"),
    "empirical Fisher": _fisher,
    "weight error of rounding": _ones,
}


def hutchinson(bench: Bench, probes: int) -> list[Any]:
    """The same for traces from products with random signs for all parameters at once, as HAWQ takes them."""
    parts = [bench.cell(f"assignments/probes-{FEW}-{k}", lambda k=k: _probes(bench, k)) for k in range(probes // CELL)]
    held = weights(bench.network(NAME)[0])
    means = {n: float(np.mean([part["means"][n] for part in parts])) for n in held}
    predicted = [
        sum(rounding_increase(_full(means[n], w), w, b[n], "max") for n, w in held.items()) for b in drawn(list(held))
    ]
    return [float(spearmanr(predicted, increases(bench)).statistic), sum(part["seconds"] for part in parts)]


def _probes(bench: Bench, number: int) -> dict[str, Any]:
    model = bench.network(NAME)[0]
    start = process_time()
    objective = Objective(model, bench.train(FEW))
    sums = dict.fromkeys(objective.names, 0.0)
    generator = torch.Generator().manual_seed(number)
    with objective.prepared():
        product = objective.hessian_product()
        for _ in range(CELL):
            v = torch.randint(2, objective.vector.shape, generator=generator).to(objective.vector) * 2 - 1
            for name, part in objective.at(v * product(v)).items():
                sums[name] += float(part.double().mean()) / CELL
    return {"means": sums, "seconds": process_time() - start}


def rank_table(bench: Bench) -> Table:
    """Each method's correlation and time."""
    many = bench.options.calibration
    rows = []
    for method in METHODS:
        for samples in (FEW, many):
            if method == "weight error of rounding" and samples == FEW:
                continue
            rank, seconds = scores(bench, method, samples)
            rows.append((method, str(samples), f"{rank:.3f}", decimals(seconds, 1)))
    for probes in PROBES:
        rank, seconds = hutchinson(bench, probes)
        rows.append((f"Hutchinson traces, {probes} probes", str(FEW), f"{rank:.3f}", decimals(seconds, 1)))
    return Table(
        "What ranks bit assignments",
        f"ResNet-20, {TRIALS} random assignments of {CHOICES[0]} to {CHOICES[-1]} bits to its tensors. Spearman's rank "
        f"correlation of the increase that is predicted with the one that is measured, both of the loss on training "
        f"images: measured on {many}, predicted from as many as the column says. Seconds of one thread, all of them "
        "spent on curvature.",
        ("predicted by", "images", "Spearman", "seconds"),
        rows,
    )


def allocations(bench: Bench) -> list[dict[str, Any]]:
    """The shares of images that are right with bits allocated, and with the same bits for all."""
    found = []
    data = bench.test(NAME)
    for state in STATES:
        model, scales = bench.matched(NAME, "hessian", "max") if state == STATES[1] else (bench.network(NAME)[0], {})
        diagonal = moved(bench.diagonal(NAME, "hessian"), scales)
        for budget in BUDGETS:
            accuracies = {"uniform": share(right(model, data, rounded(model, budget, "max")))}
            for least in LEAST[: budget - 1]:
                chosen = ms.allocate_bits(model, diagonal, bits=range(least, 9), budget=float(budget))
                accuracies[str(least)] = share(right(model, data, rounded(model, dict(chosen.bits), "max")))
            found.append({"network": state, "budget": budget, **accuracies})
    return found


def share(which: Tensor) -> float:
    """Of those that are right."""
    return float(which.double().mean())


def moved(diagonal: ms.Diagonal, scales: Mapping[str, Any]) -> ms.Diagonal:
    """The diagonal of the rescaled network, by its law: h over the squared factor."""
    sums = {n: h / torch.as_tensor(scales.get(n, 1.0)) ** 2 for n, h in diagonal.sum.sums.items()}
    return replace(diagonal, sum=replace(diagonal.sum, sums=sums))


STATES = ("as it is", "flattest for noise 'max'")
BUDGETS = (3, 4, 5)
LEAST = (2, 3)


def allocation_key(bench: Bench) -> str:
    """Where it is kept."""
    return f"allocations/{bench.samples(NAME)}/{NAME}"


def allocation_table(bench: Bench) -> Table:
    """Accuracy of allocated and uniform bits."""
    samples = bench.samples(NAME)
    found = bench.cell(allocation_key(bench), lambda: allocations(bench))
    columns = ("uniform", *map(str, LEAST))
    rows = [
        (each["network"], str(each["budget"]), *(shown(each[c], samples) if c in each else "-" for c in columns))
        for each in found
    ]
    return Table(
        "Allocated bits",
        f"ResNet-20, one scale per tensor, {samples:,} test images: accuracy in percent with the same bits for all, "
        "and with bits that `allocate_bits` chose for the same mean, from 2 or from 3 bits up to 8.",
        ("network", "mean bits", "uniform", *(f"from {b} bits" for b in LEAST)),
        rows,
    )


def tables(bench: Bench) -> Iterator[Table]:
    """Ranks, and what an allocation is worth."""
    yield rank_table(bench)
    yield allocation_table(bench)
