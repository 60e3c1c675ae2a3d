"""A linear layer at the very end: its own curvature in closed form, and fewer columns for everything before it.

With outputs o = W x + b at every position, and H the output Hessian there, the gradients of the columns of S with
respect to W are s x^T: squared and summed, diag(H)_k x_j² for entry (k, j), without a single column. What passes on
to x is W^T S, whose rank is at most the size d of x: with Q R = S^T W, the d rows of R have the same sum of squares
behind x as all K columns. Where W is used elsewhere too (a tied embedding), gradients add up before they are squared,
so the columns keep their identity: S Q goes on from the outputs, and S (1 - Q Q^T), which ends at W, is the rest.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..graph.records import Graph, Samples
from ..losses.columns import Columns
from ..losses.factor import Rows, blocks
from ..rules.pullback import wide
from .quantities import Place, Quantity
from .schedule import Schedule, Step

_IN_ROWS = Samples(0)


@dataclass(frozen=True)
class Head:
    """Where the last layer is: its step, what goes in, and whether its weight is used elsewhere too."""

    step: int
    input: str
    width: int
    tied: bool


def find_head(schedule: Schedule) -> Head | None:
    """The last layer, if it is a plain linear one."""
    last = len(schedule.steps) - 1
    step = schedule.steps[last] if schedule.steps else None
    if step is None or step.operation.name != "linear" or step.operation.outputs[0] != schedule.graph.output:
        return None
    given = step.operation.by_argument
    if not _plain(schedule.graph, step, given):
        return None
    shared = {site.slot.argument: site.leaf for site in step.sites if site.leaf in schedule.shared}
    if shared and (set(shared) != {"weight"} or shared["weight"] not in schedule.parameters):
        return None
    return Head(last, given["input"], schedule.graph.values[given["input"]].shape[-1], bool(shared))


def _plain(graph: Graph, step: Step, given: dict[str, str]) -> bool:
    """Rows of samples, (n, ..., d), times a matrix."""
    x, weight, out = graph.values[given["input"]], graph.values[given["weight"]], graph.values[graph.output]
    in_rows = x.samples == _IN_ROWS and out.samples == _IN_ROWS and x.shape[:-1] == out.shape[:-1]
    alone = sum(name == given["weight"] for _, name in step.operation.reads) == 1
    whole = 0 not in (*x.shape, *weight.shape)
    return in_rows and alone and whole and weight.samples is None and len(weight.shape) == 2 and len(out.shape) >= 2


class LastLayer:
    """The last layer on one chunk: x (n, positions, d), weight (K, d), and the factor of the output Hessian."""

    def __init__(self, head: Head, rows: Rows, x: Tensor, weight: Tensor, places: list[Place]):
        self.head, self.rows, self.weight, self.places = head, rows, weight, places
        self.x = x.reshape(len(x), -1, x.shape[-1])
        self.positions = tuple(x.shape[1:-1])

    @property
    def narrows(self) -> bool:
        """Whether fewer columns do behind it."""
        return self.weight.shape[0] - 1 > self.head.width

    @cached_property
    def _orthogonal(self) -> tuple[Tensor | None, Tensor]:
        """Q (n, positions, K, d), if it is needed, and R (n, positions, d, d) with Q R = S^T W."""
        mode = "reduced" if self.head.tied else "r"
        found = [torch.linalg.qr(self._times(i), mode=mode) for i in range(len(self.x))]
        R = torch.stack([r for _, r in found])
        return (torch.stack([q for q, _ in found]) if self.head.tied else None), R

    def _times(self, sample: int) -> Tensor:
        weight = wide(self.weight)
        product = self.rows.times(weight, sample)
        return product.cpu() if product.device.type == "mps" else product  # which has no QR

    @cached_property
    def _live(self) -> Tensor:
        """S Q: (n, positions, d, K)."""
        Q, _ = self._orthogonal
        assert Q is not None
        return self.rows.apply(Q.permute(0, 3, 1, 2).to(self.x.device)).transpose(1, 2)

    def columns(self) -> Columns:
        """The columns that go on: at x, or at the outputs where the weight is tied."""
        made = self._live if self.head.tied else self._orthogonal[1].to(self.x.device)
        return blocks(made.to(self.x.dtype), self.positions)

    def ending(self) -> Columns:
        """The columns that end here, at the outputs: all, or S (1 - Q Q^T) where the weight is tied."""
        n, positions, K = self.rows.diagonal.shape
        identity = torch.eye(K, dtype=self.x.dtype, device=self.x.device).expand(n, positions, K, K)
        if self.head.tied:
            Q, _ = self._orthogonal
            assert Q is not None
            identity = identity - Q.to(self.x) @ Q.to(self.x).mT
        made = self.rows.apply(identity.transpose(1, 2)).transpose(1, 2)  # (n, positions, K, K)
        return blocks(made.to(self.x.dtype), self.positions)

    def own(self, quantity: Quantity[Any]) -> Iterator[tuple[str, Tensor]] | None:
        """What the columns that end here come to, for weight and bias; None if the quantity knows no closed form."""
        D = self.rows.diagonal  # (n, positions, K)
        if self.head.tied:
            D = (D - self._live.square().sum(2)).clamp_min_(0)
        found = []
        for place in self.places:
            made = quantity.of_last_layer(D, self.x if place.use.argument == "weight" else None)
            if made is None:
                return None
            found.append((place.leaf.parameter, place.leaf.back(made) if made.dim() else made))
        return iter(found)

    def passed_on(self, S: Tensor) -> Tensor:
        """Columns at the outputs, (n, R, *positions, K), as they arrive at x."""
        return S @ self.weight
