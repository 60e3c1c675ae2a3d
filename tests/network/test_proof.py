"""What the records alone show: where samples stay apart no network has to run, and where they may meet it has to."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minsharp as ms
from minsharp.network import faithful, reader
from minsharp.network.apart import check_samples_apart
from minsharp.network.proof import proved_apart
from tests.support.networks import Own, X, plain
from tests.support.zoo import ZOO, Entry, network

OPEN: dict[str, Callable[[Any, Tensor], Any]] = {
    "a sum over the batch": lambda m, x: plain(m, x) + 0 * x.sum(0)[:3],
    "there and back": lambda m, x: plain(m, x.flip(0).flip(0)),
    "the number of samples": lambda m, x: plain(m, x) * x.shape[0] / x.shape[0],
    "a part of the batch": lambda m, x: plain(m, torch.cat([x[:1], x[1:]])),
    "windows over the batch": lambda m, x: F.conv1d(plain(m, x).T[:, None], torch.ones(1, 1, 1).double())[:, 0].T,
    "places": lambda m, x: plain(m, x) + 0 * torch.arange(x.shape[0]).unsqueeze(1),
    "the square of the size": lambda m, x: plain(m, x.expand(x.shape[0], *x.shape).sum(0) / x.shape[0]),
    "squeezed": lambda m, x: plain(m, x.unsqueeze(1).squeeze()),
    "softmax over the batch": lambda m, x: plain(m, x) + 0 * x.softmax(0)[:, :3],
}
TELLING: dict[str, Callable[[Any, Tensor], Any]] = {
    "layers": plain,
    "sizes": lambda m, x: plain(m, x.view(x.shape[0], 2, 3).transpose(1, 2).reshape(x.shape[0], -1)),
    "a multiple of the size": lambda m, x: plain(m, x.view(x.shape[0] * 2, 3).softmax(1).view(x.shape[0], 6)),
    "the shape of another": lambda m, x: plain(m, (x + 1).view(-1, 2, 3).tanh().reshape_as(x)),
    "a token": lambda m, x: plain(m, torch.cat([m.buffer[:1].expand(x.shape[0], 1), x[:, 1:]], 1)),
    "windows": lambda m, x: plain(m, F.max_pool1d(x.view(-1, 2, 3), 3, 1, 1).flatten(1)),
    "folded into the batch": lambda m, x: plain(m, (x.view(-1, 3).softmax(1)).view(x.shape[0], 6)),
}


def read(function: Callable[[Any, Tensor], Any]) -> ms.Network:
    return ms.read(Own(function), X)


@pytest.mark.parametrize("name", TELLING)
def test_records_that_tell(name: str) -> None:
    assert proved_apart(read(TELLING[name]).graph)


@pytest.mark.parametrize("name", OPEN)
def test_records_that_leave_it_open(name: str) -> None:
    try:
        found = read(OPEN[name])
    except ms.ReadError:
        return
    assert not proved_apart(found.graph)


@pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)
def test_what_is_proved_is_so(entry: Entry) -> None:
    net, inputs = network(entry), entry.data(5)[0]
    if proved_apart(net.graph):
        check_samples_apart(net, list(net.bind(inputs).values()))


def test_no_network_runs_in_double_precision_where_it_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("not to be called")

    monkeypatch.setattr(reader, "check_samples_apart", refuse)
    monkeypatch.setattr(reader, "check_faithful", refuse)
    read(plain)
    with pytest.raises(ms.ReadError, match="not to be called"):
        read(OPEN["there and back"])


def test_an_operation_that_is_taught_anew_proves_nothing() -> None:
    net = read(plain)
    with ms.operation("relu", "self", replace=True):
        assert not proved_apart(net.graph)
    assert proved_apart(net.graph)


def test_derivatives_are_compared_where_it_is_proved() -> None:
    def hooked(m: Any, x: Tensor) -> Tensor:
        made = m.a(x).relu()
        if made.requires_grad:
            made.register_hook(lambda g: 2 * g)
        return m.head(made)

    with pytest.raises(ms.ReadError, match="the derivative of Own's outputs in"):
        read(hooked)


def test_outputs_are_compared_where_it_is_proved() -> None:
    with pytest.raises(ms.ReadError, match="run on one sample returns other numbers"):
        read(lambda m, x: plain(m, x) if x.shape[0] > 1 else plain(m, x) + 1)


def _hooked(made: Tensor, hook: Callable[[Tensor], Tensor]) -> Tensor:
    if made.requires_grad:
        made.register_hook(hook)
    return made


def _hooked_behind(made: Tensor) -> Tensor:
    if made.grad_fn is not None:
        made.grad_fn.register_prehook(lambda gs: (gs[0] / len(gs[0]),))
    return made


def _exporting() -> bool:
    return torch.compiler.is_exporting() or torch.compiler.is_compiling()


BY_NUMBER: dict[str, Callable[[Any, Tensor], Any]] = {
    "a hook": lambda m, x: m.head(_hooked(m.a(x).relu(), lambda g: g / len(g))),
    "a hook on a node": lambda m, x: m.head(_hooked_behind(m.a(x).relu())),
    "times the number": lambda m, x: plain(m, x if _exporting() else x * len(x)),
    "the mean": lambda m, x: plain(m, x if _exporting() else x.mean(0, keepdim=True).expand_as(x)),
    "other places": lambda m, x: plain(m, x if _exporting() else x.roll(1, 0)),
}
"""For one sample what is recorded, and for two something else: outputs, or what autograd makes of them."""


@pytest.mark.parametrize("name", BY_NUMBER)
@pytest.mark.parametrize("samples", [1, 2, 6])
def test_one_sample_does_not_tell_everything(name: str, samples: int) -> None:
    with pytest.raises(ms.ReadError, match=r"run on two samples|the derivative of Own's outputs in|returns other"):
        ms.read(Own(BY_NUMBER[name]), X[:samples])


def test_a_hook_before_units_that_no_sample_wakes() -> None:
    model = Own(lambda m, x: m.head(_hooked(m.a(x), lambda g: 2 * g).relu()))
    nn.init.constant_(model.a.bias, -1e3)
    with pytest.raises(ms.ReadError, match="the derivative of Own's outputs in"):
        ms.read(model, X)


def test_hooks_that_only_look_are_no_reason_to_refuse() -> None:
    read(lambda m, x: m.head(_hooked(m.a(x).relu(), lambda g: g)))


def test_one_image_with_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever torch makes of a single image, the sample twice in a batch decides."""
    monkeypatch.setattr(reader, "agrees", lambda *args: False)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    slow = ms.read(model, torch.randn(3, 2, 4, 4))
    monkeypatch.setattr(reader, "agrees", faithful.agrees)
    assert slow.graph.same_as(ms.read(model, torch.randn(3, 2, 4, 4)).graph)
