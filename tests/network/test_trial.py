"""A group is tried before it is claimed: a rule that is wrong for a call loses it, and the function stays."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp import operations as ops
from minsharp.graph.records import Operation
from minsharp.network.symmetry import Scope, group, tried_group
from minsharp.rules.channels import Walk


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    ).double()


def _moved(model: nn.Module, x: Tensor, scope: Scope) -> float:
    other = ms.rescale(model, ms.symmetries(model, x, scope).random(1, spread=4))
    return float((other(x) - model(x)).detach().abs().max())


def _free(walk: Walk, operation: Operation) -> Tensor:
    """A wrong rule: every entry of the result may have any scale."""
    return walk.forms.fresh(*walk.graph.values[operation.outputs[0]].shape)


BROKEN: list[tuple[Scope, str, dict[str, Any]]] = [
    ("layer", "relu", {"formula": "0"}),
    ("layer", "linear", {"formula": "input*weight"}),
    ("neuron", "relu", {"channels": _free}),
    ("neuron", "max_pool2d", {"channels": _free}),
    ("neuron", "conv2d", {"channels": _free, "formula": "weight"}),
]


@pytest.mark.parametrize(("scope", "name", "change"), BROKEN, ids=[f"{s}-{n}" for s, n, _ in BROKEN])
def test_a_wrong_rule_is_found_out_and_not_used(
    scope: Scope, name: str, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = _network(), torch.randn(4, 2, 4, 4, dtype=torch.float64)
    monkeypatch.setitem(ops.TABLE, name, replace(ops.TABLE[name], **change))
    graph = ms.read(model, x).graph
    wrong = ms.rescale(model, group(graph, scope).random(1, spread=4))
    assert float((wrong(x) - model(x)).detach().abs().max()) > 1e-3
    assert _moved(model, x, scope) < 1e-12


@pytest.mark.parametrize("scope", ["layer", "neuron"])
def test_right_rules_keep_all_their_freedom(scope: Scope) -> None:
    model, x = _network(), torch.zeros(2, 2, 4, 4, dtype=torch.float64)
    network = ms.read(model, x)
    assert tried_group(network.graph, network.module, scope).dimension == group(network.graph, scope).dimension > 0


def test_weights_of_zero_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = _network(), torch.randn(4, 2, 4, 4, dtype=torch.float64)
    nn.init.zeros_(model.get_parameter("6.weight"))
    monkeypatch.setitem(ops.TABLE, "relu", replace(ops.TABLE["relu"], channels=_free))
    scales = ms.symmetries(model, x, "neuron").random(1, spread=4)
    nn.init.normal_(model.get_parameter("6.weight"))
    assert float((ms.rescale(model, scales)(x) - model(x)).detach().abs().max()) < 1e-12


def test_half_precision_is_tried_in_double_precision() -> None:
    model = _network().bfloat16()
    assert ms.symmetries(model, torch.randn(2, 2, 4, 4).bfloat16(), "neuron").dimension == 9
