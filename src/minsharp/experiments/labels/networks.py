"""The networks: trained on partly permuted labels, and measured on their training data."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch

from ...data import TRAINING_IMAGES, Dataset, load, permute_labels
from ...errors import InputError, MinsharpError
from ...measures.catalogue import chosen as chosen_measures
from ...measures.compare import compare
from ...models import build
from ...network.reader import read
from ..plan import TIMING, Configuration, Plan, ResultRow, grid
from ..training import CHUNK, Recipe, evaluate, train_epochs, train_to_loss

LOSS = "training loss"
MEASURES = (
    LOSS,
    "trace",
    "minimum sharpness",
    "minimum sharpness (neuron)",
    "relative minimum sharpness",
    "relative minimum sharpness (neuron)",
    "relative sensitivity",
    "relative sensitivity (element)",
    "normalized sharpness",
    "normalized sharpness (icml)",
    "Fisher-Rao norm",
)
RATIOS = tuple(i / 10 for i in range(11))


@dataclass(frozen=True)
class Preset:
    """A size of the experiment."""

    data: str
    train: int | None
    """How many training images, if not all."""
    recipes: dict[str, Recipe]
    seeds: int


PRESETS = {
    "digits": Preset(
        "digits",
        None,
        {
            "MLP": Recipe(lr=0.1, epochs=300, limit=600, target=0.01, batch=128),
            "CNN": Recipe(lr=0.02, epochs=180, limit=500, target=0.01, batch=64),
        },
        seeds=3,
    ),
    "mnist-small": Preset(
        "mnist",
        1000,
        {
            "MLP": Recipe(lr=0.05, epochs=250, limit=500, target=0.01, batch=64),
            "LeNet": Recipe(lr=0.02, epochs=100, limit=250, target=0.01, batch=64),
        },
        seeds=1,
    ),
    "paper": Preset(
        "mnist",
        None,
        {
            "MLP": Recipe(lr=0.1, epochs=3000, limit=3000, target=0.01),
            "LeNet": Recipe(lr=0.01, epochs=1000, limit=3000, target=0.01),
        },
        seeds=10,
    ),
}


def plan(
    preset: str = "digits",
    protocol: str = "epochs",
    *,
    models: Sequence[str] | None = None,
    ratios: Sequence[float] = RATIOS,
    seeds: Sequence[int] | None = None,
    measures: Sequence[str] = MEASURES,
    train: int | None = None,
    epochs: int | None = None,
    device: str = "cpu",
) -> Plan:
    """The cells of a preset under a protocol; `train` and `epochs` replace the preset's numbers."""
    if preset not in PRESETS:
        raise InputError(f"preset={preset!r}: expected one of {', '.join(PRESETS)}")
    if protocol not in ("epochs", "loss"):
        raise InputError(f"protocol={protocol!r}: expected 'epochs' or 'loss'")
    chosen = PRESETS[preset]
    names = list(chosen.recipes) if models is None else list(models)
    _check(preset, names, ratios, train)
    chosen_measures(list(measures))  # better a word now than an error in every cell
    recipes = {name: asdict(recipe) for name, recipe in chosen.recipes.items()}
    if epochs is not None:
        recipes = {name: {**recipe, "epochs": epochs, "limit": epochs} for name, recipe in recipes.items()}
    settings = {
        "preset": preset,
        "protocol": protocol,
        "data": chosen.data,
        "train": chosen.train if train is None else train,
        "recipes": recipes,
        "measures": list(measures),
        "device": device,
    }
    return Plan(settings, grid(model=names, ratio=ratios, seed=range(chosen.seeds) if seeds is None else seeds))


def _check(preset: str, models: Sequence[str], ratios: Sequence[float], train: int | None) -> None:
    """Refuse what no cell could do."""
    chosen = PRESETS[preset]
    for name in models:
        if name not in chosen.recipes:
            raise InputError(f"preset {preset!r} has no model {name!r}: expected some of {', '.join(chosen.recipes)}")
    for ratio in ratios:
        if not 0 <= ratio <= 1:
            raise InputError(f"ratio={ratio}: expected a fraction of the labels, from 0 to 1")
    if train is not None and not 1 <= train <= TRAINING_IMAGES[chosen.data]:
        raise InputError(f"train={train}: {chosen.data} has {TRAINING_IMAGES[chosen.data]} training images")


@cache
def _data(name: str, train: int | None, data_dir: str | None) -> Dataset:
    return load(name, data_dir).subset(train)


def work(configuration: Configuration, data_dir: str | None = None) -> list[ResultRow]:
    """Train one network on permuted labels, and measure it on its training data."""
    model_name, seed, device = configuration["model"], configuration["seed"], configuration["device"]
    data = _data(configuration["data"], configuration["train"], data_dir).to(device)
    x, y = data.train_x, permute_labels(data.train_y.cpu(), configuration["ratio"], seed).to(device)
    torch.manual_seed(seed)
    model = build(model_name, configuration["data"]).to(device)
    recipe = Recipe(**configuration["recipes"][model_name])
    fit = train_epochs if configuration["protocol"] == "epochs" else train_to_loss
    start = time.perf_counter()
    fitted = fit(model, x, y, recipe, seed)
    train_seconds = time.perf_counter() - start
    model.eval()
    on_train, on_test = evaluate(model, x, y), evaluate(model, data.test_x, data.test_y)
    start = time.perf_counter()
    values, errors = _measured(model, x, y, [name for name in configuration["measures"] if name != LOSS])
    return [
        {
            "preset": configuration["preset"],
            "protocol": configuration["protocol"],
            "model": model_name,
            "ratio": configuration["ratio"],
            "seed": seed,
            "epochs": fitted.epochs,
            "steps": fitted.steps,
            "reached": fitted.reached,
            "train accuracy": on_train.accuracy,
            "test accuracy": on_test.accuracy,
            "gap": on_train.accuracy - on_test.accuracy,
            "test loss": on_test.loss,
            LOSS: on_train.loss,
            **values,
            "errors": "; ".join(errors),
            f"training {TIMING}": train_seconds,
            f"measuring {TIMING}": time.perf_counter() - start,
        }
    ]


def _measured(model: torch.nn.Module, x: Any, y: Any, measures: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The values by name, nothing where a measure fails, and why."""
    if not measures:
        return {}, []
    try:
        batches = list(zip(x.split(CHUNK), y.split(CHUNK), strict=True))
        comparison = compare(read(model, x[:2]), batches, measures=measures, rescalings=0)
    except MinsharpError as error:  # a network that diverged
        return dict.fromkeys(measures), [" ".join(str(error).split())]
    rows = {row.name: row for row in comparison.rows}
    errors = [f"{name}: {' '.join(str(rows[name].error).split())}" for name in measures if rows[name].error]
    return {name: rows[name].value for name in measures}, errors
