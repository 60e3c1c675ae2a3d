"""What to prune, and that no rescaling changes it."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import minsharp as ms
from tests.support.zoo import BY_NAME, network, rescaled


def test_saliency_is_what_it_says_and_does_not_see_scales() -> None:
    entry = BY_NAME["lenet"]
    net, data = network(entry), entry.data()
    diagonal = ms.hessian_diagonal(net, data)
    found = diagonal.saliency(net)
    for name, h in diagonal.by_parameter.items():
        assert torch.allclose(found[name], h * net.parameters[name].detach() ** 2 / 2, rtol=1e-12)
    other = rescaled(net, ms.symmetries(net, data[0], "neuron").random(0, 30.0))
    moved = ms.hessian_diagonal(other, data).saliency(other)
    for name, score in found.items():
        assert torch.allclose(moved[name], score, rtol=1e-8, atol=1e-14)
    weights = {n: s for n, s in found.items() if s.dim() > 1}
    again = {n: moved[n] for n in weights}
    for scope in ("global", "layer"):
        masks, others = (ms.pruning_masks(s, 0.5, scope=scope) for s in (weights, again))
        assert all(torch.equal(masks[n], others[n]) for n in masks)


def test_masks_prune_the_lowest() -> None:
    scores = {"a": torch.tensor([[5.0, 1.0], [6.0, 2.0]]), "b": torch.tensor([0.5, 9.0])}
    everywhere = ms.pruning_masks(scores, 0.5)
    assert everywhere["a"].tolist() == [[1, 0], [1, 0]]
    assert everywhere["b"].tolist() == [0, 1]
    each = ms.pruning_masks(scores, 0.5, scope="layer")
    assert each["a"].tolist() == [[1, 0], [1, 0]]
    assert each["b"].tolist() == [0, 1]
    assert ms.pruning_masks(scores, 0.0)["a"].min() == 1
    assert ms.pruning_masks(scores, 1.0)["a"].max() == 0
    assert ms.pruning_masks({}, 0.5) == {}


def test_torch_takes_the_masks() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(16, 4)
    masks = ms.pruning_masks(ms.hessian_diagonal(model, x, parameters="*.weight").saliency(model), 0.75)
    prune.custom_from_mask(model[0], "weight", masks["0.weight"])
    prune.custom_from_mask(model[2], "weight", masks["2.weight"])
    zeros = sum(int((model[i].weight == 0).sum()) for i in (0, 2))
    assert zeros == int(0.75 * 56)


@pytest.mark.parametrize("amount", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.999, 1.0])
def test_as_many_as_torch_prunes(amount: float) -> None:
    """The masks of `global_unstructured` and `l1_unstructured` with the same scores: rounded to nearest."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3))
    scores = ms.hessian_diagonal(model, torch.randn(16, 4), parameters="*.weight").saliency(model)
    assert any(int(a * 49) != round(a * 49) for a in (0.1, 0.3, 0.7))
    layers = {"0.weight": (model[0], "weight"), "2.weight": (model[2], "weight")}
    each = ms.pruning_masks(scores, amount, scope="layer")
    for name, (layer, weight) in layers.items():
        prune.l1_unstructured(layer, weight, amount, importance_scores=scores[name])
        assert torch.equal(layer.weight_mask, each[name])
        prune.remove(layer, weight)
    given = {layer: scores[name] for name, layer in layers.items()}
    prune.global_unstructured(list(given), prune.L1Unstructured, given, amount=amount)
    everywhere = ms.pruning_masks(scores, amount)
    assert all(torch.equal(layer.weight_mask, everywhere[name]) for name, (layer, _) in layers.items())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_have_no_saliency(value: float) -> None:
    model: Any = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    diagonal = ms.hessian_diagonal(model, torch.randn(16, 4))
    with torch.no_grad():
        model[2].weight[0, 0] = value
    with pytest.raises(
        ms.NonFiniteError, match=r"the weights of '2\.weight' are not all finite: they have no saliency"
    ):
        diagonal.saliency(model)


def test_what_is_no_score_is_refused() -> None:
    given: tuple[tuple[Any, Any, str], ...] = (
        (5, 0.5, "scores=int: expected a tensor for each parameter"),
        ({"a": 1}, 0.5, r"scores=\{'a': 'int'\}: expected a tensor for each parameter"),
        ({"a": torch.ones(3)}, "half", "amount='half': expected the share to prune"),
        ({"a": torch.ones(3)}, True, "amount=True: expected the share to prune"),
    )
    for scores, amount, message in given:
        with pytest.raises(ms.InputError, match=message):
            ms.pruning_masks(scores, amount)


def test_what_is_refused() -> None:
    with pytest.raises(ms.InputError, match=r"amount=1\.5: expected the share"):
        ms.pruning_masks({}, 1.5)
    with pytest.raises(ms.InputError, match=r"amount='half': expected the share"):
        ms.pruning_masks({}, "half")  # type: ignore[arg-type]
    with pytest.raises(ms.InputError, match=r"scores=\{'a': 'list'\}: expected a tensor"):
        ms.pruning_masks({"a": [1.0]}, 0.5)  # type: ignore[dict-item]
    with pytest.raises(ms.InputError, match="scope='row'"):
        ms.pruning_masks({}, 0.5, scope="row")  # type: ignore[arg-type]
    with pytest.raises(ms.InputError, match="the scores of 'a' are not all finite"):
        ms.pruning_masks({"a": torch.tensor([float("nan")])}, 0.5)
    entry = BY_NAME["mlp"]
    with pytest.raises(ms.InputError, match="these results are of another network"):
        ms.hessian_diagonal(network(entry), entry.data()).saliency(nn.Linear(2, 2))
