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
from minsharp.measures.pacgen import pacgen
from minsharp.measures.rangamani import rangamani_flatness
from minsharp.measures.relative_flatness import relative_flatness
from minsharp.measures.sam import sam_sharpness
from minsharp.reference import estimators
from minsharp.reference.objective import Objective
from minsharp.subject.inputs import call_form
from minsharp.subject.model import counted, unwrapped
from minsharp.subject.usage import used_parameters
from tests.support.zoo import ZOO, Entry


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


def traced() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result: nn.Module = torch.jit.trace(plain(), X)
    return result


def prepared() -> nn.Module:
    """For quantization in training: with observers, and rounding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = plain().float().train()
        model.qconfig = torch.ao.quantization.get_default_qat_qconfig("x86")
        torch.ao.quantization.prepare_qat(model, inplace=True)
    return model


def sharded(inside: bool) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not inside:
            return FullyShardedDataParallel(plain(), device_id=torch.device("cpu"))
        model = plain()
        model[0] = FullyShardedDataParallel(model[0], device_id=torch.device("cpu"))
    return model


def sharded_anew() -> nn.Module:
    """Each parameter by itself, as fully_shard does it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = plain()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


def distributed_inside() -> nn.Module:
    model = plain()
    model[0] = nn.parallel.DistributedDataParallel(model[0])
    return model


def fake() -> nn.Module:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return nn.Sequential(nn.Linear(3, 2))


def quantised_tensor() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = plain()
        model.register_buffer("table", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))
    return model


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "script": (scripted, r"the model's '0' is a torch.jit.ScriptModule \(Linear\): pass the module"),
    "meta": (lambda: nn.Linear(3, 2, device="meta"), "'weight' of Linear is on the meta device"),
    "traced": (traced, r"the model is a torch.jit.ScriptModule \(Sequential\): pass the module it was made of"),
    "prepared": (prepared, r"the model's '0\.weight_fake_quant' watches values for quantization, or rounds them"),
    "sharded": (lambda: sharded(False), "the model is a FullyShardedDataParallel: each process holds a part"),
    "a sharded part": (lambda: sharded(True), "the model's '0' is a FullyShardedDataParallel: each process holds"),
    "sharded anew": (sharded_anew, r"'0\.weight' of FSDPSequential is a DTensor: .*full_tensor\(\)"),
    "a distributed part": (
        distributed_inside,
        r"'0' is a DistributedDataParallel inside of it: put .* = model\.0\.module",
    ),
    "fake": (fake, "'0.weight' of Sequential is a FakeTensor, and has no values"),
    "quantised tensor": (quantised_tensor, r"'table' of Sequential is quantised \(Tensor, torch.qint8\)"),
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


class Odd(nn.Module):
    """A parameter that nothing uses, one whose use is thrown away, a frozen one, a tied one, one without derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.lost = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4))
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.threshold = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        x * self.lost
        return self.third(x * (x < self.threshold))


ODD = ["threshold", "first.weight", "first.bias", "third.weight", "third.bias"]
ODD_X = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
ODD_DATA = (ODD_X, torch.tensor([0, 1, 2, 0, 1, 2]))


def odd() -> nn.Module:
    torch.manual_seed(0)
    return Odd().double()


def names_in(result: Any) -> list[str]:
    return list(getattr(result, "by_parameter", None) or result.exact)


BY_NAME: dict[str, Callable[[Any], list[str]]] = {
    "trace": lambda m: names_in(ms.hessian_trace(m, ODD_X, curvature="ggn")),
    "diagonal": lambda m: names_in(ms.hessian_diagonal(m, ODD_X, curvature="ggn")),
    "baseline": lambda m: names_in(estimators.baseline_diagonal(m, ODD_DATA)),
    "arxiv": lambda m: names_in(estimators.tsuzuku_arxiv_diagonal(m, ODD_DATA, probes=1)),
    "icml": lambda m: names_in(estimators.tsuzuku_icml_diagonal(m, ODD_DATA, probes=1)),
    "minimum": lambda m: names_in(ms.minimum_sharpness(m, ODD_X, curvature="ggn")),
    "sensitivity": lambda m: names_in(ms.relative_sensitivity(m, ODD_X)),
    "relative minimum": lambda m: names_in(ms.relative_minimum_sharpness(m, ODD_X).minimum),
    "objective": lambda m: Objective(m, ODD_DATA).names,
}


@pytest.mark.parametrize("read", [False, True], ids=["module", "network"])
@pytest.mark.parametrize("name", BY_NAME)
def test_all_agree_on_the_parameters(name: str, read: bool) -> None:
    model: Any = odd()
    assert BY_NAME[name](ms.read(model, ODD_X) if read else model) == ODD


def test_frozen_ones_count_when_asked_for() -> None:
    everything = ["threshold", "first.weight", "first.bias", "second.bias", "third.weight", "third.bias"]
    assert names_in(ms.hessian_trace(odd(), ODD_X, curvature="ggn", parameters="*")) == everything
    assert Objective(odd(), ODD_DATA, pattern="*").names == everything
    with pytest.raises(ms.InputError, match=r"nothing matches \['idle'\]"):
        ms.hessian_trace(odd(), ODD_X, parameters="idle")
    with pytest.raises(ms.InputError, match=r"nothing matches \['idle'\]"):
        sam_sharpness(odd(), ODD_DATA, parameters="idle")


def test_a_name_is_no_pattern() -> None:
    model = nn.ModuleDict({"a[0]": nn.Linear(3, 2)})
    used = dict(model.named_parameters())
    assert counted({**used, "a0.weight": used["a[0].weight"]}, "a[0].weight") == ["a[0].weight"]


def test_what_is_used_in_place_and_through_views() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.written, self.viewed, self.idle = (nn.Parameter(torch.ones(3)) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            out[:, 0] += self.written[0]
            out.narrow(1, 1, 2).copy_(self.viewed.view(3, 1)[1:, 0])
            self.idle.view(3).square()
            return out

    assert list(used_parameters(InPlace(), (torch.ones(2, 3),), {})) == ["written", "viewed"]


@pytest.mark.parametrize("entry", ZOO, ids=lambda e: e.name)
def test_running_and_reading_agree(entry: Entry) -> None:
    model, (inputs, _) = entry.model(), entry.data()
    with torch.no_grad():
        run = list(used_parameters(model.eval(), *call_form(model, inputs)))
    assert run == list(ms.read(model, inputs).parameters)


def number(result: Any) -> float:
    return float(next(getattr(result, name) for name in ("value", "total", "dimension") if hasattr(result, name)))


DATA = (X, torch.tensor([0, 1, 0, 1, 1]))
CALLS: dict[str, Callable[[Any], float]] = {
    "trace": lambda m: number(ms.hessian_trace(m, X)),
    "diagonal": lambda m: number(ms.hessian_diagonal(m, X)),
    "minimum": lambda m: number(ms.minimum_sharpness(m, X, scope="neuron")),
    "relative minimum": lambda m: number(ms.relative_minimum_sharpness(m, X)),
    "sensitivity": lambda m: number(ms.relative_sensitivity(m, X)),
    "normalized": lambda m: number(ms.measures.normalized_sharpness(m, X)),
    "symmetries": lambda m: number(ms.symmetries(m, X)),
    "noise": lambda m: ms.noise_robustness(m, DATA, sigmas=[0.3], trials=2).levels[0].agreement.mean,
    "baseline": lambda m: number(estimators.baseline_diagonal(m, DATA)),
    "hutchinson": lambda m: number(estimators.hutchinson_trace(m, DATA, probes=2)),
    "flatness": lambda m: number(relative_flatness(m, X)),
    "pacgen": lambda m: number(pacgen(m, X)),
    "rangamani": lambda m: number(rangamani_flatness(m, DATA)),
    "verify": lambda m: float(ms.verify(m, X, ms.minimum_sharpness(m, X)).holds),
    "compare": lambda m: sum(row.value or 0.0 for row in ms.compare(m, DATA, rescalings=1).rows),
}


@pytest.mark.parametrize("wrap", ["compile", "distributed", "data parallel", "four of them"])
@pytest.mark.parametrize("name", CALLS)
def test_every_function_takes_wrappers(name: str, wrap: str) -> None:
    assert CALLS[name](WRAPS[wrap](plain())) == CALLS[name](plain())


@pytest.mark.parametrize("wrap", WRAPS)
def test_modules_come_back_plain(wrap: str) -> None:
    model = plain()
    copies = (
        ms.flattest(WRAPS[wrap](model), X),
        ms.rescale(WRAPS[wrap](model), {"0.weight": 2.0, "2.weight": 0.5}),
        ms.fold_batchnorm(WRAPS[wrap](model)),
    )
    for copy in copies:
        assert type(copy) is nn.Sequential
        assert list(copy.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("name", CALLS)
def test_every_function_refuses_what_is_no_model(name: str) -> None:
    with pytest.raises(ms.InputError, match=r"expected a torch\.nn\.Module"):
        CALLS[name]("model.pt2")


def test_what_torch_export_makes() -> None:
    program = torch.export.export(plain(), (X,), dynamic_shapes=[{0: torch.export.Dim.AUTO}])
    module = program.module()
    assert ms.hessian_trace(module, X).total == ms.hessian_trace(plain(), X).total
    assert ms.verify(module, X, ms.minimum_sharpness(module, X, scope="neuron")).holds
    assert torch.allclose(ms.flattest(module, X)(X), plain()(X))
    assert torch.equal(ms.fold_batchnorm(module)(X), plain()(X))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_copies_made_without_gradients_have_them(mode: Any) -> None:
    model = plain()
    with mode():
        copies = (ms.flattest(model, X), ms.fold_batchnorm(model), ms.rescale(model, {"0.weight": 2.0}))
        assert ms.verify(model, X, ms.minimum_sharpness(model, X)).holds
    for copy in copies:
        copy(X).sum().backward()
        assert all(p.grad is not None for p in copy.parameters())


def test_results_of_another_network_are_refused() -> None:
    wide = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    for measured in (ms.hessian_trace(wide, X), ms.hessian_diagonal(wide, X)):
        with pytest.raises(ms.InputError, match="not of this network"):
            ms.minimum_sharpness(plain(), measured)
    with pytest.raises(ms.InputError, match="not of this network"):
        ms.minimum_sharpness(ms.read(plain(), X), ms.hessian_diagonal(wide, X))


def test_what_a_model_keeps_in_a_dict_is_copied_as_numbers() -> None:
    """As attention biases that are made of parameters once, at the first call in eval mode."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.kept = nn.Linear(3, 2), dict[str, Tensor]()

        def forward(self, x: Tensor) -> Tensor:
            self.kept["bias"] = 2 * self.linear.bias
            return self.linear(x) + self.kept["bias"]

    model = Keeps().double()
    model(X)
    twin: Any = ms.rescale(model, {"linear.weight": 2.0})
    assert torch.equal(twin.kept["bias"], model.kept["bias"])
    assert twin.kept["bias"].is_leaf
    assert torch.equal(twin.linear.weight, 2 * model.linear.weight)
