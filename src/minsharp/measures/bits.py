"""How many bits each tensor gets, so that rounding costs the least at a given size.

Rounding tensor T to b bits has steps of max / (2^(b-1) - 1) and, on average, errors of variance step²/12, which raise
the loss by half of step²/12 sum_i h_i, h the diagonal of the Hessian. Choosing one b for each tensor under a budget of
bits is a knapsack: dynamic programming over the sizes that can be had, each at its least cost, finds the optimum.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ..curvature.hessian import hessian_diagonal
from ..errors import InputError
from ..frozen import Frozen
from ..losses import Criterion
from ..network.network import Network
from ..results.curvature import Diagonal, MatrixName
from ..results.files import Saved
from ..subject.batches import Data
from ..subject.model import Pattern, parameters_of
from ..subject.modes import plain_mode
from ..subject.outputs import Pick
from ..text import count, number, plain_table
from .noise import GROWING, Noise, checked_bits, is_size, levels, variance
from .program import curvatures


@dataclass(frozen=True, repr=False)
class BitAllocation(Frozen, Saved):
    """Bits for every tensor with two axes or more, and the increase of the loss that they are predicted to cost.

    ``increase`` is the sum of ``by_parameter``; ``uniform`` holds the same for one number of bits throughout;
    ``mean_bits`` is over weights. ``bits`` goes into `noise_robustness` and `predicted_accuracy`.
    """

    bits: Mapping[str, int]
    increase: float
    by_parameter: Mapping[str, float]
    mean_bits: float
    budget: float
    sizes: Mapping[str, int]
    uniform: Mapping[str, float] = field(repr=False)
    noise: Noise = "max"

    @property
    def size(self) -> int:
        """Bytes for the weights that have bits, rounded up."""
        return -(-sum(self.bits[name] * size for name, size in self.sizes.items()) // 8)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json; ``bits`` by parameter name is what toolkits take."""
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(self).items()}
        return {**plain, "bytes": self.size}

    def __repr__(self) -> str:
        rows = [(n, str(b), count(self.sizes[n]), number(self.by_parameter[n])) for n, b in self.bits.items()]
        total = ("total", number(self.mean_bits, 4), count(sum(self.sizes.values())), number(self.increase))
        head = (
            f"{number(self.mean_bits, 4)} bits per weight (at most {number(self.budget, 4)}), {count(self.size)} bytes"
        )
        table = plain_table(("parameter", "bits", "weights", "increase"), rows, total=total)
        return f"{head}; predicted increase of the loss {number(self.increase)}\n{table}"


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
    curvature: MatrixName = "hessian",
    parameters: Pattern = None,
    outputs: Pick = None,
    class_axis: int | None = None,
    tolerance: float = 0.0,
    seed: int = 0,
    memory: int | None = None,
    progress: bool = False,
) -> BitAllocation:
    """The bits for each tensor that are predicted to cost the least loss: the optimum over all assignments.

    ``bits`` are the choices, ``budget`` the mean number of bits per weight, or ``size`` the bytes that all weights may
    take together. ``noise="max"`` rounds with one scale per tensor, "max-per-channel" with one per output channel.
    Biases, and other parameters with fewer than two axes, stay as they are. ``data`` may also be a result of
    `hessian_diagonal`, of any curvature; the other arguments are its. The predicted
    increase is half of sum_T step_T²/12 sum_{i in T} h_i. It is of second order, and too low where rounding is coarse:
    check with `noise_robustness(..., bits=[result.bits])`.

    What matters most gets the most bits:

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> result = allocate_bits(model, torch.randn(64, 4), budget=4.0)
    >>> result.mean_bits <= 4.0 and result.increase <= result.uniform["4"]
    True
    """
    choices = _choices(bits)
    if noise not in GROWING:
        raise InputError(f"noise={noise!r}: expected 'max' or 'max-per-channel', the ways to quantize")
    measured: Any = data
    if not isinstance(measured, Diagonal):
        options: Any = {"outputs": outputs, "class_axis": class_axis, "memory": memory, "progress": progress}
        options |= {"tolerance": tolerance, "seed": seed}
        measured = hessian_diagonal(model, measured, loss, parameters=parameters, curvature=curvature, **options)
    held = parameters_of(model)
    blocks = {name: h for name, h in curvatures(measured, "neuron").items() if h.dim() > 1 and h.numel()}
    if not blocks:
        raise InputError(f"none of {list(measured.exact)} has two axes or more: there is nothing to give bits to")
    sizes = {name: h.numel() for name, h in blocks.items()}
    limit = _limit(choices, sizes, budget, size)
    costs = {n: _costs(n, h, held[n].detach().cpu().double(), choices, noise) for n, h in blocks.items()}
    chosen = _cheapest(list(costs.values()), [[b * n for b in choices] for n in sizes.values()], limit)
    found = {name: choices[k] for name, k in zip(costs, chosen, strict=True)}
    parts = {name: costs[name][k] for name, k in zip(costs, chosen, strict=True)}
    weights = sum(sizes.values())
    uniform = {str(b): sum(each[k] for each in costs.values()) for k, b in enumerate(choices)}
    mean = sum(found[name] * n for name, n in sizes.items()) / weights
    return BitAllocation(found, sum(parts.values()), parts, mean, limit / weights, sizes, uniform, noise)


def _choices(bits: Any) -> list[int]:
    """The numbers of bits to choose from, each once."""
    if not isinstance(bits, Iterable):
        raise InputError(f"bits={bits!r}: expected numbers of bits to choose from, as in bits=(2, 3, 4, 8)")
    return sorted({checked_bits(b) for b in bits})


def _costs(name: str, h: Tensor, weight: Tensor, choices: list[int], noise: Noise) -> list[float]:
    """What each number of bits costs a tensor; refuses what would gain from rounding."""
    found = [rounding_increase(h, weight, b, noise) for b in choices]
    if found[0] < 0:
        raise InputError(
            f"the curvature of '{name}' adds up to {float(h.sum()):.6g}, and rounding it would lower the loss: a sum "
            "that is not negative was expected. The Hessian of a smooth network may have one, and an estimate of it by "
            'chance: ask for curvature="ggn", which never has, or for a smaller tolerance'
        )
    return found


def _limit(choices: list[int], sizes: Mapping[str, int], budget: float | None, size: int | None) -> float:
    """The bits that all weights may take; refuses what no assignment meets."""
    if not choices:
        raise InputError("bits=(): expected some numbers of bits to choose from, as in bits=(2, 3, 4, 8)")
    given = f"budget={budget!r}, size={size!r}"
    if (budget is None) == (size is None):
        raise InputError(f"{given}: expected one of them, as in budget=4.0 (bits per weight) or size=100_000 (bytes)")
    if not is_size(budget if size is None else size):
        raise InputError(f"{given}: expected a number, as in budget=4.0 (bits per weight) or size=100_000 (bytes)")
    weights = sum(sizes.values())
    limit = float(8 * size) if size is not None else float(budget or 0) * weights
    least = choices[0] * weights
    if not limit >= least * (1 - 1e-12):
        asked = f"size={size!r} bytes" if size is not None else f"budget={budget!r} bits per weight"
        raise InputError(
            f"{asked}: no assignment meets it. With {choices[0]} bits throughout, the fewest of bits={choices}, "
            f"{weights} weights take {-(-least // 8)} bytes"
        )
    return limit


def rounding_increase(h: Tensor, weight: Tensor, bits: int, noise: Noise) -> float:
    """Half of step²/12 times the curvature h (*weight), summed over groups: what rounding a tensor adds to the loss."""
    return float((variance(weight, noise) * h).sum()) / (24 * levels(bits) ** 2)


def _cheapest(costs: list[list[float]], sizes: list[list[int]], limit: float) -> list[int]:
    """One choice from each row, their costs the least in total and their sizes within the limit.

    Row by row, all totals of size and cost that no other has both smaller, and which total and choice each came from.
    """
    import numpy as np

    size, cost = np.zeros(1, dtype=np.int64), np.zeros(1)
    steps = []
    for row_costs, row_sizes in zip(costs, sizes, strict=True):
        sums = (size[:, None] + np.array(row_sizes)).ravel()  # (totals, choices), flattened
        prices = (cost[:, None] + np.array(row_costs)).ravel()
        order = np.lexsort((prices, sums))
        least = np.minimum.accumulate(prices[order])
        kept = order[np.concatenate([[True], prices[order][1:] < least[:-1]])]
        kept = kept[sums[kept] <= limit * (1 + 1e-12)]
        size, cost = sums[kept], prices[kept]
        steps.append(np.divmod(kept, len(row_costs)))
    place, chosen = int(cost.argmin()), list[int]()
    for parents, choices in reversed(steps):
        chosen.append(int(choices[place]))
        place = int(parents[place])
    return chosen[::-1]
