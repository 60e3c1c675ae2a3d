"""Real networks on noisy hardware: certificates, rounding, predictions, bit assignments, pruning.

    python -m benchmarks.hardware --resnet20 resnet20.safetensors --resnet56 resnet56.safetensors \
        --train train.npz --test test.npz --out results/hardware

The weights are those of akamaster/pytorch_resnet_cifar10 (resnet20 and resnet56, as safetensors), the data CIFAR-10 as
npz files with x, uint8 (n, 3, 32, 32), and y. Each cell is written once it is done; the same command goes on where it
stopped, and prints all tables of what is there. --samples takes the first images of the test set only.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import sqrt
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from scipy.stats import spearmanr
from torch import Tensor, nn

import minsharp as ms
from minsharp.files import write_text
from minsharp.measures.bits import rounding_increase
from minsharp.measures.noise import quantized
from minsharp.reference.objective import Objective
from minsharp.text import decimals, magnitude, markdown_table, number

from .equalise import equalised, largest, norm

BITS = (8, 6, 5, 4, 3)
NOISES = ("max", "max-per-channel")
Pairs = list[tuple[str, str]]
Data = tuple[Tensor, Tensor]


class Block(nn.Module):
    """conv-bn-relu-conv-bn and a shortcut that takes every second pixel and pads channels with zeros."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.pad = (out - into) // 2

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.pad:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(y + x)


class ResNet(nn.Module):
    """The ResNets of He et al. for CIFAR-10: 6 n + 2 layers."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(*(Block(into if i == 0 else out, out, stride if i == 0 else 1) for i in range(blocks)))
            for into, out, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        )
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(x.mean((2, 3)))


def resnet(blocks: int, weights: Path) -> tuple[nn.Module, Pairs]:
    """A public network with its BatchNorms folded, and the pairs of layers with only a ReLU between them."""
    model = ResNet(blocks)
    model.load_state_dict(load_file(weights))
    places = [f"layer{k}.{i}" for k in (1, 2, 3) for i in range(blocks)]
    return ms.fold_batchnorm(model.eval()), [(f"{p}.conv1", f"{p}.conv2") for p in places]


def depthwise(train: Data) -> tuple[nn.Module, Pairs]:
    """A small network of depthwise and pointwise convolutions, trained here."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()]
    for into, out, stride in ((16, 32, 1), (32, 64, 2), (64, 64, 1)):
        layers += [nn.Conv2d(into, into, 3, stride, 1, groups=into), nn.BatchNorm2d(into), nn.ReLU()]
        layers += [nn.Conv2d(into, out, 1), nn.BatchNorm2d(out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    x, y = train
    for _ in range(15):
        for part in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
    places = [str(i) for i, layer in enumerate(layers) if isinstance(layer, nn.Conv2d)]
    return ms.fold_batchnorm(model.eval()), list(pairwise(places))


def images(path: Path, samples: int | None = None) -> Data:
    """Images as the public networks take them, and labels."""
    held = np.load(path)
    x, y = torch.from_numpy(held["x"][:samples]).float() / 255, torch.from_numpy(held["y"][:samples])
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return (x - mean) / deviation, y


class Bench:
    """The networks, the data, and a folder with what has been measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out: Path = options.out / f"calibration-{options.calibration}"
        self.samples: int = options.samples
        self.train, self.test = images(options.train), images(options.test, options.samples)
        self._networks: dict[str, tuple[nn.Module, Pairs]] = {}
        self._diagonals: dict[tuple[str, str], ms.Diagonal] = {}

    @property
    def names(self) -> list[str]:
        given = [name for name in ("resnet20", "resnet56") if getattr(self.options, name) is not None]
        return [name for name in [*given, "depthwise"] if name in self.options.networks]

    def network(self, name: str) -> tuple[nn.Module, Pairs]:
        if name not in self._networks:
            blocks = {"resnet20": 3, "resnet56": 9}.get(name)
            made = depthwise(self.train) if blocks is None else resnet(blocks, getattr(self.options, name))
            self._networks[name] = made
        return self._networks[name]

    def diagonal(self, name: str, curvature: Any) -> ms.Diagonal:
        if (name, curvature) not in self._diagonals:
            data = tuple(t[: self.options.calibration] for t in self.train)
            self._diagonals[name, curvature] = ms.hessian_diagonal(self.network(name)[0], data, curvature=curvature)
        return self._diagonals[name, curvature]

    def variant(self, name: str, variant: str, noise: Any) -> nn.Module:
        """An equivalent network."""
        model, pairs = self.network(name)
        if variant == "original":
            return model
        if variant in ("cross-layer", "equal norms"):
            return equalised(model, pairs, largest if variant == "cross-layer" else norm)
        matched: Any = "absolute" if variant == "flattest" else noise
        curvature = "margin" if variant == "matched, margin" else "hessian"
        return ms.flattest(model, self.diagonal(name, curvature), noise=matched)

    def cell(self, key: str, work: Callable[[], Any]) -> Any:
        """What is known of a cell, measured now if it is not yet."""
        path = self.out / f"{key}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            start = perf_counter()
            found = work()
            write_text(path, json.dumps(found) + "\n")
            print(f"{key}: {perf_counter() - start:.1f} s", flush=True)
        return json.loads(path.read_text())


VARIANTS = ("original", "flattest", "cross-layer", "equal norms", "matched, Hessian", "matched, margin")


def certificates(bench: Bench) -> Iterator[list[str]]:
    """Gap and time of the program, once the diagonal is known."""
    for name in bench.names:
        for curvature in ("hessian", "margin"):
            for noise in ("relative", *NOISES):

                def work(name: str = name, curvature: str = curvature, noise: Any = noise) -> Any:
                    model, diagonal = bench.network(name)[0], bench.diagonal(name, curvature)
                    ms.minimum_sharpness(model, diagonal, scope="neuron")  # reads, and finds the group
                    start = perf_counter()
                    result = ms.minimum_sharpness(model, diagonal, scope="neuron", noise=noise)
                    gap = 1 - result.lower_bound / result.value
                    return {"before": result.trace, "after": result.value, "gap": gap, "s": perf_counter() - start}

                found = bench.cell(f"certificate/{name}-{curvature}-{noise}", work)
                numbers = [number(found["before"], 4), number(found["after"], 4), magnitude(found["gap"])]
                yield [name, curvature, noise, *numbers, decimals(found["s"])]


def roundings(bench: Bench, name: str, noise: str) -> Iterator[list[str]]:
    """Images of the test set that are right, rounded to each number of bits."""
    for variant in VARIANTS:

        def work(variant: str = variant) -> Any:
            model = bench.variant(name, variant, noise)
            result = ms.noise_robustness(model, bench.test, noise=noise, bits=BITS)  # type: ignore[arg-type]
            return [level.accuracy.mean for level in result.levels if level.accuracy is not None]

        found = bench.cell(
            f"rounding/{bench.samples}/{name}-{noise}-{variant.replace(', ', '-').replace(' ', '-')}", work
        )
        yield [variant, *(_percent(a, bench.samples) for a in found)]


def _percent(accuracy: float, samples: int) -> str:
    error = sqrt(accuracy * (1 - accuracy) / samples)
    return f"{100 * accuracy:.2f} ± {100 * error:.2f}"


SIZES: dict[str, Any] = {
    "absolute": ("sigma", (0.003, 0.01, 0.02, 0.03)),
    "relative": ("sigma", (0.05, 0.1, 0.2, 0.3)),
    "max": ("bits", (6, 5, 4, 3)),
    "max-per-channel": ("bits", (6, 5, 4, 3)),
}


def predictions(bench: Bench) -> Iterator[list[str]]:
    """Predicted accuracy beside the measured one."""
    for name in bench.names:
        for noise, (kind, sizes) in SIZES.items():
            for size in sizes:

                def work(name: str = name, noise: Any = noise, kind: str = kind, size: Any = size) -> Any:
                    model = bench.network(name)[0]
                    predicted = ms.predicted_accuracy(model, bench.test, noise=noise, **{kind: size})
                    sizes: Any = {f"{kind}s" if kind == "sigma" else kind: [size]}
                    (level,) = ms.noise_robustness(model, bench.test, noise=noise, trials=5, **sizes).levels
                    assert level.accuracy is not None
                    return [predicted.accuracy, level.accuracy.mean, level.accuracy.standard_error]

                predicted, measured, error = bench.cell(f"predicted/{bench.samples}/{name}-{noise}-{size}", work)
                shown = [f"{100 * v:.2f}" for v in (predicted, measured, error)]
                yield [name, noise, f"{size} bits" if kind == "bits" else f"sigma {size}", *shown]


def assignments(bench: Bench, name: str = "resnet20", trials: int = 200) -> Any:
    """Random bits for each tensor: measured increase of the loss, and what the rivals predict of it."""
    model = bench.network(name)[0]
    weights = {n: p.detach().double() for n, p in model.named_parameters() if p.dim() > 1}
    data = tuple(t[: bench.options.calibration] for t in bench.train)
    generator = np.random.default_rng(0)
    drawn = [{n: int(generator.integers(3, 9)) for n in weights} for _ in range(trials)]
    levels = ms.noise_robustness(model, data, noise="max", bits=drawn).levels
    (still,) = ms.noise_robustness(model, data, sigmas=[0.0], trials=2).levels
    assert still.loss is not None
    increases = [level.loss.mean - still.loss.mean for level in levels if level.loss is not None]
    errors = [{n: (w - quantized(w, bits[n], "max")).square() for n, w in weights.items()} for bits in drawn]
    found: dict[str, Any] = {}
    for curvature in ("hessian", "margin"):
        h = bench.diagonal(name, curvature).by_parameter
        sums = [sum(rounding_increase(h[n], w, bits[n], "max") for n, w in weights.items()) for bits in drawn]
        found[f"allocate_bits, {curvature}"] = [float(spearmanr(sums, increases).statistic), None]
    for rival, (seconds, h) in _rivals(bench, model, data, name).items():
        scores = [sum(float((h[n] * e).sum()) for n, e in each.items()) for each in errors]
        found[rival] = [float(spearmanr(scores, increases).statistic), seconds]
    return found


def _rivals(bench: Bench, model: nn.Module, data: Any, name: str) -> dict[str, tuple[float, dict[str, Any]]]:
    """By name, the seconds that it takes and a weight for every squared error."""
    found: dict[str, tuple[float, dict[str, Any]]] = {}
    for curvature in ("hessian", "margin"):
        start = perf_counter()
        h = dict(ms.hessian_diagonal(model, data, curvature=curvature).by_parameter)
        found[f"diagonal, {curvature}"] = perf_counter() - start, h
    exact = found["diagonal, hessian"][1]
    found["exact trace"] = found["diagonal, hessian"][0], {n: float(v.mean()) for n, v in exact.items()}
    for probes in bench.options.probes:
        start = perf_counter()
        means = _hutchinson(model, data, probes)
        found[f"Hutchinson, {probes}"] = perf_counter() - start, means
    start = perf_counter()
    fisher = _fisher(model, data)
    found["empirical Fisher"] = perf_counter() - start, fisher
    found["weight error"] = 0.0, dict.fromkeys(exact, 1.0)
    return found


def _hutchinson(model: nn.Module, data: Any, probes: int) -> dict[str, float]:
    """Each tensor's trace over its size, by Hessian-vector products with random signs for all parameters at once."""
    objective = Objective(model, data)
    sums = dict.fromkeys(objective.names, 0.0)
    generator = torch.Generator().manual_seed(0)
    with objective.prepared():
        product = objective.hessian_product()
        for _ in range(probes):
            v = torch.randint(2, objective.vector.shape, generator=generator).to(objective.vector) * 2 - 1
            for name, part in objective.at(v * product(v)).items():
                sums[name] += float(part.double().mean()) / probes
    return sums


def _fisher(model: nn.Module, data: Any) -> dict[str, Tensor]:
    """The mean of squared gradients of the loss, sample by sample."""
    sums = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in model.named_parameters()}
    for x, y in zip(*(t.split(1) for t in data), strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        for total, g in zip(sums.values(), gradients, strict=True):
            total += g.double().square() / len(data[0])
    return sums


def allocations(bench: Bench, name: str = "resnet20") -> Any:
    """Accuracy of the allocated network and of uniform bits at the same size."""
    model, diagonal = bench.network(name)[0], bench.diagonal(name, "hessian")
    found = []
    for budget in (3, 4, 5):
        chosen = ms.allocate_bits(model, diagonal, bits=range(2, 9), budget=float(budget))
        run: Any = {"noise": "max", "bits": [chosen.bits, budget]}
        levels = ms.noise_robustness(model, bench.test, **run).levels
        found.append([budget, *(level.accuracy.mean for level in levels if level.accuracy is not None)])
    return found


def prunings(bench: Bench, name: str = "resnet20") -> Any:
    """Accuracy after pruning by saliency and by magnitude, as it is and after a random rescaling."""
    model = bench.network(name)[0]
    scales = ms.symmetries(model, bench.test[0][:2], "neuron").random(0, 10.0)
    found = []
    for state, network in (("as it is", model), ("rescaled", ms.rescale(model, scales))):
        diagonal = ms.hessian_diagonal(network, tuple(t[: bench.options.calibration] for t in bench.train))
        weights = {n: p.detach() for n, p in network.named_parameters() if p.dim() > 1}
        saliency = {n: s for n, s in diagonal.saliency(network).items() if n in weights}
        for method, scores in (("saliency", saliency), ("magnitude", {n: w.abs() for n, w in weights.items()})):
            for scope in ("global", "layer"):
                for amount in (0.5, 0.7, 0.9):
                    masks = ms.pruning_masks(scores, amount, scope=scope)
                    found.append([state, method, scope, amount, _accuracy(network, masks, bench.test)])
    return found


def _accuracy(model: nn.Module, masks: dict[str, Tensor], data: Data) -> float:
    state = {n: p * masks[n] if n in masks else p for n, p in model.named_parameters()}
    with torch.no_grad():
        right = [
            (torch.func.functional_call(model, state, (x,)).argmax(1) == y).sum()
            for x, y in zip(*(t.split(500) for t in data), strict=True)
        ]
    return float(sum(right)) / len(data[0])


def certificate_tables(bench: Bench) -> Iterator[str]:
    head = ("network", "curvature", "noise", "before", "after", "gap", "seconds")
    yield "## Certificates\n\n" + markdown_table(head, list(certificates(bench)), text=3)


def rounding_tables(bench: Bench) -> Iterator[str]:
    for name in bench.names:
        for noise in NOISES:
            rows = list(roundings(bench, name, noise))
            title = f"## {name}, rounded with noise {noise!r}: accuracy in % over {bench.samples} images"
            yield f"{title}\n\n" + markdown_table(("", *(f"{b} bits" for b in BITS)), rows)
            yield "; ".join(f"{v}: {_near_best(rows, v)} of {len(BITS)}" for v in VARIANTS) + NEAR


NEAR = " columns in which it is the best or within one standard error of the best."


def _near_best(rows: list[list[str]], variant: str) -> int:
    """In how many columns a variant is the best, or within the best one's standard error of it."""
    names = [row[0] for row in rows]
    near = 0
    for column in zip(*(row[1:] for row in rows), strict=True):
        pairs = [tuple(map(float, cell.split(" ± "))) for cell in column]
        best, error = max(pairs)
        near += pairs[names.index(variant)][0] >= best - error
    return near


def prediction_tables(bench: Bench) -> Iterator[str]:
    rows = list(predictions(bench))
    sure = [abs(float(r[3]) - float(r[4])) for r in rows if float(r[3]) > 50]
    columns = ("network", "noise", "size", "predicted", "measured", "±")
    worst = f"Largest error where the prediction is above 50 %: {max(sure, default=0.0):.2f} points."
    yield f"## Predicted accuracy\n\n{markdown_table(columns, rows, text=3)}\n\n{worst}"


def assignment_tables(bench: Bench) -> Iterator[str]:
    probes = "-".join(map(str, bench.options.probes))
    found = bench.cell(f"assignments/resnet20-probes-{probes}", lambda: assignments(bench))
    rows = [[rival, f"{rank:.3f}", decimals(seconds, 1)] for rival, (rank, seconds) in found.items()]
    yield "## 200 random bit assignments, resnet20\n\n" + markdown_table(("", "Spearman", "seconds"), rows)


def allocation_tables(bench: Bench) -> Iterator[str]:
    found = bench.cell(f"allocations/{bench.samples}/resnet20", lambda: allocations(bench))
    rows = [[str(b), *(_percent(a, bench.samples) for a in accuracies)] for b, *accuracies in found]
    yield "## Allocated bits, resnet20\n\n" + markdown_table(("mean bits", "allocated", "uniform"), rows)


def pruning_tables(bench: Bench) -> Iterator[str]:
    found = bench.cell(f"pruning/{bench.samples}/resnet20", lambda: prunings(bench))
    rows = [[*map(str, settings), _percent(a, bench.samples)] for *settings, a in found]
    columns = ("network", "scores", "scope", "pruned", "accuracy")
    yield "## Pruning, resnet20\n\n" + markdown_table(columns, rows, text=3)


PARTS: dict[str, Callable[[Bench], Iterator[str]]] = {
    "certificates": certificate_tables,
    "rounding": rounding_tables,
    "predicted": prediction_tables,
    "allocations": allocation_tables,
    "pruning": pruning_tables,
    "assignments": assignment_tables,
}
OF_RESNET20 = ("allocations", "pruning", "assignments")


def tables(bench: Bench) -> Iterator[str]:
    """Those asked for, as Markdown, from cells that are measured where they are not there yet."""
    for part in bench.options.parts:
        if part not in OF_RESNET20 or "resnet20" in bench.names:
            yield from PARTS[part](bench)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("resnet20", "resnet56"):
        parser.add_argument(f"--{name}", type=Path, help="its public weights; left out if not given")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/hardware"))
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--calibration", type=int, default=1000, help="training images that curvature is measured on")
    parser.add_argument("--probes", type=int, nargs="*", default=[50, 200], help="of Hutchinson's estimates")
    parser.add_argument("--networks", nargs="+", default=["resnet20", "resnet56", "depthwise"])
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    bench = Bench(parser.parse_args())
    for table in tables(bench):
        print(f"\n{table}", flush=True)


if __name__ == "__main__":
    main()
