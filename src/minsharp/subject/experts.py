"""Mixtures of experts as transformers has them, and which of its ways to compute them can be read."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_NAME, _READABLE = "_experts_implementation", "batched_mm"


@contextmanager
def experts_readable(module: nn.Module) -> Iterator[None]:
    """Every token multiplied by the weights of its own experts, in any precision.

    The others (a fused kernel, which takes no float64, or a loop over the experts that are hit) compute the same.
    """
    before = [(config, getattr(config, _NAME)) for config in _configurations(module)]
    try:
        for config, _ in before:
            setattr(config, _NAME, _READABLE)
        yield
    finally:
        for config, name in reversed(before):
            setattr(config, _NAME, name)


def _configurations(module: nn.Module) -> list[Any]:
    """Those that layers of experts look at, each once."""
    layers = [vars(m) for m in module.modules() if "_is_expert_parallel" in vars(m)]
    found = {id(held["config"]): held["config"] for held in layers if "config" in held}
    return [config for config in found.values() if hasattr(config, _NAME)]
