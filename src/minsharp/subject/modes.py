"""What is switched while a model is read or run, and switched back: modes, generators, logs, kernels.

Modes of modules, logs, warnings and generators belong to the whole process, so only one thread at a time may have them
otherwise: every context manager here that touches them holds ``LOCK``.
"""

import copy
import logging
import os
import random
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from operator import index
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..errors import InputError
from .experts import experts_readable

_BY_NUMBER = "use_mm_for_euclid_dist_if_necessary"
_AUTOCAST = ("cpu", "cuda", "mps", "xpu")


class _Lock:
    """A re-entrant lock that a forked process finds open, whoever held it before the fork."""

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    @property
    def held(self) -> bool:
        """Whether it is this thread that holds it."""
        return self._lock._is_owned()  # type: ignore[attr-defined]

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


LOCK = _Lock()
"""Held wherever a model's tensors or modes are looked at or changed: torch.export puts tensors of its own into it."""


def seeded(seed: int) -> torch.Generator:
    """A generator that starts from a seed; refuses what is none.

    >>> float(torch.rand(1, generator=seeded(3))) == float(torch.rand(1, generator=torch.Generator().manual_seed(3)))
    True
    """
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not -(1 << 63) <= index(seed) < 1 << 64:
        raise InputError(f"seed={seed!r}: expected a whole number of at most 64 bits, as in seed=1")
    return torch.Generator().manual_seed(index(seed))


@contextmanager
def plain_mode() -> Iterator[None]:
    """As if no autocast, no_grad, inference mode or default device were in force around the call."""
    with ExitStack() as stack:
        for device in _AUTOCAST:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        if torch.get_default_device().type == "meta":  # any other is one that forward may count on
            stack.enter_context(torch.device("cpu"))
        yield


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Every submodule in eval mode, and afterwards as it was, whatever forward keeps in it; no other thread reads."""
    with LOCK, experts_readable(module):
        kept = [_Kept(m) for m in module.modules()]
        try:
            if any(part.keeps_tensors for part in kept):
                forget_made(module)
            with suppress(NotImplementedError):  # what torch.export made has no modes
                module.eval()
            yield
        finally:
            for before in kept:
                before.restore()


def forget_made(module: nn.Module) -> None:
    """Let modules drop what they have made of their parameters for evaluation, and keep: ``train`` is where they do."""
    modes = [(part, part.training) for part in module.modules()]
    with suppress(NotImplementedError):  # what torch.export made has no modes
        module.train()
        module.train(modes[0][1])
    for part, mode in modes:
        part.training = mode


class _Kept:
    """The attributes of a module, what its lists and dicts hold, and the values of its buffers."""

    def __init__(self, module: nn.Module):
        self.module = module
        self.attributes = dict(vars(module))
        self.held = [(value, copy.copy(value)) for value in self.attributes.values() if type(value) in (list, dict)]
        buffers = [b for b in module._buffers.values() if b is not None and not b.is_inference()]
        self.buffers = [(b, b._version, b.detach().clone()) for b in buffers]

    @property
    def keeps_tensors(self) -> bool:
        """Whether the module has tensors that are neither parameters nor buffers: what it once made of parameters."""
        own = [value for name, value in self.attributes.items() if name not in ("_parameters", "_buffers")]
        items = [list(v.values()) if isinstance(v, dict) else v if isinstance(v, list) else [v] for v in own]
        return any(isinstance(item, torch.Tensor) for some in items for item in some)

    def restore(self) -> None:
        """Undo every change; what did not change is not touched."""
        for held, before in (*self.held, (vars(self.module), self.attributes)):
            if _items(held) != _items(before):
                held.clear()
                held.extend(before) if isinstance(held, list) else held.update(before)
        for buffer, version, value in self.buffers:
            if buffer._version != version:
                with torch.no_grad():
                    buffer.copy_(value)


def _items(held: Any) -> list[tuple[Any, int]]:
    """What a list or a dict holds, in order: places or names, and which objects."""
    return [(key, id(value)) for key, value in (held.items() if isinstance(held, dict) else enumerate(held))]


@contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Whatever draws random numbers inside, the generators come back as they were."""
    devices = [device] if device.type == "cuda" else []
    with LOCK:
        numpy = sys.modules.get("numpy")
        python, array = random.getstate(), None if numpy is None else numpy.random.get_state()
        try:
            with torch.random.fork_rng(devices=devices):
                yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(array)


@contextmanager
def quiet_export() -> Iterator[None]:
    """Without torch.export's warnings and logs about its own insides, or fused kernels that have no derivative."""
    with LOCK, warnings.catch_warnings(), without_fast_path(), masks_as_given(), _unprinted(), _Distances():
        log = logging.getLogger("torch")
        level = log.level
        warnings.simplefilter("ignore")
        log.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            log.setLevel(level)


class _Distances(TorchFunctionMode):
    """torch.cdist looks how many rows there are, for speed alone: here it takes differences for any number of them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.cdist:
            given = dict(zip(("x1", "x2", "p", "compute_mode"), args, strict=False)) | (kwargs or {})
            if given.get("compute_mode", _BY_NUMBER) == _BY_NUMBER:
                return func(**given | {"compute_mode": "donot_use_mm_for_euclid_dist"})
        return func(*args, **(kwargs or {}))


@contextmanager
def _unprinted() -> Iterator[None]:
    """torch.export prints the graph that it has where it gives up; what forward prints is left alone."""
    module: Any = import_module("torch.export._trace")
    had = vars(module).get("print", print)
    module.print = lambda *args, **kwargs: None
    try:
        yield
    finally:
        if had is print:
            del module.print
        else:
            module.print = had


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Without the fused kernel of transformer layers, which has no derivative."""
    with LOCK:
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def masks_as_given() -> Iterator[None]:
    """torch's transformers look whether a mask is the causal one, for speed alone: here they apply what is given."""
    module: Any = torch.nn.modules.transformer
    name = "_detect_is_causal_mask"
    looks = getattr(module, name, None)
    setattr(module, name, lambda mask, is_causal=None, size=None: is_causal is True)
    try:
        yield
    finally:
        if looks is None:
            delattr(module, name)
        else:
            setattr(module, name, looks)
