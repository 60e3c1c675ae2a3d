"""Wrappers come off in any order, and what cannot be measured says what to pass instead."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import minsharp as ms
from minsharp.network.model import unwrapped


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A process group of one, for DistributedDataParallel."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()


X = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

Wrap = Callable[[nn.Module], Any]


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


WRAPS: dict[str, Wrap] = {
    "compile": compiled,
    "distributed": nn.parallel.DistributedDataParallel,
    "data parallel": nn.DataParallel,
    "distributed, compiled": lambda m: compiled(nn.parallel.DistributedDataParallel(m)),
    "compiled, distributed": lambda m: nn.parallel.DistributedDataParallel(compiled(m)),
    "four of them": lambda m: compiled(nn.DataParallel(compiled(nn.parallel.DistributedDataParallel(m)))),
}


@pytest.mark.parametrize("name", WRAPS)
def test_wrappers_come_off(name: str) -> None:
    model = plain()
    assert unwrapped(WRAPS[name](model)) is model


def test_a_network_is_the_module_that_was_read() -> None:
    model = plain()
    assert unwrapped(ms.read(model, X)) is model


def test_the_averaged_model_is_a_copy_inside() -> None:
    average = AveragedModel(plain())
    assert unwrapped(average) is average.module


class Twice(nn.DataParallel[nn.Module]):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.module(x)


class Holder(nn.Module):
    """Holds modules under the names that wrappers use, and does something of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.module = self._orig_mod = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.module(x)


@pytest.mark.parametrize("model", [Twice(nn.Linear(3, 2)), Holder()], ids=["subclass", "attribute"])
def test_a_forward_of_its_own_is_no_wrapper(model: nn.Module) -> None:
    assert unwrapped(model) is model


def double_the_output(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return 2 * output


@pytest.mark.parametrize("name", ["compile", "distributed", "data parallel"])
def test_hooks_of_a_wrapper_are_not_lost(name: str) -> None:
    wrapper = WRAPS[name](plain())
    nn.Module.register_forward_hook(wrapper, double_the_output)
    with pytest.raises(ms.InputError, match=r"forward hooks of its own, \['double_the_output'\]"):
        unwrapped(wrapper)


def quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result: nn.Module = torch.ao.quantization.quantize_dynamic(plain().float(), {nn.Linear})
    return result


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(torch.jit.script(nn.Linear(3, 2)))


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "script": (scripted, r"the model's '0' is a torch.jit.ScriptModule \(Linear\): pass the module"),
    "meta": (lambda: nn.Linear(3, 2, device="meta"), "'weight' of Linear is on the meta device"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(2)), r"'0\.weight' of Sequential has no shape yet"),
    "quantised": (quantised, r"the model's '0' is quantised \(torch\.ao\.nn\.quantized"),
    "exported": (lambda: torch.export.export(plain(), (X,)), r"an ExportedProgram: pass program\.module\(\)"),
    "class": (lambda: nn.Linear, r"the class Linear: pass an instance of it"),
    "state dict": (lambda: plain().state_dict(), r"4 tensors by name \(a state dict\?\)"),
    "function": (lambda: plain().forward, "the function Sequential.forward: pass the module itself"),
    "wrapped": (lambda: nn.DataParallel(nn.Linear(3, 2, device="meta")), "'weight' of Linear is on the meta device"),
    "nothing": (lambda: None, "got NoneType"),
    "text": (lambda: "model.pt2", "got str"),
    "tensor": (lambda: X, r"got a tensor of shape \(5, 3\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_model(name: str) -> None:
    make, message = BAD[name]
    with pytest.raises(ms.InputError, match=message):
        unwrapped(make())
