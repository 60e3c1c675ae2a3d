"""The scale law, and how free a group could be."""

from collections.abc import Iterator, Mapping, Sequence
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from ..network.symmetry import Scope, Symmetries, group
from .trial import TOLERANCE, Trial, jacobians

SCOPES: tuple[Scope, ...] = ("layer", "neuron")
_MOST_PLACES = 256
"""Weights and inputs that derivatives are taken at, before the rules are said to give something away."""


def scale_law(trial: Trial) -> Iterator[str]:
    """Elements of the group keep the outputs: on several weights and inputs, for the group belongs to the graph."""
    places = list(trial.others(3 if trial.wide else 2, 4))
    with torch.no_grad():
        before = [trial.outputs(*place) for place in places]
    for scope in SCOPES:
        symmetries = group(trial.network.graph, scope)
        for z in _elements(trial, symmetries):
            moved = _most_moved(trial, symmetries, z, places, before)
            if moved > TOLERANCE:
                yield f"scale, {scope}: outputs move by {moved:.2g} under {_moving(symmetries, z)}"
                break
        acting = rank(directions(symmetries, trial.values(), "neuron"))
        if acting != symmetries.dimension:
            yield f"scale, {scope}: {symmetries.dimension} free numbers are claimed, {acting} of them act"


def _elements(trial: Trial, symmetries: Symmetries) -> Iterator[Tensor]:
    """Free numbers: all at random, at two spreads; one at a time. In powers of two where numbers are coarse."""
    d = symmetries.dimension
    generator = torch.Generator().manual_seed(trial.seed)
    if not d:
        return
    spreads = (4, 100, 4, 100) if trial.wide else (4, 100)
    for spread in spreads:
        yield _sized((2 * torch.rand(d, generator=generator, dtype=torch.float64) - 1) * log(spread), trial)
    for i in torch.randperm(d, generator=generator)[: d if trial.wide else 2].tolist():
        z = torch.zeros(d, dtype=torch.float64)
        z[i] = log(10)
        yield _sized(z, trial)


def _sized(z: Tensor, trial: Trial) -> Tensor:
    """As it is; or rounded, so that factors are powers of two, exact in all types."""
    return z if trial.precision < 1e-10 else (z / log(4)).round() * log(4)


def _most_moved(
    trial: Trial,
    symmetries: Symmetries,
    z: Tensor,
    places: Sequence[tuple[dict[str, Tensor], tuple[Tensor, ...]]],
    before: Sequence[Tensor],
) -> float:
    logs = symmetries.log_scales(z)
    if trial.precision >= 1e-10:
        logs = {name: (t / log(2)).round() * log(2) for name, t in logs.items()}
    factors = {
        name: t.exp() if trial.precision < 1e-10 else torch.exp2((t / log(2)).round()) for name, t in logs.items()
    }
    most = 0.0
    for (values, inputs), old in zip(places, before, strict=True):
        with torch.no_grad():
            new = trial.outputs({name: v * factors.get(name, 1.0) for name, v in values.items()}, inputs)
        most = max(most, difference(new, old))
    return most


def difference(new: Tensor, old: Tensor) -> float:
    """The largest difference in a column, (n, K), relative to what stands in that column, or a millionth of all."""
    if not old.numel():
        return 0.0
    size = old.abs().amax(0) + 1e-6 * old.abs().amax()
    apart = (new - old).abs().amax(0) / size.clamp_min(1e-300)
    return float(apart.nan_to_num(nan=float("inf")).amax())


def _moving(symmetries: Symmetries, z: Tensor) -> str:
    """The parameters that an element scales, and by how much."""
    logs = symmetries.log_scales(z)
    spans = {name: (float(t.exp().min()), float(t.exp().max())) for name, t in logs.items() if t.numel()}
    return ", ".join(f"{name} x {a:.3g}..{b:.3g}" for name, (a, b) in spans.items() if (a, b) != (1, 1))


class Freedom(NamedTuple):
    """The dimension that the rules find, and that of all rescalings that keep the function to first order."""

    claimed: int
    true: int


def freedom(trial: Trial, scope: Scope) -> Freedom:
    """Rescalings by exp(t) keep the function if every derivative along t vanishes, for all weights and inputs.

    Where the function is constant in pieces, derivatives cannot tell, and the true dimension may be smaller. Few places
    do not show all that moves the outputs (a relu passes some samples only), so more are looked at before it is said
    that the rules give something away.
    """
    claimed = rank(directions(group(trial.network.graph, scope), trial.values(), scope))
    true, seen = claimed, list[Tensor]()
    for place in trial.others(_MOST_PLACES, 4):
        seen.append(_log_jacobian(trial, scope, *place))
        if len(seen) >= 4 and len(seen).bit_count() == 1:  # 4, 8, 16, ... places
            true = seen[0].shape[1] - rank(torch.cat(seen))
            if true <= claimed:
                break
    return Freedom(claimed, true)


def directions(symmetries: Symmetries, values: Mapping[str, Tensor], scope: Scope) -> Tensor:
    """The log-scale of every entry of every parameter (of every parameter) per free number: (dimension, entries)."""
    rows = []
    for z in torch.eye(symmetries.dimension, dtype=torch.float64):
        logs = symmetries.log_scales(z)
        parts = [
            logs[name].expand(v.shape).flatten() if name in logs else 0 * v.flatten() for name, v in values.items()
        ]
        rows.append(torch.cat([p[:1] for p in parts] if scope == "layer" else parts))
    return torch.stack(rows) if rows else torch.zeros(0, sum(v.numel() for v in values.values()), dtype=torch.float64)


def _log_jacobian(trial: Trial, scope: Scope, values: Mapping[str, Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
    """d outputs / d log-scales: (n * K, entries), or (n * K, parameters)."""
    parts = [(J * values[name]).reshape(len(J), -1) for name, J in jacobians(trial, values, inputs).items()]
    return torch.cat([p.sum(1, keepdim=True) for p in parts] if scope == "layer" else parts, 1)


def rank(matrix: Tensor) -> int:
    """With each row of size one, to a millionth."""
    if not matrix.numel():
        return 0
    matrix = matrix / torch.linalg.vector_norm(matrix, dim=1, keepdim=True).clamp_min(1e-300)
    values = torch.linalg.svdvals(matrix)
    return int((values > 1e-6 * values.amax().clamp_min(1e-300)).sum())
