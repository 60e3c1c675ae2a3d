"""Vision transformers on digits: hyperparameters drawn at random, trained to one training loss, and measured."""

import time
from collections.abc import Sequence
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...data import TRAINING_IMAGES, load
from ...errors import InputError, MinsharpError
from ...measures.catalogue import chosen
from ...measures.compare import compare
from ...network.reader import read
from ..plan import TIMING, Configuration, Plan, ResultRow
from ..training import Recipe, adamw, evaluate, train_to_loss

SIDE, CLASSES = 8, 10
NETWORKS, TRAIN, TARGET, LIMIT = 30, 300, 0.01, 200
RESCALINGS, DRIFT_SAMPLES = 3, 20
HYPERPARAMETERS: dict[str, tuple[Any, ...]] = {
    "patch": (2, 4),
    "width": (16, 24, 32),
    "heads": (2, 4),
    "depth": (1, 2),
    "lr": (0.001, 0.003, 0.01),
    "batch": (16, 32, 64),
    "weight decay": (0.0, 0.1, 0.3),
}
"""What each network draws one of."""


class Block(nn.Module):
    """Attention and two layers, each after a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, tokens, width) to the same."""
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class VisionTransformer(nn.Module):
    """Patches of an image of 8 x 8 pixels as tokens, their mean as what is classified."""

    def __init__(self, patch: int, width: int, heads: int, depth: int):
        super().__init__()
        self.patch = patch
        self.enter, self.at = nn.Linear(patch**2, width), nn.Parameter(0.02 * torch.randn((SIDE // patch) ** 2, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1, 8, 8) to logits."""
        tokens = F.unfold(x, self.patch, stride=self.patch).mT  # (n, tokens, patch²)
        return self.head(self.norm(self.blocks(self.enter(tokens) + self.at)).mean(1))


def plan(
    *,
    networks: int = NETWORKS,
    train: int = TRAIN,
    target: float = TARGET,
    limit: int = LIMIT,
    rescalings: int = RESCALINGS,
    measures: Sequence[str] | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Plan:
    """One cell per network, with the hyperparameters that it draws; the first ones are the same in any number."""
    if networks < 1 or limit < 1 or rescalings < 1:
        raise InputError(f"networks={networks}, limit={limit}, rescalings={rescalings}: expected at least 1 of each")
    if not 1 <= train <= TRAINING_IMAGES["digits"]:
        raise InputError(f"train={train}: digits has {TRAINING_IMAGES['digits']} training images")
    if not target > 0:
        raise InputError(f"target={target}: expected a training loss above 0")
    settings = {
        "data": "digits",
        "train": train,
        "target": target,
        "limit": limit,
        "rescalings": rescalings,
        "measures": [measure.name for measure in chosen(measures)],
        "seed": seed,
        "device": device,
    }
    draws = [Random(f"{seed} {k}") for k in range(networks)]
    cells = [
        {"network": k, **{name: draw.choice(values) for name, values in HYPERPARAMETERS.items()}}
        for k, draw in enumerate(draws)
    ]
    return Plan(settings, tuple(cells))


def work(configuration: Configuration, data_dir: str | None = None) -> list[ResultRow]:
    """Train one network to the training loss, and measure it on its training data."""
    given = configuration
    data = load(given["data"], data_dir).subset(given["train"]).to(given["device"])
    x, y = data.train_x, data.train_y
    torch.manual_seed(given["network"])
    model = VisionTransformer(given["patch"], given["width"], given["heads"], given["depth"]).to(given["device"])
    recipe = Recipe(given["lr"], 0, given["limit"], given["target"], given["batch"], 0.0, given["weight decay"], 0.0)
    start = time.perf_counter()
    fitted = train_to_loss(model, x, y, recipe, given["network"], adamw)
    seconds = time.perf_counter() - start
    model.eval()
    on_train, on_test = evaluate(model, x, y), evaluate(model, data.test_x, data.test_y)
    return [
        {
            "network": given["network"],
            **{name: given[name] for name in HYPERPARAMETERS},
            "weights": sum(p.numel() for p in model.parameters()),
            "epochs": fitted.epochs,
            "reached": fitted.reached,
            "train accuracy": on_train.accuracy,
            "test accuracy": on_test.accuracy,
            "gap": on_train.accuracy - on_test.accuracy,
            "test loss": on_test.loss,
            f"training {TIMING}": seconds,
            **_measured(model, (x, y), given),
            "training loss": on_train.loss,
        }
    ]


def _measured(model: nn.Module, data: tuple[Tensor, Tensor], given: Configuration) -> ResultRow:
    """The value and the drift of every measure, nothing where one fails, and why."""
    start = time.perf_counter()
    names, errors = given["measures"], []
    rows: dict[str, Any] = {}
    try:
        table = compare(
            read(model, data[0][:2]),
            data,
            measures=names,
            curvature="ggn",
            scope="full",
            rescalings=given["rescalings"],
            drift_samples=DRIFT_SAMPLES,
        )
        rows = {row.name: row for row in table.rows}
        errors = [f"{name}: {' '.join(row.error.split())}" for name, row in rows.items() if row.error]
    except MinsharpError as error:  # a network that diverged
        errors = [" ".join(str(error).split())]
    values = {name: rows[name].value if name in rows else None for name in names}
    drifts = {f"drift of {name}": rows[name].drift if name in rows else None for name in names}
    return {**values, **drifts, "errors": "; ".join(errors), f"measuring {TIMING}": time.perf_counter() - start}
