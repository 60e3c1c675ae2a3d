"""What of a model, and of the process, has to be as before; and how two models differ."""

from typing import Any

import torch
from torch import Tensor, nn


def unwrapped(model: Any) -> nn.Module:
    """The network inside torch.compile and DataParallel."""
    model = getattr(model, "_orig_mod", model)
    inner: nn.Module = model.module if isinstance(model, nn.DataParallel) else model
    return inner


def spread(old: nn.Module, new: nn.Module) -> float:
    """The largest factor, or its inverse, between the parameters of two networks."""
    new = unwrapped(new)
    largest = 1.0
    for a, b in zip(old.parameters(), new.parameters(), strict=True):
        moved = (a != 0) & (b != 0)
        if bool(moved.any()):
            ratio = (b[moved] / a[moved]).abs()
            largest = max(largest, float(ratio.max()), float(1 / ratio.min()))
    return largest


def snapshot(model: nn.Module) -> dict[str, Any]:
    modules = list(model.modules())
    return {
        "mode": [m.training for m in modules],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "parameters": [p.detach().clone() for p in model.parameters()],
        "identity": [id(p) for p in model.parameters()],
        "gradients": [p.grad is None for p in model.parameters()],
        "buffers": [b.clone() for b in model.buffers()],
        "hooks": [[len(vars(m)[k]) for k in sorted(vars(m)) if k.endswith("hooks")] for m in modules],
        "attributes": [sorted(vars(m)) for m in modules],
        "random state": torch.get_rng_state(),
        "grad mode": torch.is_grad_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "default type": str(torch.get_default_dtype()),
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
