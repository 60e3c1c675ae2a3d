"""How many bits each tensor or channel gets, so that rounding costs the least at a given size.

What each number of bits costs a group of weights is in `prices`. Choosing one number for each group under a budget of
bits is a knapsack: `minsharp.solve.knapsack` finds the optimum, also for thousands of channels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from ..errors import InputError
from ..frozen import Frozen
from ..losses import Criterion
from ..network.network import Network
from ..results.curvature import Diagonal, MatrixName
from ..results.files import Saved
from ..subject.batches import Data
from ..subject.model import Pattern
from ..subject.modes import plain_mode
from ..subject.outputs import Pick
from ..text import count, number, plain_table
from .noise import Noise, is_size
from .prices import OF_THE_LOSS, Asked, Costs, Per, Prices, prices

PREDICTED: Mapping[MatrixName, str] = {
    "hessian": "increase of the loss",
    "ggn": "increase of the loss",
    "jacobian": "squared change of the outputs, halved",
    "margin": "squared noise to margin, halved",
}
"""What half of the curvature times the squared noise is, by the kind of curvature."""
COARSE = 2  # bits for which curvature predicts too little
SHOWN = 3  # names


@dataclass(frozen=True, repr=False)
class BitAllocation(Frozen, Saved):
    """Bits for every tensor with two axes or more, and the increase of the loss that they are predicted to cost.

    Under curvature of another kind ``increase`` is in its units: see ``predicted``.

    ``bits`` has a number for each tensor, or one for each of its output channels; it goes into `noise_robustness` and
    `predicted_accuracy`. ``increase`` is the sum of ``by_parameter``; ``uniform`` holds the same for one number of bits
    throughout; ``mean_bits`` is over weights. No assignment within the budget has an increase below ``lower_bound``:
    the two are equal where the optimum was found. It always is but for thousands of groups whose costs are alike.
    ``costs`` says what the increase is predicted from; ``warning`` where that is not to be trusted.
    """

    bits: Mapping[str, int | tuple[int, ...]]
    increase: float
    by_parameter: Mapping[str, float]
    mean_bits: float
    budget: float
    sizes: Mapping[str, int]
    uniform: Mapping[str, float] = field(repr=False)
    noise: Noise = "max"
    lower_bound: float = 0.0
    curvature: MatrixName = "hessian"
    costs: Costs = "curvature"

    def check_whole(self) -> None:
        """All fields speak of the same parameters, and channels have the same number of weights."""
        if not set(self.bits) == set(self.by_parameter) == set(self.sizes) or not self.bits:
            raise ValueError("its fields speak of different parameters")
        for name, each in self.bits.items():
            rows, size = (1 if isinstance(each, int) else len(each)), self.sizes[name]
            if not (rows and size > 0 and size % rows == 0):
                raise ValueError(f"{size} weights of {name!r} do not make {rows} channels")

    @property
    def per(self) -> Per:
        """What has bits of its own."""
        return "tensor" if all(isinstance(each, int) for each in self.bits.values()) else "channel"

    @property
    def predicted(self) -> str:
        """What ``increase`` is."""
        return PREDICTED["hessian" if self.costs == "measured" else self.curvature]

    @property
    def warning(self) -> str:
        """Why the increase is not to be trusted, and what to do; empty where curvature alone is not asked too much."""
        each = [(name, (b,) if isinstance(b, int) else b) for name, b in self.bits.items()]
        coarse = [name for name, found in each if self.costs == "curvature" and min(found) <= COARSE]
        if not coarse:
            return ""
        told = ", ".join(coarse[:SHOWN]) + (f" and {len(coarse) - SHOWN} more" if len(coarse) > SHOWN else "")
        ways = ["measure the result with noise_robustness", f"leave {COARSE} out of the choices"]
        if self.per == "tensor" and self.curvature in OF_THE_LOSS:
            ways.append('ask for costs="both" with labelled data')
        return (
            f"{COARSE} bits in {told}: what curvature alone predicts there can be a hundred times too low. To be sure, "
            f"{', '.join(ways[:-1])} or {ways[-1]}"
        )

    @property
    def size(self) -> int:
        """Bytes for the weights that have bits, rounded up."""
        return -(-sum(_total(self.bits[name], size) for name, size in self.sizes.items()) // 8)

    def mean_of(self, name: str) -> float:
        """The mean bits of one parameter's weights."""
        return _total(self.bits[name], self.sizes[name]) / self.sizes[name]

    def shown(self, name: str) -> str:
        """The bits of one parameter: '4', or of channels that differ '2-8, mean 3.9'."""
        each = self.bits[name]
        low, high = (each, each) if isinstance(each, int) else (min(each), max(each))
        return str(low) if low == high else f"{low}-{high}, mean {number(self.mean_of(name), 2)}"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json; ``bits`` by parameter name is what toolkits take."""
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(self).items()}
        return {**plain, "per": self.per, "bytes": self.size, "warning": self.warning}

    def __repr__(self) -> str:
        rows = [(n, self.shown(n), count(self.sizes[n]), number(self.by_parameter[n])) for n in self.bits]
        total = ("total", number(self.mean_bits, 4), count(sum(self.sizes.values())), number(self.increase))
        head = (
            f"{number(self.mean_bits, 4)} bits per weight (at most {number(self.budget, 4)}), {count(self.size)} bytes"
        )
        table = plain_table(("parameter", "bits", "weights", "increase"), rows, total=total)
        told = f"{head}; predicted {self.predicted} {number(self.increase)}\n{table}"
        return f"{told}\n{self.warning}" if self.warning else told


@plain_mode()
def allocate_bits(
    model: nn.Module | Network,
    data: Data | Diagonal,
    loss: Criterion | None = None,
    *,
    bits: Sequence[int] = (2, 3, 4, 8),
    budget: float | None = None,
    size: int | None = None,
    noise: Noise = "max",
    per: Per = "tensor",
    costs: Costs | None = None,
    diagonal: Diagonal | None = None,
    curvature: MatrixName = "hessian",
    parameters: Pattern = None,
    outputs: Pick = None,
    class_axis: int | None = None,
    tolerance: float = 0.0,
    seed: int = 0,
    memory: int | None = None,
    progress: bool = False,
) -> BitAllocation:
    """The bits for each tensor or channel that are predicted to cost the least loss: the optimum over all assignments.

    ``bits`` are the choices, ``budget`` the mean number of bits per weight (4, if nothing is said), or ``size`` the
    bytes that all weights may take together. ``noise="max"`` rounds with one scale per tensor, "max-per-channel" with
    one per output channel. ``per="channel"`` chooses bits for each output channel (along the first axis) instead of
    each tensor. The first axis is that of what comes out for linear layers and convolutions, also in groups, and of
    words for embeddings; for transposed convolutions it is what goes in.
    Biases, and other parameters with fewer than two axes, stay as they are.

    ``costs`` says what the increase of the loss is predicted from: "curvature" is half of sum_T step_T²/12
    sum_{i in T} h_i, of second order, and far too low where rounding is coarse; "measured" adds up what rounding each
    tensor alone does to the loss, a run over the data (with targets) for each tensor and number of bits; "both" adds
    the two. Unless given it is "both" where it can be, with labelled data and bits for tensors, else "curvature", whose
    result carries a ``warning`` where it has chosen 2 bits. ``data`` may also be a result of `hessian_diagonal`, of any
    curvature; beside labelled data it goes in as ``diagonal``. The other arguments are those of `hessian_diagonal`.
    Whatever it is made of, a sum over tensors is a prediction: check with
    `noise_robustness(..., bits=[result.bits])`.

    What matters most gets the most bits:

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> result = allocate_bits(model, torch.randn(64, 4), budget=4.0)
    >>> result.mean_bits <= 4.0 and result.increase <= result.uniform["4"]
    True
    """
    asked = Asked(bits, noise, per, costs, curvature, parameters, diagonal)
    asked = replace(asked, bits=asked.choices)  # they may come as a generator
    checked_limit(list(asked.bits), budget, size)
    options: Any = {"outputs": outputs, "class_axis": class_axis, "tolerance": tolerance, "seed": seed}
    found = prices(model, data, loss, asked, memory=memory, progress=progress, **options)
    return allocated(found, budget, size)


def allocated(prices: Prices, budget: float | None = None, size: int | None = None) -> BitAllocation:
    """The best assignment at these prices: mean bits per weight, or bytes; four bits where nothing is said."""
    import numpy as np

    from ..solve.knapsack import cheapest

    budget = 4.0 if budget is None and size is None else budget
    costs, sizes, choices, per = prices.costs, prices.sizes, prices.choices, prices.per
    limit, total = _limit(choices, sizes, budget, size), sum(sizes.values())
    weights = torch.cat([torch.full((len(c),), sizes[n] // len(c), dtype=torch.float64) for n, c in costs.items()])
    both = torch.cat(list(costs.values())).numpy(), np.outer(weights.numpy(), choices)
    selection = cheapest(*both, limit)
    chosen, parts = dict[str, int | tuple[int, ...]](), dict[str, float]()
    for name, places in zip(
        costs, torch.from_numpy(selection.places).split(list(map(len, costs.values()))), strict=True
    ):
        found = tuple(choices[k] for k in places.tolist())
        chosen[name] = found if per == "channel" else found[0]
        parts[name] = float(costs[name].gather(1, places[:, None]).sum())
    increase = sum(parts.values())
    return BitAllocation(
        chosen,
        increase,
        parts,
        mean_bits=sum(_total(chosen[name], n) for name, n in sizes.items()) / total,
        budget=limit / total if budget is None else float(budget),
        sizes=sizes,
        uniform={str(b): sum(float(each[:, k].sum()) for each in costs.values()) for k, b in enumerate(choices)},
        noise=prices.noise,
        lower_bound=increase if selection.bound == selection.cost else selection.bound,
        curvature=prices.curvature,
        costs=prices.by,
    )


def _total(bits: int | tuple[int, ...], size: int) -> int:
    """The bits that all weights of a parameter take."""
    return bits * size if isinstance(bits, int) else sum(bits) * (size // len(bits))


def checked_limit(choices: list[int], budget: float | None, size: int | None) -> None:
    """Refuse a budget or a size that no network's weights meet: this takes no measurement."""
    if budget is None and size is None:
        return
    given = f"budget={budget!r}, size={size!r}"
    if (budget is None) == (size is None):
        raise InputError(f"{given}: expected one of them, as in budget=4.0 (bits per weight) or size=100_000 (bytes)")
    if not is_size(budget if size is None else size) or (size is not None and size % 1):
        raise InputError(
            f"{given}: expected a number, as in budget=4.0 (bits per weight), or a whole one, as in size=100_000 "
            "(bytes)"
        )
    if budget is not None and not budget >= choices[0] * (1 - 1e-12):
        raise InputError(
            f"budget={budget!r} bits per weight: no assignment meets it. With {choices[0]} bits throughout, the fewest "
            f"of bits={choices}, each weight takes {choices[0]}"
        )


def _limit(choices: list[int], sizes: Mapping[str, int], budget: float | None, size: int | None) -> float:
    """The bits that all weights may take; refuses what no assignment meets."""
    checked_limit(choices, budget, size)
    weights = sum(sizes.values())
    limit = float(8 * size) if size is not None else float(budget or 0) * weights
    least = choices[0] * weights
    if not limit >= least * (1 - 1e-12):
        raise InputError(
            f"size={size!r} bytes: no assignment meets it. With {choices[0]} bits throughout, the fewest of "
            f"bits={choices}, {weights} weights take {-(-least // 8)} bytes"
        )
    return limit
