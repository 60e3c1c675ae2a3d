"""Masks that keep the weights with the largest scores, as `torch.nn.utils.prune` takes them."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from ..errors import InputError
from .noise import is_size

PruningScope = Literal["global", "layer"]


def pruning_masks(scores: Mapping[str, Tensor], amount: float, *, scope: PruningScope = "global") -> dict[str, Tensor]:
    """A mask for each parameter: zero for the share ``amount`` of entries with the lowest scores, one for the others.

    ``scope="global"`` compares the scores of all parameters, "layer" those of each by itself. That share is pruned,
    rounded to the nearest number of entries as torch.nn.utils.prune does; of equal scores the first go. A mask goes to
    ``torch.nn.utils.prune.custom_from_mask(module, "weight", mask)``. Scores from `Diagonal.saliency` are the same
    whatever the scales of the network; those from magnitudes are not.

    >>> pruning_masks({"weight": torch.tensor([[3.0, 1.0], [2.0, 4.0]])}, 0.5)["weight"].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if not is_size(amount) or amount > 1:
        raise InputError(f"amount={amount!r}: expected the share to prune, between 0 and 1, as in amount=0.5")
    if scope not in ("global", "layer"):
        raise InputError(f"scope={scope!r}: expected 'global' or 'layer'")
    if not isinstance(scores, Mapping) or not all(isinstance(score, Tensor) for score in scores.values()):
        plain = {n: type(s).__name__ for n, s in scores.items()} if isinstance(scores, Mapping) else {}
        given = plain or type(scores).__name__
        raise InputError(f"scores={given}: expected a tensor for each parameter by name, as Diagonal.saliency gives")
    for name, score in scores.items():
        if not bool(torch.isfinite(score).all()):
            raise InputError(f"the scores of '{name}' are not all finite: there is no order among them")
    if scope == "layer":
        return {name: _mask(score.flatten(), amount).view_as(score) for name, score in scores.items()}
    if not scores:
        return {}
    flat = _mask(torch.cat([score.detach().double().flatten().cpu() for score in scores.values()]), amount)
    parts = flat.split([score.numel() for score in scores.values()])
    return {
        name: part.view(score.shape).to(score.device) for part, (name, score) in zip(parts, scores.items(), strict=True)
    }


def _mask(scores: Tensor, amount: float) -> Tensor:
    """One for all entries but the lowest, in single precision."""
    mask = torch.ones(scores.shape, device=scores.device)
    lowest = scores.argsort(stable=True)[: round(amount * scores.numel())]
    mask[lowest] = 0
    return mask
