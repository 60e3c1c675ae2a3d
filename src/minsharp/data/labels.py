"""Label noise: the labels of some samples permuted."""

import torch
from torch import Tensor

from ..errors import InputError


def permute_labels(labels: Tensor, ratio: float, seed: int) -> Tensor:
    """The labels, those of a random fraction permuted among themselves: how often each label occurs stays as it was.

    With one seed, a larger fraction includes the samples of a smaller one.

    >>> labels = torch.arange(10)
    >>> torch.equal(permute_labels(labels, 0.0, seed=1), labels)
    True
    >>> permute_labels(labels, 0.5, seed=1).sort().values.tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    if not 0 <= ratio <= 1:
        raise InputError(f"ratio={ratio}: expected a fraction of the labels, from 0 to 1")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(labels), generator=generator)[: round(ratio * len(labels))]
    shuffled = chosen[torch.randperm(len(chosen), generator=generator)]
    result = labels.clone()
    result[chosen] = labels[shuffled]
    return result
