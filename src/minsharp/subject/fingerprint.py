"""What tells tensors apart, several times faster than a cryptographic hash: for identity, not for security."""

from hashlib import blake2b

import torch
from torch import Tensor

_STRETCH = 64
"""Words of 32 bits that one sum is made of."""
_FACTORS = torch.tensor([(k * 0x9E3779B97F4A7C15 >> 33) & 0x7FFFFFFF | 1 for k in range(1, _STRETCH + 1)])
_TOGETHER = 1 << 10
"""Sums at a time: what they are made of stays in the cache."""


def fingerprint(tensor: Tensor) -> str:
    """Sixteen hexadecimal digits of a tensor's type, shape and values, the same on every device and in every process.

    Each stretch of words goes in as their sum with fixed factors, modulo 2^64: other words have another sum but for one
    case in 2^31, whether entries are exchanged, negated or rounded.
    """
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    end = len(data) // (4 * _STRETCH) * (4 * _STRETCH)
    whole = data[:end] if data.storage_offset() % 4 == 0 else data[:end].clone()
    parts = whole.view(torch.int32).view(-1, _STRETCH).split(_TOGETHER)
    digest = blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=8)
    for part in parts:
        digest.update((part.long() * _FACTORS).sum(1).numpy().data)
    digest.update(data[end:].numpy().data)
    return digest.hexdigest()
