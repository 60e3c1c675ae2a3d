"""Two minutes on what minsharp is for: handwritten digits, two small networks, and a trace that can be fooled."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .errors import InputError
from .files import make_folder
from .measures.compare import Comparison, compare
from .measures.minimum import MinimumSharpness, minimum_sharpness
from .measures.robustness import NoiseRobustness, noise_robustness
from .measures.verify import Verification, verify
from .network.network import Network
from .network.reader import read
from .network.rescale import rescale
from .network.symmetry import symmetries
from .text import Rows, aligned, decimals, number, percent

if TYPE_CHECKING:
    from .experiments import Results

EXTRAS = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}
RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MEASURES = ("training loss", "trace", "minimum sharpness", "relative minimum sharpness", "relative sensitivity")
SHOWN = ("minimum sharpness", "relative sensitivity")
ABSOLUTE = (0.0, 0.01, 0.02, 0.04, 0.08, 0.16)
RELATIVE = (0.0, 0.1, 0.2, 0.4, 0.8)
COMPARED = (
    *("training loss", "trace", "minimum sharpness", "minimum sharpness (neuron)", "normalized sharpness"),
    *("relative minimum sharpness", "relative sensitivity", "Fisher-Rao norm", "SAM", "ASAM"),
)
SPREAD = 10.0
"""The random rescaling multiplies weights by factors between 1/10 and 10."""
RESCALINGS = 5
EPOCHS = 120


@dataclass(frozen=True)
class Trained:
    """A network, and what is known of it."""

    name: str
    network: Network
    accuracy: float
    layer: MinimumSharpness
    neuron: MinimumSharpness


def run(out: str | Path = "minsharp-demo", *, epochs: int = EPOCHS, ratios: Sequence[float] = RATIOS) -> Path:
    """Run the demo, tell its story on stdout, and write the report and the figures; the path of the report."""
    _check_extras()
    folder = make_folder(out)
    from .data import load
    from .report.overview import draw_overview

    digits = load("digits")
    torch.manual_seed(0)
    with _one_thread(), _steps(5) as step:
        step("training two networks to the same loss")
        small, large = _train_two(digits)
        step("fooling the trace")
        group = symmetries(small.network, digits.train_x[:2])
        rescaled = [rescale(small.network, group.random(seed, SPREAD)) for seed in range(1, RESCALINGS + 1)]
        others = [minimum_sharpness(module, digits.train_x) for module in rescaled]
        fooled, again = rescaled[0], others[0]
        some = (digits.train_x[:200], digits.train_y[:200])
        comparison = compare(small.network, some, measures=COMPARED, rescalings=3)
        step("noise on the weights")
        checked = verify(small.network, digits.train_x, small.neuron)
        versions = {
            "as trained": small.network.module,
            "flattest": rescale(small.network, small.neuron.scales),
            "rescaled": fooled,
        }
        noisy = {name: _noise(module, digits.test_x, digits.test_y) for name, module in versions.items()}
        step("label noise: one network per fraction of permuted labels")
        labels = _label_noise(epochs, ratios, step.detail)
        step("writing the report and the figures")
        taus = {c.measure: c.kendall.value for c in labels.analysis.correlations}
        report = _write(folder, small, comparison, checked, noisy, labels)
        draw_overview(
            [small.layer, *others], {name: levels[0] for name, levels in noisy.items()}, folder / "overview.png"
        )
    _tell(small, large, again, checked, noisy, taus, report)
    return report


def _check_extras() -> None:
    missing = [name for module, name in EXTRAS.items() if find_spec(module) is None]
    if missing:
        raise InputError(f"the demo needs {' and '.join(missing)}: pip install 'minsharp[experiments]'")


class _Steps:
    """Where the demo is, on stderr: a spinner on a terminal, a line per step elsewhere."""

    def __init__(self, total: int, show: Callable[[str], None]):
        self.total, self.done, self.show, self.title = total, 0, show, ""

    def __call__(self, title: str) -> None:
        self.done += 1
        self.title = f"[{self.done}/{self.total}] {title}"
        self.show(self.title)

    def detail(self, text: str) -> None:
        """What is going on inside a step."""
        self.show(f"{self.title}, {text}")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Networks this small gain nothing from more, and wait for each other where the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _steps(total: int) -> Iterator[_Steps]:
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _Steps(total, lambda text: console.print(text, markup=False, soft_wrap=True))
        return
    with console.status("") as status:
        yield _Steps(total, lambda text: status.update(text.replace("[", "\\[", 1)))


def _train_two(digits: Any) -> tuple[Trained, Trained]:
    """The same network from the same start, with small batches and with large ones, to the same training loss."""
    from .experiments.training import Recipe, train_to_loss
    from .models import digits_mlp

    start = digits_mlp()
    trained = []
    for name, recipe in {
        "batches of 16": Recipe(lr=0.02, epochs=0, limit=300, target=0.01, batch=16),
        "batches of 500": Recipe(lr=0.1, epochs=0, limit=2000, target=0.01, batch=500),
    }.items():
        model = copy.deepcopy(start)
        train_to_loss(model, digits.train_x, digits.train_y, recipe, seed=0)
        trained.append(_known(name, model.eval(), digits))
    return trained[0], trained[1]


def _known(name: str, model: nn.Module, digits: Any) -> Trained:
    from .curvature.hessian import hessian_diagonal

    network = read(model, digits.train_x)
    with torch.no_grad():
        accuracy = float((model(digits.test_x).argmax(1) == digits.test_y).float().mean())
    diagonal = hessian_diagonal(network, digits.train_x)
    layer, neuron = (minimum_sharpness(network, diagonal, scope=scope) for scope in ("layer", "neuron"))
    return Trained(name, network, accuracy, layer, neuron)


def _noise(model: nn.Module, x: Tensor, y: Tensor) -> list[NoiseRobustness]:
    return [
        noise_robustness(model, (x, y), sigmas=ABSOLUTE, noise="absolute", trials=20),
        noise_robustness(model, (x, y), sigmas=RELATIVE, noise="relative", trials=20),
    ]


def _label_noise(epochs: int, ratios: Sequence[float], detail: Callable[[str], None]) -> "Results":
    """One network per fraction of permuted labels, trained and measured as in the paper's experiment."""
    from .experiments import Results
    from .experiments.labels import LABELS, plan, work

    planned = plan("digits", models=["MLP"], ratios=ratios, seeds=[0], measures=MEASURES, epochs=epochs)
    rows: list[dict[str, Any]] = []
    for cell in planned.cells:
        detail(percent(cell["ratio"], 0))
        rows += work({**planned.settings, **cell}, None)
    return Results(LABELS, rows, planned.settings)


def _write(
    folder: Path,
    small: Trained,
    comparison: Comparison,
    checked: Verification,
    noisy: dict[str, list[NoiseRobustness]],
    labels: "Results",
) -> Path:
    from .experiments.store import write_csv
    from .report import write_report
    from .report.figures import draw

    write_csv(folder / "label-noise.csv", labels.rows)
    draw(labels, folder)
    plots = [plot for plot in labels.experiment.plots(labels) if plot.x_label in SHOWN]
    return write_report(
        folder / "report.html",
        title="How sharp is a network that reads digits?",
        minimum=[small.layer, small.neuron],
        comparison=comparison,
        verification=checked,
        robustness=noisy,
        experiments=plots,
        settings={
            "network": "64-128-32-128-10, ReLU",
            "data": "1,000 handwritten digits for training, 797 for testing",
            "training": f"{small.name}, SGD to a loss of 0.01",
            "noise": "20 trials per size, on the test images",
            "other measures": "on 200 training images",
        },
    )


def _tell(
    small: Trained,
    large: Trained,
    again: MinimumSharpness,
    checked: Verification,
    noisy: dict[str, list[NoiseRobustness]],
    taus: dict[str, float],
    report: Path,
) -> None:
    """The story, with its numbers."""
    first, other = small.layer, large.layer
    lines = [
        "",
        "1. Two networks, one training loss.",
        *_indented(_trained_rows(small, large), least=(16, 13, 10, 18)),
        "",
        "2. A rescaling that keeps every output fools the trace, and not minimum sharpness.",
        f"   The trace of the first network goes from {number(first.trace, 4)} to {number(again.trace, 4)}, "
        "which would make it",
        f"   {_than(again.trace, other.trace)} the second.",
        f"   Its minimum sharpness was {number(first.value, 8)}, and is {number(again.value, 8)}.",
        "",
        "3. The flattest network with the same outputs, one factor per neuron.",
        f"   Trace {number(small.neuron.trace, 4)} -> {number(small.neuron.value, 4)}; {small.neuron.status};",
        f"   {sum(c.holds for c in checked.checks)} of {len(checked.checks)} claims hold when measured afresh.",
        "   Test accuracy with Gaussian noise of size sigma on every weight, 20 trials:",
        *_indented(_noise_rows(noisy), text=0, least=(9, 16, 16, 16)),
        "",
        "4. Label noise: does a measure rank networks by their generalisation gap? Kendall's tau:",
        *_indented([(name, decimals(tau)) for name, tau in taus.items()], least=(28, 4)),
        "   The training loss is in the list because sharpness falls with it: a tau says little unless it beats that.",
        "",
        f"Report and figures: {report.parent}/ (open {report} in a browser)",
        "",
        "What next:",
        "  minsharp measure your_package.your_module:your_factory --weights weights.safetensors --data digits",
        "  minsharp flatten model.pt2 --data inputs.npz --out flat.safetensors",
        "  minsharp compare minsharp.models:digits_mlp --data digits --samples 200",
        "  minsharp reproduce --help",
    ]
    print("\n".join(lines))


def _indented(rows: Rows, *, text: int = 1, least: Sequence[int]) -> list[str]:
    return [f"   {line}" for line in aligned(rows, text=text, least=least)]


def _trained_rows(*networks: Trained) -> list[tuple[str, ...]]:
    rows = [(t.name, percent(t.accuracy), number(t.layer.trace, 4), number(t.layer.value, 4)) for t in networks]
    return [("", "test accuracy", "trace", "minimum sharpness"), *rows]


def _noise_rows(noisy: dict[str, list[NoiseRobustness]]) -> list[tuple[str, ...]]:
    """Accuracy of the network, of the flattest and of the rescaled one, for every absolute size of noise."""
    shown = ("as trained", "flattest", "rescaled")
    levels = zip(*(noisy[name][0].levels for name in shown), strict=True)
    rows = [(number(same[0].sigma), *(_percent(level.accuracy) for level in same)) for same in levels]
    return [("sigma", *shown), *rows]


def _than(a: float, b: float) -> str:
    return f"{number(a / b, 3)} times as sharp as" if a > b else f"{number(b / a, 3)} times flatter than"


def _percent(measured: Any) -> str:
    return "-" if measured is None else format(measured, ".1%")


if __name__ == "__main__":
    run()
