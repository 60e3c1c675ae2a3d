"""Models as they come: outputs in containers, hooks, caches, operations that nothing needs; only our errors leave."""

import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import minsharp as ms
from minsharp.reference import estimators
from tests.support.networks import D, Own, X, Y, oracle, plain
from tests.support.oracles import ggn_diagonal


class Named(NamedTuple):
    logits: Tensor
    features: Tensor


@dataclass
class Output:
    logits: Tensor
    features: Any = None


OUTPUTS: dict[str, Callable[[Any, Tensor], Any]] = {
    "a dict": lambda m, x: {"logits": plain(m, x), "features": m.b(x), "mean": m.b(x).mean(0)},
    "an ordered dict": lambda m, x: OrderedDict(loss=None, logits=plain(m, x)),
    "a named tuple": lambda m, x: Named(plain(m, x), x),
    "an object": lambda m, x: Output(plain(m, x), [m.b(x)]),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_logits_are_taken_out(name: str) -> None:
    """By the engine and by plain autograd alike; what only the other outputs use is not used."""
    model, expected = Own(OUTPUTS[name]), ms.hessian_trace(Own(plain), X).by_parameter
    assert ms.hessian_trace(model, X).by_parameter == expected
    assert "b.weight" not in ms.read(model, X).parameters
    other = estimators.baseline_diagonal(model, (X, Y)).by_parameter
    assert {n: float(d.sum()) for n, d in other.items()} == pytest.approx(expected)
    assert ms.verify(model, X, ms.minimum_sharpness(model, X)).holds


def test_other_outputs_are_named() -> None:
    with pytest.raises(ms.ReadError, match=r"returns \{'scores': a tensor of shape \(n, 3\), torch.float64\}"):
        ms.read(Own(lambda m, x: {"scores": plain(m, x)}), X)


def rope(m: Any, x: Tensor) -> Any:
    positions = (x > 0).int().cumsum(1).clamp_max(5)
    return m.head(m.a(x).relu() * m.buffer[positions])


DEAD: dict[str, Callable[[Any, Tensor], Any]] = {
    "random": lambda m, x: (torch.rand(1), torch.randn_like(m.b(x)), plain(m, x))[-1],
    "complex": lambda m, x: (torch.fft.fft(m.b(x)), plain(m, x))[-1],
    "mixing": lambda m, x: ((m.b(x) @ m.b(x).T).sum() + m.b(x).mean(), plain(m, x))[-1],
    "an assertion": lambda m, x: (torch._assert(x.shape[0] > 1, "few"), plain(m, x))[-1],
    "a branch": lambda m, x: (torch.cond((x > 0).any(), lambda v: m.b(v), lambda v: -m.b(v), (x,)), plain(m, x))[-1],
}


@pytest.mark.parametrize("name", DEAD)
def test_what_nothing_needs_is_dropped(name: str) -> None:
    network = ms.read(Own(DEAD[name]), X)
    assert [operation.name for operation in network.graph.operations] == ["linear", "relu", "linear"]
    assert list(network.parameters) == ["a.weight", "a.bias", "head.weight", "head.bias"]
    assert not [name for name, value in network.graph.values.items() if value.kind == "constant"]


LIVE: dict[str, Callable[[Any, Tensor], Any]] = {
    "an empty cache": lambda m, x: m.head(
        torch.cat([torch.tensor([], dtype=D), m.a(x).view(-1, 2, 3)], -2).flatten(1).relu()
    ),
    "an empty cache of another type": lambda m, x: m.head(torch.cat([torch.tensor([]), m.a(x)], -1).relu()),
    "an empty axis": lambda m, x: m.head(torch.cat([m.a(x)[:, :0], m.a(x)], 1)),
    "whole numbers": rope,
    "a view": lambda m, x: m.head(m.a(x).view(-1, 2, 3).transpose(1, 2).contiguous().view(x.shape[0], -1)),
    "a copy": lambda m, x: m.head(torch.empty_like(x).copy_(m.a(x)).relu()),
    "a number that is copied": lambda m, x: m.head(m.a(x).relu() + torch.empty_like(x).copy_(2)),  # type: ignore[arg-type]
    "a weight that is copied": lambda m, x: x @ torch.empty(3, 6, dtype=D).copy_(m.head.weight).T,
    "a checkpoint": lambda m, x: m.head(checkpoint(lambda v: m.a(v).relu(), x, use_reentrant=False)),
    "a weight for each sample": lambda m, x: (
        (m.head.weight.repeat(x.shape[0], 1) * m.a(x).relu().repeat_interleave(3, 0)).sum(1).view(-1, 3)
    ),
    "samples again and again": lambda m, x: m.head(m.a(x).relu().repeat(2, 1)).view(2, -1, 3).mean(0),
    "an index for all heads": lambda m, x: m.head(
        m.a(x).view(-1, 3).gather(1, torch.tensor([[2, 0, 0]]).expand(2 * x.shape[0], -1)).view(-1, 6)
    ),
    "a weight in which the batch size cancels": lambda m, x: (
        m.a(x).relu() @ (m.head.weight * (x.reshape(-1, 2).shape[0] / x.shape[0])).T
    ),
    "a blank with samples beside heads": lambda m, x: m.head(
        torch.baddbmm(
            torch.zeros(2 * x.shape[0], 3, 1, dtype=D),
            m.a(x).view(-1, 3, 1),
            x.new_ones(2 * x.shape[0], 1, 1),
            beta=1.0,
            alpha=0.5,
        ).view(-1, 6)
    ),
    "rows by vmap": lambda m, x: m.head(torch.vmap(lambda row: m.a(row).relu())(x)),
    "weights by vmap": lambda m, x: m.head(
        torch.vmap(lambda W: x @ W)(m.a.weight.view(2, 6, 3)).relu().transpose(0, 1).flatten(1)
    ),
    "vmap in vmap": lambda m, x: m.head(
        torch.vmap(lambda r: torch.vmap(lambda W: W @ r)(m.a.weight.view(2, 3, 6)).relu().flatten())(x)
    ),
    "a derivative along a direction": lambda m, x: m.head(
        m.a(x).relu() * torch.func.jvp(torch.tanh, (x,), (torch.ones_like(x),))[1]
    ),
    "a buffer that counts": lambda m, x: (m.buffer.add_(1), plain(m, x))[-1],
}


@pytest.mark.parametrize("name", LIVE)
def test_models_as_they_come(name: str) -> None:
    model = Own(LIVE[name])
    before = model.buffer.clone()
    found = ms.hessian_trace(model, (X, Y), curvature="ggn").by_parameter
    assert torch.equal(model.buffer, before)
    for parameter, expected in oracle(model).items():
        assert found.get(parameter, 0.0) == pytest.approx(expected, rel=1e-9, abs=1e-14)


def tripled(module: nn.Module, into: Any, out: Any) -> Any:
    return tuple(None if gradient is None else 3 * gradient for gradient in into)


def test_what_forward_counts_into_its_outputs_starts_anew_each_time_it_is_tried() -> None:
    model = Own(lambda m, x: m.head(m.a(x).relu() * m.buffer.add_(1)))
    before = model.buffer.clone()
    assert "a.weight" in ms.read(model, X).parameters
    assert torch.equal(model.buffer, before)


def test_hooks() -> None:
    """Those of forward are part of the network, those of backward are not."""
    plainly = ms.hessian_trace(Own(plain), X)
    model = Own(plain)
    for module in model.modules():
        module.register_full_backward_hook(lambda *_: None)
        module.register_full_backward_pre_hook(lambda *_: None)
    model.a.register_full_backward_hook(tripled)
    assert ms.hessian_trace(model, X).by_parameter == plainly.by_parameter
    assert str(ms.symmetries(model, X, "neuron")) == str(ms.symmetries(Own(plain), X, "neuron"))
    model.a.register_forward_pre_hook(lambda _, inputs: (2 * inputs[0],))
    model.register_forward_hook(lambda _, __, outputs: 3 * outputs)  # on the model itself
    doubled = ms.hessian_trace(Own(lambda m, x: 3 * plain(m, 2 * x)), X)
    assert ms.hessian_trace(model, X).by_parameter == pytest.approx(doubled.by_parameter, rel=1e-12)


def test_records_do_not_ask_for_the_default_type() -> None:
    network = ms.read(Own(lambda m, x: plain(m, x + torch.ones(6))).float(), X.float())
    before = ms.hessian_trace(network, X.float()).total
    torch.set_default_dtype(D)
    try:
        assert ms.hessian_trace(network, X.float()).total == before
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_network_pickles() -> None:
    model: Any = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    network = ms.read(model, X)
    again = pickle.loads(pickle.dumps(network))
    assert ms.hessian_trace(again, X).by_parameter == ms.hessian_trace(network, X).by_parameter


BAD: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "a number": (lambda: nn.Linear(6, 3), torch.tensor(1.0), "a single number"),
    "meta": (lambda: nn.Linear(6, 3), torch.zeros(2, 6, device="meta"), "meta device"),
    "nothing": (lambda: nn.Linear(6, 3), None, "expected inputs as a tensor"),
    "no samples": (lambda: nn.Linear(6, 3), torch.zeros(0, 6), "the example is empty"),
    "no outputs": (lambda: Own(lambda m, x: m.a(x)[:, :0]).float(), torch.zeros(2, 6), "nothing in them to measure"),
    "whole outputs": (lambda: nn.Flatten(), torch.zeros(2, 6).long(), r"the outputs have type torch\.int64"),
    "no forward": (lambda: nn.ModuleList([nn.Linear(6, 3)]), torch.zeros(2, 6), "missing the required"),
    "a constant": (lambda: Own(lambda m, x: m.buffer[:3]), X, "samples along its first axis"),
    "complex": (lambda: nn.Linear(6, 3, dtype=torch.complex64), torch.zeros(2, 6, dtype=torch.complex64), "complex"),
    "data": (lambda: Own(lambda m, x: m.head(m.a(x).data)), X, r"use tensor\.detach\(\)|Use tensor\.detach\(\)"),
    "a derivative": (
        lambda: Own(lambda m, x: m.head(torch.autograd.grad(m.a(x).sin().sum(), m.a.bias, create_graph=True)[0] + x)),
        X,
        r"takes a derivative \(torch\.autograd\.grad\)|mixes the samples",
    ),
    "a write in vmap": (
        lambda: Own(lambda m, x: m.head(torch.vmap(lambda row: m.a(row).clone().mul_(2))(x))),
        X,
        "torch.vmap or another transform of torch.func goes around a write in place",
    ),
    "exported": (
        lambda: torch.export.export(nn.Linear(6, 3), (torch.zeros(4, 6),)).module(),
        torch.zeros(2, 6),
        "exported for other sizes",
    ),
    "images in bytes": (lambda: nn.Linear(6, 3), torch.zeros(2, 6).byte(), r"try inputs\.to\(torch\.float32\)"),
    "two inputs": (lambda: nn.Bilinear(6, 6, 3), torch.zeros(2, 6), r"\(\(a, b\), None\)"),
    "a generator": (lambda: Own(lambda m, x: (i for i in x)), X, "returns generator"),
}


@pytest.mark.parametrize("name", BAD)
def test_only_our_errors_leave(name: str) -> None:
    build, example, message = BAD[name]
    with pytest.raises(ms.MinsharpError, match=message):
        ms.read(build(), example)


def test_sparse_inputs() -> None:
    with torch.sparse.check_sparse_tensor_invariants(), pytest.raises(ms.InputError, match=r"inputs\.to_dense\(\)"):
        ms.read(nn.Linear(6, 3), torch.eye(6).to_sparse())


def test_empty_axes() -> None:
    model = Own(lambda m, x: m.head.bias + x @ m.head.weight[:, :0].T)
    assert ms.hessian_trace(model, X[:, :0]).by_parameter["head.weight"] == 0


def _sums(m: Any, x: Tensor) -> Any:
    h = m.a(x)
    s = h.view(-1, 2, 3).sum((1, 2)).unsqueeze(1)  # a view that was looked at before
    return m.head(h.relu_()) * s


def _written_old_name(m: Any, x: Tensor) -> Any:
    h = m.a(x)
    h.add_(x).relu_()
    return m.head(h)


def _written_view(m: Any, x: Tensor) -> Any:
    h = m.a(x)
    v = h.view(-1, 2, 3)
    h.relu_()
    return m.head(v.flatten(1))


def _written_part(m: Any, x: Tensor) -> Any:
    h = m.a(x)
    h[:, :3].relu_()
    return m.head(h)


def _written_both(m: Any, x: Tensor) -> Any:
    h = m.a(x).add_(1)
    v = h.view(-1, 2, 3)
    h.mul_(2)
    return m.head(v.flatten(1).mul_(0.5) + h)


WRITTEN: dict[str, tuple[Callable[[Any, Tensor], Any], int]] = {
    "an activation": (lambda m, x: m.head(m.a(x).relu_()), 0),
    "one after the other, by the old name": (_written_old_name, 0),
    "a view that was looked at before": (_sums, 0),
    "whole numbers": (lambda m, x: m.head(m.a(x) * (x > 0).long().add_(1)), 0),
    "a view that is looked at afterwards": (_written_view, 1),
    "a part": (_written_part, 1),
    "some of them": (_written_both, 1),
    "a buffer": (lambda m, x: m.head(m.a(x).relu() * m.buffer.add_(1)), 1),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_in_place_is_traced_again_only_where_it_is_shared(name: str, monkeypatch: Any) -> None:
    calls: list[int] = []
    again = torch.export.ExportedProgram.run_decompositions

    def counted(program: Any, table: Any) -> Any:
        calls.append(1)
        return again(program, table)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", counted)
    forward, expected = WRITTEN[name]
    model = Own(forward)
    network = ms.read(model, X)
    assert len(calls) == expected
    before = model.buffer.clone()
    outputs = network.graph.run(network.state() | {network.graph.inputs[0].name: X})[network.graph.output]
    model.buffer.copy_(before)
    assert torch.allclose(outputs, model(X), rtol=1e-12)
    model.buffer.copy_(before)
    found = ms.hessian_trace(network, (X, Y), curvature="ggn").by_parameter
    for parameter, value in oracle(model).items() if name != "a buffer" else ():
        assert found.get(parameter, 0.0) == pytest.approx(value, rel=1e-9, abs=1e-14)


Joined = Callable[[nn.Parameter, Tensor], Tensor]
ALIKE: dict[str, Joined] = {
    "zeros_like": lambda w, h: torch.where(h > 0, h, torch.zeros_like(h)),
    "ones_like": lambda w, h: h * torch.ones_like(h),
    "full_like": lambda w, h: h.relu() + torch.full_like(h, 2.0) * w,
    "chosen": lambda w, h: h * torch.zeros_like(h, dtype=torch.bool).scatter(1, h.topk(2, 1).indices, True),
    "filled": lambda w, h: h.relu() + h.clone().fill_(3.0),
    "copied": lambda w, h: h.relu() * torch.empty_like(h).copy_(w),
    "expanded": lambda w, h: h.relu() * w.expand_as(h),
}


class Rows(nn.Module):
    """A network that treats the positions of all samples as rows, those of a sample together or apart."""

    def __init__(self, treat: Joined, first: bool) -> None:
        super().__init__()
        self.a, self.w, self.head = nn.Linear(4, 6), nn.Parameter(torch.randn(6)), nn.Linear(6, 3)
        self.treat, self.first = treat, first

    def forward(self, x: Tensor) -> Tensor:
        n, h = x.shape[0], self.a(x)
        rows = self.treat(self.w, (h if self.first else h.transpose(0, 1)).reshape(-1, 6))
        h = rows.view(n, 5, 6) if self.first else rows.view(5, n, 6).transpose(0, 1)
        return self.head(h.mean(1))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", ALIKE)
def test_what_is_made_like_rows_of_samples_is_read(name: str, first: bool) -> None:
    """Zeros like a tensor have its samples where it has them, though none of its numbers goes in."""
    torch.manual_seed(0)
    model, x = Rows(ALIKE[name], first).double(), torch.randn(4, 5, 4, dtype=torch.float64)
    found = ms.hessian_trace(model, x, nn.MSELoss(), curvature="ggn").by_parameter
    targets = torch.zeros(4, 3, dtype=torch.float64)
    for parameter, value in found.items():
        diagonal = ggn_diagonal(model, x, targets, nn.MSELoss(), parameter)
        assert value == pytest.approx(float(diagonal.sum()), rel=1e-10, abs=1e-12), parameter
