"""Geodesic sharpness: how much the loss grows along a geodesic of a metric that the whole symmetry group keeps."""

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..losses import Criterion
from ..network.network import Network
from ..network.reader import read
from ..network.symmetry import FullSymmetries, tried_group
from ..reference.objective import Objective
from ..subject.batches import Data
from ..subject.model import Pattern
from ..subject.modes import plain_mode
from .score import Score


@plain_mode()
def geodesic_sharpness(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    rho: float = 0.5,
    order: int = 2,
    parameters: Pattern = None,
) -> Score:
    """How much the loss grows at the end of the steepest geodesic of length rho. Needs targets.

        L(w + x + a/2) - L(w),     x = rho G^-1 g / sqrt(g^T G^-1 g),     a the geodesic's acceleration

    with g the gradient and G the metric of da Silva, Dangel, Oore (2025) for the attention of transformers: all that
    the matrix of a frame acts on in a parameter, or its inverse, U with h rows, has the metric tr((U U^T)^-1 dU dU^T);
    every other entry w has dw²/w², that of adaptive sharpness. An element of the whole group takes geodesics to
    geodesics, so none changes this. There is one steepest geodesic, and it needs no projection: along the group's
    orbits g vanishes.

    With S = U U^T, D the gradient in U and x = c S D the acceleration is c² (S D U^T D + U D^T S D - S D D^T U), which
    needs no inverse: where S is singular, as for the bias of a head, the geodesic stays in its range. ``order=1``
    leaves it out: a straight line. As in the paper the other entries go straight. Never negative: the start counts.

    Without frames it is ASAM in one step, one weight t = 2 with squared error (t - 1)² on the input 1:

    >>> model = nn.Linear(1, 1, bias=False).double()
    >>> _ = nn.init.constant_(model.weight, 2)
    >>> data = (torch.ones(1, 1).double(), torch.ones(1, 1).double())
    >>> round(geodesic_sharpness(model, data, nn.MSELoss(), rho=0.1).value, 8)
    0.44
    """
    if not rho > 0:
        raise InputError(f"rho={rho}: expected a positive length, as in rho=0.5")
    if order not in (1, 2):
        raise InputError(f"order={order}: expected 1, a straight line, or 2, with the geodesic's acceleration")
    objective = Objective(model, data, loss, parameters)
    blocks = _blocks(model, objective)
    with objective.prepared():
        here = objective.value_here()
        _, slope = objective.value_and_slope(objective.vector)
        step, bend = raised(objective.parameters, objective.at(slope), blocks)
        size = sqrt(max(float(torch.dot(slope.double(), step.double())), 0.0))
        c = rho / size if size else 0.0
        there = objective.value(objective.vector + c * step + (c**2 / 2 * bend if order == 2 else 0))
    return Score("geodesic_sharpness", max(there - here, 0.0), details={"rho": float(rho), "order": order})


class Block(NamedTuple):
    """All entries of one parameter that the matrix of one frame acts on, or its inverse: their places, (h, m)."""

    parameter: str
    places: Tensor


def _blocks(model: nn.Module | Network, objective: Objective) -> list[Block]:
    """The blocks of all frames among the parameters that count."""
    network = read(model, objective.batches[0].inputs)
    fixed = [name for name in network.graph.parameters if name not in objective.names]
    group = tried_group(network.graph, network.module, "full", fixed)
    assert isinstance(group, FullSymmetries)
    return list(_of_frames(group, objective.parameters))


def _of_frames(group: FullSymmetries, parameters: Mapping[str, Tensor]) -> Iterator[Block]:
    for frame in group.frames:
        found: dict[tuple[str, bool], list[Tensor]] = {}
        for member in frame.members:
            shape = parameters[member.parameter].shape
            places = member.read(torch.arange(shape.numel()).view(shape))
            found.setdefault((member.parameter, member.inverse), []).append(places)
        for (name, _), parts in found.items():
            yield Block(name, torch.cat(parts, 1))


def raised(
    parameters: Mapping[str, Tensor], slopes: Mapping[str, Tensor], blocks: list[Block]
) -> tuple[Tensor, Tensor]:
    """G^-1 g, and the acceleration of the geodesic that starts with it; both end to end."""
    steps = {name: w.square() * slopes[name] for name, w in parameters.items()}
    bends = {name: torch.zeros_like(w) for name, w in parameters.items()}
    for name, places in blocks:
        where = places.to(parameters[name].device)
        U, D = (t[name].flatten()[where].double() for t in (parameters, slopes))  # (h, m)
        S, moved = U @ U.mT, U @ (U.mT @ D)
        bend = moved @ (U.mT @ D) + U @ (D.mT @ (S @ D)) - moved @ (D.mT @ U)
        for held, new in ((steps, moved), (bends, bend)):
            flat = held[name].flatten()
            flat[where] = new.to(flat.dtype)
            held[name] = flat.view_as(parameters[name])
    return tuple(torch.cat([t.flatten() for t in held.values()]) for held in (steps, bends))  # type: ignore[return-value]
