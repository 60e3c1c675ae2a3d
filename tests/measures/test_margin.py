"""Margin sensitivity: what it says, and that rescaling does not change it."""

from typing import Any

import pytest
import torch

import minsharp as ms
from tests.support.zoo import BY_NAME, ZOO, Entry, network, rescaled


@pytest.mark.parametrize("entry", ZOO, ids=lambda e: e.name)
@pytest.mark.parametrize(("scope", "group"), [("tensor", "layer"), ("element", "neuron")])
def test_definition_and_invariance(entry: Entry, scope: Any, group: Any) -> None:
    net, data = network(entry), entry.data()
    diagonal = ms.hessian_diagonal(net, data, curvature="margin")
    found = ms.margin_sensitivity(net, diagonal, scope=scope)
    expected = 0.0
    for name, h in diagonal.by_parameter.items():
        squares = net.parameters[name].detach().square()
        expected += float((squares * h).sum() if scope == "element" else squares.mean() * h.sum())
    assert found.value == pytest.approx(expected, rel=1e-12)
    assert found.value == pytest.approx(sum(found.by_parameter.values()), rel=1e-12)
    other = rescaled(net, ms.symmetries(net, data[0], group).random(1, 30.0))
    assert ms.margin_sensitivity(other, data, scope=scope).value == pytest.approx(found.value, rel=1e-7)


def test_registered_and_without_drift() -> None:
    entry = BY_NAME["lenet"]
    names = [n for n in ms.measures.registry.MEASURES if "margin" in n]
    assert len(names) == 4
    table = ms.compare(entry.model(), entry.data(), measures=names, rescalings=2)
    assert all(row.drift is not None and row.drift < 1e-7 for row in table.rows)
    minimum = ms.minimum_sharpness(network(entry), entry.data(), curvature="margin", scope="neuron").value
    assert table["minimum margin sensitivity (neuron)"].value == pytest.approx(minimum, rel=1e-9)


def test_text_and_refusals() -> None:
    entry = BY_NAME["mlp"]
    net, data = network(entry), entry.data()
    result = ms.margin_sensitivity(net, data)
    assert repr(result).startswith("Margin sensitivity ")
    assert result.to_dict()["value"] == result.value
    with pytest.raises(ms.InputError, match='these results have curvature="hessian"'):
        ms.margin_sensitivity(net, ms.hessian_trace(net, data))
    with pytest.raises(ms.InputError, match='scope="element" needs the diagonal'):
        ms.margin_sensitivity(net, ms.hessian_trace(net, data, curvature="margin"), scope="element")
    with pytest.raises(ms.InputError, match="scope='layer': expected 'tensor' or 'element'"):
        ms.margin_sensitivity(net, data, scope="layer")  # type: ignore[arg-type]
    assert torch.is_tensor(next(iter(net.parameters.values())))
