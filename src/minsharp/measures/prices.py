"""What each number of bits costs each tensor or channel: by curvature, by trying it, or both added up.

Rounding a group T of weights to b bits has steps of max / (2^(b-1) - 1) and, on average, errors of variance step²/12,
which raise the loss by half of step²/12 sum_i h_i, h the diagonal of the Hessian ("curvature"). That is of second
order, and far too low where rounding is coarse. Rounding the tensor alone raises the loss by what a run of the network
says ("measured"): exact where it is large, and chance where it is small. The sum of the two ranks random assignments
better than either (docs/hardware-results.md).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..curvature.hessian import Choice, hessian_diagonal
from ..errors import InputError, NegativeError
from ..losses import Criterion
from ..losses.next_token import warn_unshifted
from ..network.network import Network
from ..network.reader import read
from ..results.curvature import Diagonal, MatrixName, Trace, weights_at
from ..subject.batches import Batch, Data, batches, first_of
from ..subject.inputs import tensors_of
from ..subject.model import Pattern, counted
from ..subject.outputs import Pick
from ..subject.shards import is_read_once
from .alone import UNLABELLED, rises
from .noise import GROWING, Noise, checked_bits, finite, rounding_variance, variance
from .program import curvatures

Per = Literal["tensor", "channel"]
PERS: tuple[str, ...] = get_args(Per)
Costs = Literal["curvature", "measured", "both"]
COSTS: tuple[str, ...] = get_args(Costs)
OF_THE_LOSS = ("hessian", "ggn")
"""The kinds of curvature that are increases of the loss, as what is measured is."""


@dataclass(frozen=True)
class Prices:
    """What each of the choices costs each group, (groups, choices) of each parameter, and how that was found."""

    costs: Mapping[str, Tensor]
    sizes: Mapping[str, int]
    choices: list[int]
    noise: Noise
    per: Per
    by: Costs
    curvature: MatrixName


@dataclass(frozen=True)
class Asked:
    """What a caller asks for, as it comes."""

    bits: Any
    noise: Noise
    per: Per
    costs: Costs | None
    curvature: MatrixName
    parameters: Pattern = None
    diagonal: Diagonal | None = None

    def whole(self, data: Any) -> tuple["Asked", list[int]]:
        """The same where the diagonal comes in place of data, and the choices; refuses what has no prices."""
        if isinstance(data, Trace):
            raise InputError("bits need the diagonal, got a Trace: pass hessian_diagonal(model, data)")
        if isinstance(data, Diagonal) and self.costs not in (None, "curvature"):
            raise InputError(
                f"costs={self.costs!r} needs data with targets, got a Diagonal: pass it beside the data, as in "
                f"allocate_bits(model, data, diagonal=diagonal, costs={self.costs!r})"
            )
        if isinstance(data, Diagonal) and self.diagonal is not None:
            raise InputError(
                "two diagonals, one in place of data: pass one of them, as in allocate_bits(model, data, "
                "diagonal=diagonal), or allocate_bits(model, diagonal)"
            )
        asked = replace(self, diagonal=data) if isinstance(data, Diagonal) else self
        asked.check()
        return asked, asked.choices

    def check(self) -> None:
        """Refuse names that are not known, and what does not go together."""
        if self.per not in PERS:
            raise InputError(f"per={self.per!r}: expected 'tensor' or 'channel', what gets bits of its own")
        if self.noise not in GROWING:
            raise InputError(f"noise={self.noise!r}: expected 'max' or 'max-per-channel', the ways to quantize")
        if self.costs not in (None, *COSTS):
            raise InputError(f"costs={self.costs!r}: expected 'curvature', 'measured' or 'both'")
        if self.costs not in (None, "curvature") and self.per == "channel":
            raise InputError(
                f'costs={self.costs!r} takes a run of the network for each group, and goes with per="tensor": ask for '
                'costs="curvature" with per="channel"'
            )
        if not isinstance(self.diagonal, Diagonal | None):
            raise InputError(f"diagonal is a {type(self.diagonal).__name__}: expected hessian_diagonal(model, data)")
        if self.costs == "both" and self.kind not in OF_THE_LOSS:
            raise InputError(f"costs='both' adds up increases of the loss, which curvature={self.kind!r} does not give")

    @property
    def kind(self) -> MatrixName:
        """The kind of curvature."""
        return self.curvature if self.diagonal is None else self.diagonal.kind

    @property
    def choices(self) -> list[int]:
        """The numbers of bits to choose from, each once."""
        if not isinstance(self.bits, Iterable):
            raise InputError(f"bits={self.bits!r}: expected numbers of bits to choose from, as in bits=(2, 3, 4, 8)")
        found = sorted({checked_bits(b) for b in self.bits})
        if not found:
            raise InputError("bits=(): expected some numbers of bits to choose from, as in bits=(2, 3, 4, 8)")
        return found

    def by(self, labelled: bool) -> Costs:
        """What prices are made of: what was said, else all that there is."""
        if self.costs is not None:
            return self.costs
        return "both" if labelled and self.per == "tensor" and self.kind in OF_THE_LOSS else "curvature"


def prices(
    model: nn.Module | Network,
    data: Data | Diagonal,
    loss: Criterion | None,
    asked: Asked,
    *,
    outputs: Pick = None,
    class_axis: int | None = None,
    tolerance: float = 0.0,
    seed: int = 0,
    memory: int | None = None,
    progress: bool = False,
) -> Prices:
    """Measure what the prices are made of."""
    asked, choices = asked.whole(data)
    kind, pattern, estimate = asked.curvature, asked.parameters, {"tolerance": tolerance, "seed": seed}
    Choice(pattern, kind, "parameters", outputs, class_axis, tolerance, seed, memory, progress).check()
    given: Any = None if isinstance(data, Diagonal) else data
    by, network = asked.costs or "curvature", model
    if given is not None and asked.costs != "curvature":
        first, given = _peeked(given)
        by = asked.by(labelled=first.targets is not None)
        if by != "curvature":
            if first.targets is None:
                raise InputError(UNLABELLED)
            network = read(model, first.inputs, outputs=outputs, class_axis=class_axis)
    diagonal, curved_here = asked.diagonal, by != "measured" and asked.diagonal is None
    if curved_here:
        given = list(given) if by == "both" and is_read_once(given) else given  # it is gone through once more
        options: Any = {"outputs": outputs, "class_axis": class_axis} if network is model else {}
        options |= {"parameters": pattern, "curvature": kind, "memory": memory, "progress": progress, **estimate}
        diagonal = hessian_diagonal(network, given, loss, **options)
    weights = _weights(network, pattern, None if by == "measured" else diagonal)
    parts = []
    if by != "measured" and diagonal is not None:
        parts.append(_curved(diagonal, weights, choices, asked))
    if by != "curvature" and isinstance(network, Network):
        if loss is None and not curved_here:
            warn_unshifted(tensors_of(first.inputs), first.targets)
        parts.append(rises(network, given, loss, list(weights), choices, asked.noise, progress))
    costs = {name: torch.stack([part[name] for part in parts]).sum(0) for name in weights}
    sizes = {name: weight.numel() for name, weight in weights.items()}
    return Prices(costs, sizes, choices, asked.noise, asked.per, by, asked.kind)


def _peeked(data: Data) -> tuple[Batch, Any]:
    """The first batch, and the data, which can be gone through as often as before."""
    first, stream = first_of(batches(data))
    return first, (batch.given for batch in stream) if is_read_once(data) else data


def _weights(model: nn.Module | Network, pattern: Pattern, diagonal: Diagonal | None) -> dict[str, Tensor]:
    """The tensors that get bits: of those that were measured, or that count, all with two axes or more."""
    if diagonal is not None:
        found: Mapping[str, Tensor] = weights_at(diagonal, model)
        found = found if pattern is None else {name: found[name] for name in counted(found, pattern)}
    else:
        held = model.parameters if isinstance(model, Network) else {}
        found = {name: held[name].detach() for name in counted(held, pattern)}
    chosen = {n: w.cpu().double() for n, w in finite(found).items() if w.dim() > 1 and w.numel()}
    if not chosen:
        raise InputError(f"none of {list(found)} has two axes or more: there is nothing to give bits to")
    return chosen


def _curved(diagonal: Diagonal, weights: Mapping[str, Tensor], choices: list[int], asked: Asked) -> dict[str, Tensor]:
    """Half of the curvature times step²/12; refuses groups that would gain from rounding."""
    blocks = curvatures(diagonal, "neuron")
    return {name: _costs(name, blocks[name], weight, choices, asked) for name, weight in weights.items()}


def _costs(name: str, h: Tensor, weight: Tensor, choices: list[int], asked: Asked) -> Tensor:
    """What each number of bits costs each group, (groups, choices)."""
    parts = (variance(weight, asked.noise) * h).flatten(1).sum(1)
    parts = parts if asked.per == "channel" else parts.sum(0, keepdim=True)
    if bool((parts < 0).any()):
        what = f"channel {int(parts.argmin())} of '{name}'" if asked.per == "channel" else f"'{name}'"
        raise NegativeError(
            f"the curvature of {what}, times its noise, adds up to {float(parts.min()):.6g}, and rounding it would "
            "lower the loss: a sum that is not negative was expected. The Hessian of a smooth network may have one, "
            'and an estimate of it by chance: ask for curvature="ggn", which never has, or for a smaller tolerance'
        )
    return parts[:, None] * torch.tensor([rounding_variance(b) / 2 for b in choices], dtype=torch.float64)


def rounding_increase(h: Tensor, weight: Tensor, bits: int, noise: Noise) -> float:
    """Half of step²/12 times the curvature h (*weight), summed over groups: what rounding a tensor adds to the loss."""
    return float((variance(weight, noise) * h).sum()) * rounding_variance(bits) / 2
