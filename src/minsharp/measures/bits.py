"""How many bits each tensor or channel gets, so that rounding costs the least at a given size.

Rounding a group T of weights to b bits has steps of max / (2^(b-1) - 1) and, on average, errors of variance step²/12,
which raise the loss by half of step²/12 sum_i h_i, h the diagonal of the Hessian. Choosing one b for each group under a
budget of bits is a knapsack: `minsharp.solve.knapsack` finds the optimum, also for thousands of channels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..curvature.hessian import hessian_diagonal
from ..errors import InputError
from ..frozen import Frozen
from ..losses import Criterion
from ..network.network import Network
from ..results.curvature import Diagonal, MatrixName, Trace, weights_at
from ..results.files import Saved
from ..subject.batches import Data
from ..subject.model import Pattern
from ..subject.modes import plain_mode
from ..subject.outputs import Pick
from ..text import count, number, plain_table
from .noise import GROWING, Noise, checked_bits, finite, is_size, rounding_variance, variance
from .program import curvatures

Per = Literal["tensor", "channel"]
PERS: tuple[str, ...] = get_args(Per)
PREDICTED: Mapping[MatrixName, str] = {
    "hessian": "increase of the loss",
    "ggn": "increase of the loss",
    "jacobian": "squared change of the outputs, halved",
    "margin": "squared noise to margin, halved",
}
"""What half of the curvature times the squared noise is, by the kind of curvature."""


@dataclass(frozen=True, repr=False)
class BitAllocation(Frozen, Saved):
    """Bits for every tensor with two axes or more, and the increase of the loss that they are predicted to cost.

    Under curvature of another kind ``increase`` is in its units: see ``predicted``.

    ``bits`` has a number for each tensor, or one for each of its output channels; it goes into `noise_robustness` and
    `predicted_accuracy`. ``increase`` is the sum of ``by_parameter``; ``uniform`` holds the same for one number of bits
    throughout; ``mean_bits`` is over weights. No assignment within the budget has an increase below ``lower_bound``:
    the two are equal where the optimum was found. It always is but for thousands of groups whose costs are alike.
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
        return PREDICTED[self.curvature]

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
        return {**plain, "per": self.per, "bytes": self.size}

    def __repr__(self) -> str:
        rows = [(n, self.shown(n), count(self.sizes[n]), number(self.by_parameter[n])) for n in self.bits]
        total = ("total", number(self.mean_bits, 4), count(sum(self.sizes.values())), number(self.increase))
        head = (
            f"{number(self.mean_bits, 4)} bits per weight (at most {number(self.budget, 4)}), {count(self.size)} bytes"
        )
        table = plain_table(("parameter", "bits", "weights", "increase"), rows, total=total)
        return f"{head}; predicted {self.predicted} {number(self.increase)}\n{table}"


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

    ``bits`` are the choices, ``budget`` the mean number of bits per weight, or ``size`` the bytes that all weights may
    take together. ``noise="max"`` rounds with one scale per tensor, "max-per-channel" with one per output channel.
    ``per="channel"`` chooses bits for each output channel (along the first axis) instead of each tensor. The first axis
    is that of what comes out for linear layers and convolutions, also in groups, and of words for embeddings; for
    transposed convolutions it is what goes in.
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
    if per not in PERS:
        raise InputError(f"per={per!r}: expected 'tensor' or 'channel', what gets bits of its own")
    if noise not in GROWING:
        raise InputError(f"noise={noise!r}: expected 'max' or 'max-per-channel', the ways to quantize")
    measured: Any = data
    if isinstance(measured, Trace):
        raise InputError("bits need the diagonal, got a Trace: pass hessian_diagonal(model, data)")
    if not isinstance(measured, Diagonal):
        options: Any = {"outputs": outputs, "class_axis": class_axis, "memory": memory, "progress": progress}
        options |= {"tolerance": tolerance, "seed": seed}
        measured = hessian_diagonal(model, measured, loss, parameters=parameters, curvature=curvature, **options)
    held = finite(weights_at(measured, model))
    blocks = {name: h for name, h in curvatures(measured, "neuron").items() if h.dim() > 1 and h.numel()}
    if not blocks:
        raise InputError(f"none of {list(measured.exact)} has two axes or more: there is nothing to give bits to")
    sizes = {name: h.numel() for name, h in blocks.items()}
    limit = _limit(choices, sizes, budget, size)
    costs = {n: _costs(n, h, held[n].cpu().double(), choices, noise, per) for n, h in blocks.items()}
    mean = limit / sum(sizes.values()) if budget is None else float(budget)
    return _allocated(costs, sizes, choices, limit, per, budget=mean, noise=noise, curvature=measured.kind)


def _allocated(
    costs: Mapping[str, Tensor], sizes: Mapping[str, int], choices: list[int], limit: float, per: Per, **told: Any
) -> BitAllocation:
    """The best assignment, from what each number of bits costs: (groups, choices) of each parameter."""
    import numpy as np

    from ..solve.knapsack import cheapest

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
    total, increase = sum(sizes.values()), sum(parts.values())
    uniform = {str(b): sum(float(each[:, k].sum()) for each in costs.values()) for k, b in enumerate(choices)}
    mean = sum(_total(chosen[name], n) for name, n in sizes.items()) / total
    bound = increase if selection.bound == selection.cost else selection.bound
    return BitAllocation(chosen, increase, parts, mean, sizes=sizes, uniform=uniform, lower_bound=bound, **told)


def _total(bits: int | tuple[int, ...], size: int) -> int:
    """The bits that all weights of a parameter take."""
    return bits * size if isinstance(bits, int) else sum(bits) * (size // len(bits))


def _choices(bits: Any) -> list[int]:
    """The numbers of bits to choose from, each once."""
    if not isinstance(bits, Iterable):
        raise InputError(f"bits={bits!r}: expected numbers of bits to choose from, as in bits=(2, 3, 4, 8)")
    return sorted({checked_bits(b) for b in bits})


def _costs(name: str, h: Tensor, weight: Tensor, choices: list[int], noise: Noise, per: Per) -> Tensor:
    """What each number of bits costs each group, (groups, choices); refuses those that would gain from rounding."""
    parts = (variance(weight, noise) * h).flatten(1).sum(1)
    parts = parts if per == "channel" else parts.sum(0, keepdim=True)
    if bool((parts < 0).any()):
        k = int(parts.argmin())
        what, total = (f"channel {k} of '{name}'", h[k].sum()) if per == "channel" else (f"'{name}'", h.sum())
        raise InputError(
            f"the curvature of {what} adds up to {float(total):.6g}, and rounding it would lower the loss: a sum "
            "that is not negative was expected. The Hessian of a smooth network may have one, and an estimate of it by "
            'chance: ask for curvature="ggn", which never has, or for a smaller tolerance'
        )
    return parts[:, None] * torch.tensor([rounding_variance(b) / 2 for b in choices], dtype=torch.float64)


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
    return float((variance(weight, noise) * h).sum()) * rounding_variance(bits) / 2
