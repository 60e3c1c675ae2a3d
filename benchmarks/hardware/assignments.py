"""Bits for each tensor: what predicts the cost of random assignments, and what the best of them does."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from time import process_time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor, nn

import minsharp as ms
from benchmarks.report import Table
from minsharp.measures.bits import Per, rounding_increase
from minsharp.measures.noise import Noise, quantized
from minsharp.reference.objective import Objective
from minsharp.text import decimals

from . import singly
from .bench import Bench, right, rounded, shown
from .networks import Data
from .rounding import NOISES, SCALE

NAME = "resnet20"
TRIALS = 200
CHOICES = range(3, 9)
FEWEST = (3, 4)  # bits: two sets of assignments
FEW = 200  # images, for the methods that would take too long on all
PROBES = (50, 200)
CELL = 25  # probes
Curvature = Mapping[str, Any]  # a weight for each squared error of rounding, by parameter
Method = Callable[[Bench, nn.Module, Data], tuple[float, Curvature]]  # processor seconds, and what they gave
Costs = Mapping[str, list[float]]  # of each number of bits from CHOICES, by parameter


def drawn(names: list[str], fewest: int) -> list[dict[str, int]]:
    """Bits for each tensor."""
    generator = np.random.default_rng(0)
    return [{n: int(generator.choice(range(fewest, CHOICES[-1] + 1))) for n in names} for _ in range(TRIALS)]


def increases(bench: Bench, fewest: int) -> dict[str, Any]:
    """The tensors, and how much the loss of the images for calibration grows, measured, for each assignment."""

    def work() -> dict[str, Any]:
        model, (x, y) = bench.network(NAME)[0], bench.train(bench.options.calibration)
        data, names = list(zip(x.split(50), y.split(50), strict=True)), list(weights(model))
        (still,) = ms.noise_robustness(model, data, sigmas=[0.0], trials=2).levels
        levels = ms.noise_robustness(model, data, noise="max", bits=drawn(names, fewest)).levels
        assert still.loss is not None
        return {"names": names, "by": [level.loss.mean - still.loss.mean for level in levels if level.loss is not None]}

    return bench.cell(f"assignments/increases-{bench.options.calibration}-from-{fewest}", work)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that get bits."""
    return {n: p.detach().double() for n, p in model.named_parameters() if p.dim() > 1}


def expected(h: Curvature, held: Mapping[str, Tensor]) -> Costs:
    """Half of the curvature times the mean error of rounding, step²/12: what `allocate_bits` adds up."""
    full = {n: torch.as_tensor(h[n], dtype=torch.float64).expand(w.shape) for n, w in held.items()}
    return {n: [rounding_increase(full[n], w, b, "max") for b in CHOICES] for n, w in held.items()}


def actual(h: Curvature, held: Mapping[str, Tensor]) -> Costs:
    """Half of the curvature times the errors that rounding makes."""
    errors = {n: [(w - quantized(w, b, "max")).square() for b in CHOICES] for n, w in held.items()}
    return {n: [float((h[n] * e).sum()) / 2 for e in errors[n]] for n in held}


def costs(bench: Bench, method: str, samples: int) -> dict[str, Any]:
    """What a method says that each number of bits costs a tensor, and its processor seconds."""

    def work() -> dict[str, Any]:
        model = bench.network(NAME)[0]
        measure, of = METHODS[method]
        seconds, h = measure(bench, model, bench.train(samples))
        return {"seconds": seconds, "costs": of(h, weights(model))}

    return bench.cell(f"assignments/{method}-{samples}", work)


def rank(bench: Bench, found: Mapping[str, Any], fewest: int) -> float:
    """Spearman's rank correlation of predictions with what is measured: sums of costs, where nothing else is said."""
    measured = increases(bench, fewest)
    each = drawn(measured["names"], fewest)
    costs = found["costs"]
    summed = [sum(_cost(costs[n], b) for n, b in bits.items()) for bits in each]
    return float(spearmanr(found.get("added", {}).get(str(fewest), summed), measured["by"]).statistic)


def _cost(of: Any, bits: int) -> float:
    """From a list along CHOICES, or by number of bits."""
    return float(of[str(bits)] if isinstance(of, Mapping) else of[CHOICES.index(bits)])


def _diagonal(curvature: Any) -> Method:
    def measured(bench: Bench, model: nn.Module, data: Data) -> tuple[float, Curvature]:
        h = bench.diagonal(NAME, curvature, len(data[0])).by_parameter
        return bench.seconds(NAME, curvature, len(data[0])), h

    return measured


def _fisher(bench: Bench, model: nn.Module, data: Data) -> tuple[float, Curvature]:
    """The mean of squared gradients of the loss, sample by sample."""
    start = process_time()
    sums = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in model.named_parameters()}
    for x, y in zip(*(t.split(1) for t in data), strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        for total, g in zip(sums.values(), gradients, strict=True):
            total += g.double().square() / len(data[0])
    return process_time() - start, sums


def _ones(bench: Bench, model: nn.Module, data: Data) -> tuple[float, Curvature]:
    return 0.0, dict.fromkeys(weights(model), 1.0)


METHODS: dict[str, tuple[Method, Callable[[Curvature, Mapping[str, Tensor]], Costs]]] = {
    "allocate_bits, Hessian": (_diagonal("hessian"), expected),
    "allocate_bits, margin": (_diagonal("margin"), expected),
    "actual errors, Hessian": (_diagonal("hessian"), actual),
    "empirical Fisher": (_fisher, expected),
    "weight error": (_ones, actual),
}


def hutchinson(bench: Bench, probes: int) -> dict[str, Any]:
    """The same for traces from products with random signs for all parameters at once, as HAWQ takes them."""
    parts = [bench.cell(f"assignments/probes-{FEW}-{k}", partial(_probes, bench, k)) for k in range(probes // CELL)]
    by_bits = {n: np.mean([part["costs"][n] for part in parts], axis=0).tolist() for n in parts[0]["costs"]}
    return {"seconds": sum(part["seconds"] for part in parts), "costs": by_bits}


def _probes(bench: Bench, number: int) -> dict[str, Any]:
    model = bench.network(NAME)[0]
    start = process_time()
    objective = Objective(model, bench.train(FEW))
    means = dict.fromkeys(objective.names, 0.0)
    generator = torch.Generator().manual_seed(number)
    with objective.prepared():
        product = objective.hessian_product()
        for _ in range(CELL):
            v = torch.randint(2, objective.vector.shape, generator=generator).to(objective.vector) * 2 - 1
            for name, part in objective.at(v * product(v)).items():
                means[name] += float(part.double().mean()) / CELL
    return {"seconds": process_time() - start, "costs": expected(means, weights(model))}


def rows_of(bench: Bench) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each method that has been measured, and on how many images."""
    many = bench.options.calibration
    for method in METHODS:
        for samples in (FEW, many) if method != "weight error" else (FEW,):
            for found in bench.whole(method, partial(costs, bench, method, samples)):
                yield method, str(samples) if found["seconds"] else "-", found
    for samples in (FEW, many):
        for found in bench.whole(SINGLY, partial(rounded_one_by_one, bench, samples)):
            yield f"{SINGLY}, losses added", str(samples), {k: v for k, v in found.items() if k != "added"}
            yield f"{SINGLY}, outputs added", str(samples), found
    for probes in PROBES:
        for found in bench.whole(f"Hutchinson, {probes} probes", partial(hutchinson, bench, probes)):
            yield f"Hutchinson, {probes} probes", str(FEW), found


SINGLY = "each tensor rounded alone"


def rounded_one_by_one(bench: Bench, samples: int) -> dict[str, Any]:
    """What rounding each tensor alone costs, and what it says of the assignments."""
    sets = {fewest: drawn(increases(bench, fewest)["names"], fewest) for fewest in FEWEST}
    return singly.ranked(bench, NAME, samples, sets)


def rank_table(bench: Bench) -> Table:
    """Each method's correlation and time."""
    many = bench.options.calibration
    sets = [f for f in FEWEST for _ in bench.whole(f"from {f} bits", partial(increases, bench, f))]
    medians = [f"{np.median(increases(bench, fewest)['by']):.2f} from {fewest} bits" for fewest in sets]
    return Table(
        "What ranks bit assignments",
        f"ResNet-20, one scale per tensor, {TRIALS} random assignments of up to 8 bits to its tensors. Half of them "
        f"raise the loss by more than {' and '.join(medians)}. Spearman's rank correlation of the predicted increase "
        f"with that measured on {many} training images; predicted from all of these or the first {FEW}. Seconds "
        "of one thread, for the curvature. *Actual errors* weighs the errors that rounding makes, the others the mean "
        "error step²/12; *weight error* is the plain sum of squared errors. *Each tensor rounded alone* takes no "
        "curvature, but a run of the network for each tensor and number of bits: increases of the loss are added, or "
        "changes of the outputs, and the loss is taken of their sum.",
        ("predicted by", "images", *(f"Spearman, {f} to 8 bits" for f in sets), "seconds"),
        [
            (m, n, *(f"{rank(bench, f, fewest):.3f}" for fewest in sets), decimals(f["seconds"], 1))
            for m, n, f in rows_of(bench)
        ],
    )


def allocations(bench: Bench, noise: Noise, state: str) -> list[dict[str, Any]]:
    """The shares of images that are right with bits allocated, and with the same bits for all."""
    found = []
    x, y = bench.test(NAME)
    data = x[: bench.options.samples_bits], y[: bench.options.samples_bits]
    plain = state == STATES[0]
    model, scales = (bench.network(NAME)[0], {}) if plain else bench.matched(NAME, "hessian", noise)
    diagonal = moved(bench.diagonal(NAME, "hessian"), scales)
    for budget in BUDGETS:
        accuracies = {"uniform": share(right(model, data, rounded(model, budget, noise)))}
        for per, least in ALLOCATED:
            if least < budget:
                options: Any = {"bits": range(least, 9), "budget": float(budget), "noise": noise, "per": per}
                chosen = ms.allocate_bits(model, diagonal, **options)
                accuracies[f"{per} {least}"] = share(right(model, data, rounded(model, dict(chosen.bits), noise)))
        found.append({"budget": budget, **accuracies})
    return found


def share(which: Tensor) -> float:
    """Of those that are right."""
    return float(which.double().mean())


def moved(diagonal: ms.Diagonal, scales: Mapping[str, Any]) -> ms.Diagonal:
    """The diagonal of the rescaled network, by its law: h over the squared factor."""
    sums = {n: h / torch.as_tensor(scales.get(n, 1.0)) ** 2 for n, h in diagonal.sum.sums.items()}
    return replace(diagonal, sum=replace(diagonal.sum, sums=sums))


STATES = ("as it is", "flattest")
BUDGETS = (3, 4, 5)
ALLOCATED: tuple[tuple[Per, int], ...] = (("tensor", 2), ("tensor", 3), ("channel", 2), ("channel", 3))
BITS_OF = {"tensor": "tensors", "channel": "channels"}


def allocation(bench: Bench, noise: Noise, state: str) -> list[dict[str, Any]]:
    """What is known of a network with one kind of scales: the shares at each mean number of bits."""
    key = f"allocations/{allocation_samples(bench)}/{NAME}-{noise}-{state}"
    found: list[dict[str, Any]] = bench.cell(key, partial(allocations, bench, noise, state))
    return found


def allocation_samples(bench: Bench) -> int:
    """How many test images."""
    return min(int(bench.options.samples_bits), bench.samples(NAME))


def allocation_table(bench: Bench) -> Table:
    """Accuracy of allocated and uniform bits."""
    samples = allocation_samples(bench)
    columns = ("uniform", *(f"{per} {least}" for per, least in ALLOCATED))
    rows = [
        (SCALE[noise], state, str(each["budget"]), *(shown(each[c], samples) if c in each else "-" for c in columns))
        for noise, state in product(NOISES, STATES)
        for each in allocation(bench, noise, state)
    ]
    return Table(
        "Allocated bits",
        f"ResNet-20, {samples:,} test images: accuracy in percent with the same bits for all, and with bits that "
        "`allocate_bits` chose for each tensor or each output channel, the same on average, from 2 or from 3 up to 8. "
        "*Flattest*: rescaled first, by `flattest` for the noise that rounding with these scales makes.",
        ("scales", "network", "mean bits", "uniform", *(f"{BITS_OF[per]}, from {least}" for per, least in ALLOCATED)),
        rows,
    )


def rounded_alone(bench: Bench) -> list[dict[str, Any]]:
    """The shares of images that are right with bits by what rounding each tensor alone does to the loss."""
    model, data = bench.network(NAME)[0], tuple(t[: bench.options.samples_bits] for t in bench.test(NAME))
    costs, found = rounded_one_by_one(bench, bench.options.calibration)["costs"], []
    for budget in BUDGETS:
        shares: dict[str, Any] = {"budget": budget}
        for least in LEAST:
            if least < budget:
                bits = singly.allocated(costs, model, least, budget)
                shares[str(least)] = share(right(model, data, rounded(model, bits, "max")))  # type: ignore[arg-type]
        found.append(shares)
    return found


LEAST = (2, 3)


def alone_key(bench: Bench) -> str:
    """Where it is kept."""
    return f"allocations/{allocation_samples(bench)}/{NAME}-singly"


def alone_table(bench: Bench) -> Table:
    """Accuracy of bits that are allocated by measured losses, beside those by curvature."""
    samples = allocation_samples(bench)
    found = bench.cell(alone_key(bench), partial(rounded_alone, bench))
    known = allocation(bench, "max", STATES[0])
    rows = [
        (
            str(each["budget"]),
            shown(curved["uniform"], samples),
            *(shown(of[k], samples) if k in of else "-" for of, prefix in ((curved, "tensor "), (each, ""))
              for k in (f"{prefix}{least}" for least in LEAST)),
        )
        for each, curved in zip(found, known, strict=True)
    ]  # fmt: skip
    return Table(
        "Allocated bits, from rounding each tensor alone",
        f"ResNet-20 as it is, one scale per tensor, {samples:,} test images. The same program as above, its costs the "
        f"increases of the loss on {bench.options.calibration} labelled training images when each tensor alone is "
        "rounded. That is not in the library: it takes a run for each tensor and number of bits.",
        ("mean bits", "uniform", *(f"{by}, from {b}" for by in ("curvature", "rounded alone") for b in LEAST)),
        rows,
    )


def tables(bench: Bench) -> Iterator[Table]:
    """Ranks, and what an allocation is worth."""
    yield rank_table(bench)
    yield allocation_table(bench)
    yield alone_table(bench)
