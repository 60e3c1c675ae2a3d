"""Two published ways to balance layers before quantization, done by hand on pairs of layers with a ReLU between them.

Nagel et al. 2019 (cross-layer equalisation) make the largest weight into a channel as large as the largest out of it,
Stock et al. 2019 (equal norms) the same for norms; both go round the pairs until nothing moves.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Size = Callable[[Tensor], Tensor]
SWEEPS = 50


def largest(rows: Tensor) -> Tensor:
    """Of each row: Nagel et al."""
    return rows.abs().amax(1)


def norm(rows: Tensor) -> Tensor:
    """Of each row: Stock et al."""
    return rows.norm(dim=1)


def equalised(model: nn.Module, pairs: list[tuple[str, str]], size: Size) -> nn.Module:
    """A copy with the same outputs in which the two sides of every channel between a pair are equally large."""
    result = copy.deepcopy(model)
    with torch.no_grad():
        for _ in range(SWEEPS):
            moved = [_balance(result.get_submodule(a), result.get_submodule(b), size) for a, b in pairs]
            if max(moved, default=0.0) < 1e-4:
                break
    return result


def _balance(first: Any, second: Any, size: Size) -> float:
    """Scale the channels between two layers; the largest change of a factor."""
    out = first.weight.flatten(1)  # (channels, ...)
    alone = getattr(second, "groups", 1) == second.weight.shape[0] > 1  # depthwise: channels are its rows
    into = second.weight.flatten(1) if alone else second.weight.transpose(0, 1).flatten(1)
    factor = (size(into) / size(out)).sqrt()
    factor = torch.where(torch.isfinite(factor) & (factor > 0), factor, torch.ones_like(factor))
    first.weight.mul_(factor.view(-1, *[1] * (first.weight.dim() - 1)))
    if first.bias is not None:
        first.bias.mul_(factor)
    second.weight.div_(
        factor.view((-1, *[1] * (second.weight.dim() - 1)) if alone else (1, -1, *[1] * (second.weight.dim() - 2)))
    )
    return float((factor - 1).abs().max())
