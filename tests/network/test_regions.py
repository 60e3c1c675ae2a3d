"""What carries no gradient: autograd on the module as it is has the last word, or the network is refused by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minsharp as ms
from tests.support.networks import D, Own, X, Y, oracle, plain
from tests.support.oracles import ggn_diagonal

Function = Callable[[Any, Tensor], Any]
CASES: dict[str, Function] = {}
REFUSED: dict[str, Function] = {}


def case(function: Function) -> Function:
    CASES[function.__name__] = function
    return function


def refused(function: Function) -> Function:
    REFUSED[function.__name__] = function
    return function


@case
def constants(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        angle = torch.arange(6, dtype=D) * 0.3
        cosine = angle.cos()
    return m.head(m.a(x).relu() * cosine)


@case
def inputs(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        x = 2 * x
    return plain(m, x)


@case
def parameters(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = m.a(x)
    return m.head(h.relu()) + m.b(x)[:, :3]


@case
def parameters_beside_a_write(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = m.a(x)
    out = m.head(h)
    out += 1
    return out


@case
def writes_inside(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = m.a(x)
        h.mul_(2)
        h[:, 0] = 0
    return m.head(h) + m.b(x)[:, :3]


@case
def gradients_inside(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = m.a(x)
        with torch.enable_grad():
            k = m.b(h)
        z = 2 * k
    return m.head(h + k + z)


@case
def gradients_inside_beside_writes(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = m.a(x)
        with torch.enable_grad():
            k = m.b(h)
            k += 1
        z = 2 * k
        z += 1
    return m.head(h + k + z).relu_()


@case
def several_results(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        u, v = m.a(x).chunk(2, 1)
    return m.head(torch.cat([v, u], 1)) + m.b(x)[:, :3]


@case
def the_size_of_a_weight(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        size = m.a.weight.norm()
    return m.head(F.linear(x, m.a.weight / size))


@case
def a_function_that_switches(m: Any, x: Tensor) -> Any:
    torch.set_grad_enabled(False)
    h = m.a(x)
    torch.set_grad_enabled(True)
    return m.head(h)


@case
def a_decorator(m: Any, x: Tensor) -> Any:
    @torch.no_grad()
    def features(x: Tensor) -> Any:
        return m.a(x)

    return m.head(features(x)) + m.b(x)[:, :3]


@case
def written_later(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = m.b(x)
        h += 1
    h[:, 1:3] = m.a(x)[:, 1:3]
    h[:, 3:] *= m.a(x)[:, 3:]
    return m.head(h)


@case
def blank_that_is_filled(m: Any, x: Tensor) -> Any:
    blank = torch.zeros(x.shape[0], 6, dtype=D)
    with torch.no_grad():
        blank[:, :3] = m.b(x)[:, :3]
    blank[:, 3:] = m.a(x)[:, 3:]
    return m.head(blank)


@case
def autocast_inside(m: Any, x: Tensor) -> Any:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=False):
        h = m.a(x)
        h += 1
    return m.head(h) + m.b(x)[:, :3]


@case
def detached(m: Any, x: Tensor) -> Any:
    h = m.a(x)
    return m.head(h.detach()) + m.b(h)[:, :3]


@case
def detached_weight(m: Any, x: Tensor) -> Any:
    return m.head(F.linear(x, m.a.weight.detach(), m.a.bias))


@case
def half_detached_weight(m: Any, x: Tensor) -> Any:
    return m.head(F.linear(x, m.a.weight.detach() + m.a.weight * m.b.weight.detach(), m.a.bias))


@case
def straight_through(m: Any, x: Tensor) -> Any:
    h = m.a(x)
    return m.head(h + (h.round() - h).detach())


@case
def detached_before_a_write(m: Any, x: Tensor) -> Any:
    h = m.a(x) * 1
    d = h.detach()
    h += m.b(x)
    return m.head(h) + 2 * m.head(d)


@case
def detached_copy_that_is_written(m: Any, x: Tensor) -> Any:
    h = m.a(x)
    d = h.detach().clone()
    d.mul_(2)
    d[:, 0] += m.b(x)[:, 0]
    return m.head(d) + m.head(h)


@refused
def behind_the_back(m: Any, x: Tensor) -> Any:
    h = m.a(x)
    with torch.no_grad():
        h.mul_(2)
    return m.head(h)


@refused
def through_a_detached_view(m: Any, x: Tensor) -> Any:
    h = m.a(x)
    h.detach().mul_(2)
    return m.head(h)


@refused
def into_what_was_filled(m: Any, x: Tensor) -> Any:
    blank = torch.zeros(x.shape[0], 6, dtype=D)
    blank[:, 3:] = m.a(x)[:, 3:]
    with torch.no_grad():
        blank[:, :3] = m.b(x)[:, :3]
    return m.head(blank)


@case
def before_a_region(m: Any, x: Tensor) -> Any:
    h = m.a(x)
    filled = torch.empty_like(h).copy_(h)
    filled[:, :1] *= 0.5
    with torch.no_grad():
        least = torch.arange(6, dtype=D) / 6
    return m.head(torch.maximum(filled, least))


@case
def beside_an_empty_tensor(m: Any, x: Tensor) -> Any:
    h = torch.cat([x.new_zeros(x.shape[0], 0), m.a(x)], 1)
    return m.head(torch.lerp(h, m.b.bias[:1].expand_as(h), 0.7).relu())


@refused
def into_a_detached_blank(m: Any, x: Tensor) -> Any:
    blank = torch.zeros(x.shape[0], 6, dtype=D)
    view = blank.detach()
    view.copy_(m.a(x))
    return m.head(view) + m.head(blank)


@pytest.mark.parametrize("name", CASES)
def test_autograd_has_the_last_word(name: str) -> None:
    model = Own(CASES[name])
    expected = oracle(model)
    found = ms.hessian_trace(model, (X, Y), curvature="ggn").by_parameter
    diagonal = ms.hessian_diagonal(model, (X, Y), curvature="ggn").by_parameter
    for parameter, value in expected.items():
        assert found.get(parameter, 0.0) == pytest.approx(value, rel=1e-9, abs=1e-14)
        if parameter in diagonal:
            assert float(diagonal[parameter].sum()) == pytest.approx(value, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("name", REFUSED)
def test_writes_that_autograd_does_not_see(name: str) -> None:
    with pytest.raises(ms.ReadError, match=r"_ in the model's forward .* writes in place, without gradients"):
        ms.read(Own(REFUSED[name]), X)


@pytest.mark.parametrize("name", ["parameters", "detached_weight"])
def test_nothing_is_exactly_zero(name: str) -> None:
    """The Hessian of what is detached everywhere is zero, whatever stands behind it."""
    network = ms.read(Own(lambda m, x: CASES[name](m, x).detach()), X)
    assert all(network.exactness.values())
    trace = ms.hessian_trace(network, (X, Y))
    assert set(trace.by_parameter.values()) == {0.0}


def test_gradients_that_stop_keep_their_scale() -> None:
    """A rescaling goes through what is detached as through anything else."""
    model = Own(lambda m, x: m.head(m.a(x).relu().detach() + m.a(x).relu()))
    for scope in ("layer", "neuron"):
        other: Any = ms.rescale(model, ms.symmetries(model, X, scope).random(1))
        assert torch.allclose(other(X), model(X), rtol=1e-9, atol=1e-12)
        assert not torch.equal(other.a.weight, model.a.weight)


def test_autocast_inside_forward() -> None:
    """Recorded with the casts that it makes."""

    def forward(m: Any, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            h = m.a(x).relu()
        return m.head(h.float())

    model, x = Own(forward).float(), X.float()
    network = ms.read(model, x)
    assert torch.bfloat16 in {value.dtype for value in network.graph.values.values()}
    trace = ms.hessian_trace(network, (x, Y))
    assert all(trace.exact.values())
    for name, found in trace.by_parameter.items():
        value = float(ggn_diagonal(model.eval(), x, Y, nn.CrossEntropyLoss(), name).sum())
        assert found == pytest.approx(value, rel=2e-2)


def test_inference_mode_inside_forward_is_refused() -> None:
    def forward(m: Any, x: Tensor) -> Any:
        with torch.inference_mode():
            h = m.a(x)
        return m.head(h)

    with pytest.raises(ms.ReadError, match="Inference tensors cannot be saved"):
        ms.read(Own(forward), X)
