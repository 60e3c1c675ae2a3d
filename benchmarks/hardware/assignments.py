"""Bits for each tensor: what predicts the cost of random assignments, and what the best of them does."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from time import process_time
from typing import Any, get_args

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor, nn

import minsharp as ms
from benchmarks.report import Table
from minsharp.measures.bits import allocated
from minsharp.measures.noise import Noise, quantized
from minsharp.measures.prices import Asked, Per, Prices, prices, rounding_increase
from minsharp.measures.prices import Costs as Made
from minsharp.reference.objective import Objective
from minsharp.text import decimals

from .bench import Bench, right, rounded, shown
from .networks import Data
from .rounding import NOISES, SCALE

NAME = "resnet20"
TRIALS = 200
CHOICES = range(3, 9)
FROM_TWO = range(2, 9)
WANTED = 0.9  # of Spearman's correlation
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
    """Spearman's rank correlation of sums of costs with what is measured."""
    measured = increases(bench, fewest)
    each = drawn(measured["names"], fewest)
    costs: Costs = found["costs"]
    summed = [sum(costs[n][CHOICES.index(b)] for n, b in bits.items()) for bits in each]
    return float(spearmanr(summed, measured["by"]).statistic)


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
    for samples, by in product((FEW, many), ("measured", "both")):
        for found in bench.whole(f"costs='{by}'", partial(OF_LIBRARY[by], bench, samples)):
            yield f"allocate_bits, {by}", str(samples), found
    for probes in PROBES:
        for found in bench.whole(f"Hutchinson, {probes} probes", partial(hutchinson, bench, probes)):
            yield f"Hutchinson, {probes} probes", str(FEW), found


def alone(bench: Bench, samples: int, noise: Noise = "max", state: str = "as it is") -> dict[str, Any]:
    """What rounding each tensor alone costs, from 2 bits on, as `allocate_bits` measures it; and processor seconds."""

    def work() -> dict[str, Any]:
        model, data = network(bench, noise, state)[0], bench.train(samples)
        start = process_time()
        found = prices(model, data, None, Asked(FROM_TWO, noise, "tensor", "measured", "hessian"))
        return {"seconds": process_time() - start, "costs": {n: c[0].tolist() for n, c in found.costs.items()}}

    found: dict[str, Any] = bench.cell(f"assignments/alone-{samples}-{noise}-{state}", work)
    return found


def measured_costs(bench: Bench, samples: int) -> dict[str, Any]:
    """costs="measured", along CHOICES."""
    found = alone(bench, samples)
    return {**found, "costs": {n: c[-len(CHOICES) :] for n, c in found["costs"].items()}}


def both_costs(bench: Bench, samples: int) -> dict[str, Any]:
    """costs="both": the sum of the two."""
    curved, tried = costs(bench, CURVED, samples), measured_costs(bench, samples)
    summed = {n: [a + b for a, b in zip(c, tried["costs"][n], strict=True)] for n, c in curved["costs"].items()}
    return {"seconds": curved["seconds"] + tried["seconds"], "costs": summed}


CURVED = "allocate_bits, Hessian"
OF_LIBRARY: dict[str, Callable[[Bench, int], dict[str, Any]]] = {
    "curvature": lambda bench, samples: costs(bench, CURVED, samples),
    "measured": measured_costs,
    "both": both_costs,
}


def wanted(bench: Bench) -> str:
    """Whether the predicted increase ranks as it should."""
    told = []
    for by, of in OF_LIBRARY.items():
        found = of(bench, bench.options.calibration)
        ranks = {f: rank(bench, found, f) for f in FEWEST}
        met = "met" if min(ranks.values()) >= WANTED else "missed" if max(ranks.values()) < WANTED else "met on one set"
        told.append(f'costs="{by}" has {", ".join(f"{r:.3f} from {f} bits" for f, r in ranks.items())} ({met})')
    return f"Wanted: {WANTED} at least. {'; '.join(told)}."


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
        "error step²/12; *weight error* is the plain sum of squared errors. *Measured* takes no curvature, but a run "
        "of the network for each tensor and number of bits (here 2 to 8), that tensor alone rounded: increases are "
        "added up. "
        f"*Both* adds to that the curvature of the Hessian.\n\n{''.join(bench.whole('ranks', partial(wanted, bench)))}",
        ("predicted by", "images", *(f"Spearman, {f} to 8 bits" for f in sets), "seconds"),
        [
            (m, n, *(f"{rank(bench, f, fewest):.3f}" for fewest in sets), decimals(f["seconds"], 1))
            for m, n, f in rows_of(bench)
        ],
    )


def network(bench: Bench, noise: Noise, state: str) -> tuple[nn.Module, ms.Diagonal]:
    """The network as it is, or the flattest for a noise; and its curvature."""
    diagonal = bench.diagonal(NAME, "hessian")
    if state == STATES[0]:
        return bench.network(NAME)[0], diagonal
    model, scales = bench.matched(NAME, "hessian", noise)
    return model, moved(diagonal, scales)


def priced(bench: Bench, noise: Noise, state: str, per: Per, by: Made) -> Prices:
    """What 2 to 8 bits cost each tensor or channel."""
    model, diagonal = network(bench, noise, state)
    curved = prices(model, diagonal, None, Asked(FROM_TWO, noise, per, None, "hessian"))
    if by == "curvature":
        return curved
    tried = alone(bench, bench.options.calibration, noise, state)["costs"]
    rises = {n: torch.tensor([tried[n]], dtype=torch.float64) for n in curved.costs}
    made = rises if by == "measured" else {n: c + rises[n] for n, c in curved.costs.items()}
    return replace(curved, costs=made, by=by)


def allocations(bench: Bench, noise: Noise, state: str) -> list[dict[str, Any]]:
    """The shares of images that are right with bits allocated, and with the same bits for all."""
    found: list[dict[str, Any]] = []
    x, y = bench.test(NAME)
    data = x[: bench.options.samples_bits], y[: bench.options.samples_bits]
    model = network(bench, noise, state)[0]
    columns = [*ALLOCATED, *(MADE_OF if (noise, state) == ("max", STATES[0]) else ())]
    known = {(per, by): priced(bench, noise, state, per, by) for per, by, _ in columns}
    for budget in BUDGETS:
        accuracies = {"uniform": share(right(model, data, rounded(model, budget, noise)))}
        for per, by, choices in dict.fromkeys(columns):
            if SETS[choices][0] < budget:
                bits = allocated(narrowed(known[per, by], SETS[choices]), float(budget)).bits
                accuracies[key(per, by, choices)] = share(right(model, data, rounded(model, dict(bits), noise)))
        found.append({"budget": budget, **accuracies})
    return found


def narrowed(of: Prices, choices: Sequence[int]) -> Prices:
    """With fewer numbers of bits to choose from."""
    places = [of.choices.index(b) for b in choices]
    return replace(of, choices=list(choices), costs={n: c[:, places] for n, c in of.costs.items()})


def key(per: str, by: str, choices: str) -> str:
    """What a column is called in a cell."""
    return f"{per}, {by}, {choices}"


def share(which: Tensor) -> float:
    """Of those that are right."""
    return float(which.double().mean())


def moved(diagonal: ms.Diagonal, scales: Mapping[str, Any]) -> ms.Diagonal:
    """The diagonal of the rescaled network, by its law: h over the squared factor."""
    sums = {n: h / torch.as_tensor(scales.get(n, 1.0)) ** 2 for n, h in diagonal.sum.sums.items()}
    return replace(diagonal, sum=replace(diagonal.sum, sums=sums))


STATES = ("as it is", "flattest")
BUDGETS = (3, 4, 5)
SETS: dict[str, Sequence[int]] = {"2 to 8": FROM_TWO, "3 to 8": CHOICES, "2, 3, 4, 8": (2, 3, 4, 8)}
ALLOCATED: tuple[tuple[Per, Made, str], ...] = (
    ("tensor", "curvature", "2 to 8"),
    ("tensor", "curvature", "3 to 8"),
    ("tensor", "both", "2 to 8"),
    ("tensor", "both", "3 to 8"),
    ("channel", "curvature", "2 to 8"),
    ("channel", "curvature", "3 to 8"),
)
MADE_OF: tuple[tuple[Per, Made, str], ...] = tuple(("tensor", by, choices) for by in get_args(Made) for choices in SETS)
BITS_OF = {"tensor": "tensors", "channel": "channels"}


def allocation(bench: Bench, noise: Noise, state: str) -> list[dict[str, Any]]:
    """What is known of a network with one kind of scales: the shares at each mean number of bits."""
    place = f"allocations/{allocation_samples(bench)}/{NAME}-{noise}-{state}"
    found: list[dict[str, Any]] = bench.cell(place, partial(allocations, bench, noise, state))
    return found


def allocation_samples(bench: Bench) -> int:
    """How many test images."""
    return min(int(bench.options.samples_bits), bench.samples(NAME))


def allocation_table(bench: Bench) -> Table:
    """Accuracy of allocated and uniform bits."""
    keys = ("uniform", *(key(*column) for column in ALLOCATED))
    rows = [
        (SCALE[noise], state, str(each["budget"]), *_shares(bench, each, keys))
        for noise, state in product(NOISES, STATES)
        for each in allocation(bench, noise, state)
    ]
    return Table(
        "Allocated bits",
        f"ResNet-20, {allocation_samples(bench):,} test images: accuracy in percent with the same bits for all, and "
        "with bits that `allocate_bits` chose for each tensor or each output channel, the same on average, from 2 or "
        "from 3 up to 8. *Flattest*: rescaled first, by `flattest` for the noise that rounding with these scales "
        'makes. The costs of bits are by curvature alone, or by "both", for which labels are needed.',
        ("scales", "network", "mean bits", "uniform", *(f"{BITS_OF[p]}, {by}, {c}" for p, by, c in ALLOCATED)),
        rows,
    )


def _shares(bench: Bench, each: Mapping[str, float], keys: Sequence[str]) -> list[str]:
    return [shown(each[k], allocation_samples(bench)) if k in each else "-" for k in keys]


def made_table(bench: Bench) -> Table:
    """Accuracy by what the costs are made of."""
    found = allocation(bench, "max", STATES[0])
    return Table(
        "Allocated bits, by what their costs are made of",
        f"ResNet-20 as it is, one scale per tensor, {allocation_samples(bench):,} test images: bits for tensors from "
        "three sets of choices, the last of them the one that `allocate_bits` has if nothing is said. Costs by "
        f"curvature on {bench.options.calibration} training images, measured on the same with each tensor rounded "
        "alone, or both.",
        ("mean bits", "uniform", *(f"{by}, {choices}" for _, by, choices in MADE_OF)),
        [(str(each["budget"]), *_shares(bench, each, ("uniform", *(key(*c) for c in MADE_OF)))) for each in found],
    )


def tables(bench: Bench) -> Iterator[Table]:
    """Ranks, and what an allocation is worth."""
    yield rank_table(bench)
    yield allocation_table(bench)
    yield made_table(bench)
