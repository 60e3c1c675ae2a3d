"""Whatever draws random numbers says what a seed is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import minsharp as ms

SEEDED: dict[str, Callable[[nn.Module, Any, Any], Any]] = {
    "trace": lambda m, data, seed: ms.hessian_trace(m, data, tolerance=0.1, seed=seed),
    "exact": lambda m, data, seed: ms.hessian_trace(m, data, seed=seed),
    "minimum": lambda m, data, seed: ms.minimum_sharpness(m, data, tolerance=0.1, seed=seed),
    "compare": lambda m, data, seed: ms.compare(m, data, measures=["trace"], seed=seed),
    "robustness": lambda m, data, seed: ms.noise_robustness(m, data, sigmas=[0.1], seed=seed),
    "verify": lambda m, data, seed: ms.verify(m, data, ms.minimum_sharpness(m, data), seed=seed),
    "rescaling": lambda m, data, seed: ms.symmetries(m, data[0]).random(seed),
    "frames": lambda m, data, seed: ms.symmetries(m, data[0], scope="full").random(seed),
}


@pytest.mark.parametrize("seed", [1.5, "a", None, True, 1 << 70])
@pytest.mark.parametrize("call", SEEDED)
def test_what_is_no_seed(call: str, seed: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with pytest.raises(ms.InputError, match=r"seed=.*: expected a whole number of at most 64 bits, as in seed=1"):
        SEEDED[call](model, (torch.randn(6, 4), torch.arange(6) % 3), seed)
