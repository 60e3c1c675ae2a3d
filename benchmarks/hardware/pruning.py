"""Pruning by saliency and by magnitude, of a network and of an equivalent one."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import minsharp as ms
from benchmarks.report import Table

from .assignments import share
from .bench import Bench, right, shown

NAME = "resnet20"
AMOUNTS = (0.5, 0.7, 0.9)
SPREAD = 10.0
SAMPLES = 200  # images that the curvature is measured on, afresh in the rescaled network
METHODS = {"saliency, Hessian": "hessian", "saliency, margin": "margin", "magnitude": None}


def measured(bench: Bench, state: str, method: str) -> list[list[Any]]:
    """Scope, amount and the share of images that are right."""
    model, data = bench.network(NAME)[0], bench.test(NAME)
    if state == "rescaled":
        model = ms.rescale(model, ms.symmetries(model, data[0][:2], "neuron").random(0, SPREAD))
    held = {n: p.detach() for n, p in model.named_parameters() if p.dim() > 1}
    scores = {n: w.abs() for n, w in held.items()}
    curvature: Any = METHODS[method]
    if curvature is not None:
        diagonal = ms.hessian_diagonal(model, bench.train(SAMPLES), curvature=curvature)
        scores = {n: s for n, s in diagonal.saliency(model).items() if n in held}
    found: list[list[Any]] = []
    for scope in ("global", "layer"):
        for amount in AMOUNTS:
            masks = ms.pruning_masks(scores, amount, scope=scope)
            pruned = {n: w * masks[n] for n, w in held.items()}
            found.append([scope, amount, share(right(model, data, pruned))])
    return found


STATES = ("as it is", "rescaled")


def cell(bench: Bench, state: str, method: str) -> list[list[Any]]:
    """What is known of it."""
    key = f"pruning/{bench.samples(NAME)}/{NAME}-{state}-{method}"
    return bench.cell(key, lambda: measured(bench, state, method))


def tables(bench: Bench) -> Iterator[Table]:
    """Methods side by side, before and after a rescaling."""
    samples = bench.samples(NAME)
    rows = []
    for state, method in product(STATES, METHODS):
        found = cell(bench, state, method)
        for scope in ("global", "layer"):
            rows.append((state, method, scope, *(shown(a, samples) for where, _, a in found if where == scope)))
    yield Table(
        "Pruning",
        f"ResNet-20, not trained after pruning: accuracy in percent of {samples:,} test images. Saliency: "
        f"h w²/2, curvature measured on {SAMPLES} training images in each network afresh. Rescaled: an equivalent "
        f"network, its factors drawn between 1/{SPREAD:g} and {SPREAD:g}.",
        ("network", "scores", "scope", *(f"{100 * a:.0f} % pruned" for a in AMOUNTS)),
        rows,
    )
