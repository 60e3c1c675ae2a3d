"""Models that return more than one tensor: which is measured, and that nothing else changes."""

import copy
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.subject.outputs import adapted, plain

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 3


class Pair(NamedTuple):
    hidden: Tensor
    head: Tensor


class Several(nn.Module):
    """A network that returns its hidden layer and its head in some form."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.form = form

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x).relu()
        return self.form(hidden, self.last(hidden))


FORMS: list[tuple[Any, Any]] = [
    (lambda h, o: {"hidden": h, "logits": o}, None),
    (lambda h, o: (o,), None),
    (lambda h, o: {"hidden": h, "scores": o}, "scores"),
    (lambda h, o: OrderedDict(scores=o, aux=None), "scores"),
    (lambda h, o: (h, o), 1),
    (lambda h, o: [o, h], 0),
    (lambda h, o: (h, o), np.int64(-1)),
    (lambda h, o: SimpleNamespace(hidden=h, scores=o), "scores"),
    (Pair, "head"),
    (lambda h, o: {"nested": {"deep": o}}, lambda returned: returned["nested"]["deep"]),
]


def network(form: Any) -> Several:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Several(form)


@pytest.mark.parametrize(("form", "outputs"), FORMS)
def test_every_form_is_the_plain_network(form: Any, outputs: Any) -> None:
    model, bare = network(form), network(lambda h, o: o)
    expected = ms.hessian_trace(bare, X)
    assert ms.hessian_trace(model, X, outputs=outputs).by_parameter == expected.by_parameter
    read = ms.read(model, X, outputs=outputs)
    assert ms.hessian_trace(read, X).by_parameter == expected.by_parameter
    assert ms.measures.training_loss(read, (X, Y)).value == ms.measures.training_loss(bare, (X, Y)).value
    assert ms.minimum_sharpness(read, X).value == pytest.approx(ms.minimum_sharpness(bare, X).value, rel=1e-12)


def test_the_model_is_shared_and_comes_back_as_it_was() -> None:
    model = network(lambda h, o: (h, o)).train()
    before, state = dict(model.__dict__), {k: v.clone() for k, v in model.state_dict().items()}
    read = ms.read(model, X, outputs=1)
    assert list(read.parameters) == [name for name, _ in model.named_parameters()]
    with torch.no_grad():
        model.last.weight.mul_(2)
    doubled = ms.hessian_trace(read, X).by_parameter
    assert doubled == ms.hessian_trace(network_like(model), X).by_parameter
    assert model.__dict__ == before
    assert model.training
    assert type(model) is Several
    assert not torch.equal(model.state_dict()["last.weight"], state["last.weight"])


def network_like(model: Several) -> Several:
    bare = copy.deepcopy(model)
    bare.form = lambda h, o: o
    return bare


def test_what_is_handed_back_is_of_the_users_own_kind() -> None:
    model = network(lambda h, o: (h, o))
    read = ms.read(model, X, outputs=1)
    flat = ms.flattest(read, X)
    assert type(flat) is Several
    assert isinstance(flat(X), tuple)
    assert ms.verify(read, (X, Y), ms.minimum_sharpness(read, X)).holds
    (row,) = ms.compare(read, (X, Y), measures=["minimum sharpness"], rescalings=2).rows
    assert row.drift is not None
    assert row.drift < 1e-6
    assert type(plain(copy.deepcopy(adapted(model, 1)))) is Several


@pytest.mark.parametrize(
    ("form", "outputs", "text"),
    [
        (lambda h, o: (h, o), None, r"expected one tensor of outputs.*Say which: outputs=0 or outputs=1"),
        (lambda h, o: {"a": h, "b": o}, None, "Say which: outputs='a' or outputs='b'"),
        (
            lambda h, o: {"a": h, "b": o},
            "c",
            "outputs='c', but the model returns .* Say which: outputs='a' or",
        ),
        (lambda h, o: SimpleNamespace(hidden=h, scores=o), None, "Say which: outputs='hidden' or outputs='scores'"),
        (lambda h, o: SimpleNamespace(hidden=h, scores=o), 1, "Say which: outputs='hidden' or outputs='scores'"),
        (lambda h, o: (h, o), 5, "outputs=5, but the model returns tuple of"),
        (lambda h, o: {"a": {"b": o}}, "a", "picks .* of what the model returns"),
        (lambda h, o: {"a": h}, lambda made: made["b"], r"stopped with KeyError: 'b'\. The model returns \{'a'"),
        (lambda h, o: (h, o), True, "outputs=True: expected a name, an index or a function"),
        (lambda h, o: o, 1.5, r"outputs=1\.5: expected a name, an index or a function"),
    ],
)
def test_what_cannot_be_picked(form: Any, outputs: Any, text: str) -> None:
    with pytest.raises(ms.MinsharpError, match=text):
        ms.hessian_trace(network(form), X, outputs=outputs)


def test_what_stands_between_forward_and_its_outputs() -> None:
    model = network(lambda h, o: (h, o))
    model.register_forward_hook(lambda module, args, returned: returned)
    with pytest.raises(ms.InputError, match="has forward hooks, which may change what it returns before outputs=1"):
        ms.hessian_trace(model, X, outputs=1)
    replaced = network(lambda h, o: (h, o))
    replaced.forward = lambda x: (x, x)  # type: ignore[method-assign]
    with pytest.raises(ms.InputError, match="was replaced on the instance"):
        ms.hessian_trace(replaced, X, outputs=1)
