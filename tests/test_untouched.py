"""The user's model comes back as it was: after a call, after an error, after Ctrl-C."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.reference import estimators

X = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def build() -> Any:
    model: Any = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 3)
    )
    model.train()
    model[1].eval()  # a mixture of modes, as in fine-tuning
    model[0].bias.requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model[5].register_forward_hook(lambda module, args, output: None)
    model[5].weight.register_hook(lambda grad: 2 * grad)
    return model


def snapshot(model: nn.Module) -> list[Any]:
    return [
        [m.training for m in model.modules()],
        [p.requires_grad for p in model.parameters()],
        [
            (id(p), p.detach().clone(), id(p.grad), None if p.grad is None else p.grad.clone())
            for p in model.parameters()
        ],
        [(id(b), b.clone()) for b in model.buffers()],
        [dict(m._forward_hooks) for m in model.modules()],
        [p._backward_hooks for p in model.parameters()],
        [sorted(vars(m)) for m in model.modules()],
        torch.get_rng_state(),
        torch.is_grad_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
    ]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def interrupted() -> Iterator[tuple[Tensor, Tensor]]:
    yield X, Y
    raise KeyboardInterrupt


def failing() -> Iterator[tuple[Tensor, Tensor]]:
    yield X, Y
    yield X * float("nan"), Y


CALLS: dict[str, Callable[..., Any]] = {
    "trace": ms.hessian_trace,
    "diagonal": ms.hessian_diagonal,
    "baseline": lambda m, d: estimators.baseline_diagonal(m, d, parameters="5.bias"),
    "hutchinson": lambda m, d: estimators.hutchinson_trace(m, d, probes=2),
    "tsuzuku_arxiv": lambda m, d: estimators.tsuzuku_arxiv_diagonal(m, d, probes=1),
    "tsuzuku_icml": lambda m, d: estimators.tsuzuku_icml_diagonal(m, d, probes=1),
}


@pytest.mark.parametrize("name", CALLS)
def test_after_a_call(name: str) -> None:
    model = build()
    before = snapshot(model)
    CALLS[name](model, (X, Y))
    assert same(before, snapshot(model))


@pytest.mark.parametrize("name", CALLS)
def test_after_an_interrupt(name: str) -> None:
    model = build()
    before = snapshot(model)
    with pytest.raises(KeyboardInterrupt):
        CALLS[name](model, interrupted())
    assert same(before, snapshot(model))


def test_after_an_error_in_the_data() -> None:
    model = build()
    before = snapshot(model)
    with pytest.raises(ms.NonFiniteError):
        ms.hessian_trace(model, failing())
    assert same(before, snapshot(model))


def test_after_an_error_in_forward() -> None:
    model = build()
    before = snapshot(model)
    with pytest.raises(ms.InputError):
        ms.hessian_trace(model, X[:, :, 1:])
    assert same(before, snapshot(model))


class Interrupting(nn.Module):
    """Ctrl-C while torch.export is tracing, as it is or as the error that something between made of it."""

    def __init__(self, wrapped: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.wrapped = wrapped

    def forward(self, x: Tensor) -> Tensor:
        if self.wrapped:
            raise RuntimeError("error calling __set_name__") from KeyboardInterrupt()
        raise KeyboardInterrupt


@pytest.mark.parametrize("wrapped", [False, True])
def test_after_an_interrupt_while_reading(wrapped: bool) -> None:
    model = Interrupting(wrapped)
    before = snapshot(model)
    with pytest.raises(KeyboardInterrupt):
        ms.read(model, X)
    assert same(before, snapshot(model))


class Failing(nn.Module):
    """An error, or one that is its own cause."""

    def __init__(self, cyclic: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.cyclic = cyclic

    def forward(self, x: Tensor) -> Tensor:
        error = ValueError("no such thing")
        if self.cyclic:
            raise error from error
        raise error


@pytest.mark.parametrize("cyclic", [False, True])
def test_an_interrupt_before_reading_is_not_one_while_reading(cyclic: bool) -> None:
    try:
        Interrupting(wrapped=False)(X)
    except KeyboardInterrupt:
        with pytest.raises(ms.InputError, match="no such thing"):
            ms.read(Failing(cyclic), X)
    else:
        pytest.fail("there was no interrupt")


def test_inputs_are_untouched() -> None:
    x = X.clone().requires_grad_()
    ms.hessian_trace(build(), x)
    assert torch.equal(x, X)
    assert x.grad is None
    assert x.requires_grad


def test_train_mode_is_measured_in_eval_mode() -> None:
    model = build()
    trained = ms.hessian_trace(model, X)
    assert trained.by_parameter == ms.hessian_trace(model.eval(), X).by_parameter


class _Keeping(nn.Module):
    """A forward that keeps things: an attribute, a list, a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.seen: list[Tensor] = []
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.layer(x)
        self.seen.append(x)
        self.calls.add_(1)
        return self.hidden.relu()


@pytest.mark.parametrize("measure", [ms.hessian_trace, ms.measures.normalized_sharpness, ms.noise_robustness])
def test_what_forward_keeps_in_the_model_stays(measure: Any) -> None:
    model, x = _Keeping(), torch.randn(4, 3)
    model(x)
    hidden, seen = model.hidden, list(model.seen)
    measure(model, (x, torch.tensor([0, 1, 0, 1])))
    assert model.hidden is hidden
    assert len(model.seen) == 1
    assert model.seen[0] is seen[0]
    assert float(model.calls) == 1
