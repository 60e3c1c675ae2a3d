"""Inputs by name: in any order, through **kwargs, with the labels of a collator among them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from tests.support.oracles import ggn_diagonal

D = torch.float64
G = torch.Generator().manual_seed(0)
X, Y, Z = (torch.randn(6, k, generator=G, dtype=D) for k in (4, 5, 1))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


class Kwargs(nn.Module):
    """Takes one input by name, and two through **kwargs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 3), nn.Linear(5, 3)
        self.double()

    def forward(self, x: Tensor, labels: Tensor | None = None, **more: Any) -> Any:
        logits = self.a(x).relu() + self.b(more["y"]) * more["z"]
        return {"loss": None if labels is None else nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_what_goes_through_kwargs_is_an_input() -> None:
    model = Kwargs()
    network = ms.read(model, {"z": Z[:3], "y": Y[:3], "x": X[:3]})
    assert [value.name for value in network.graph.inputs] == ["%x", "%y", "%z"]
    found = ms.hessian_trace(network, {"y": Y, "x": X, "z": Z, "labels": LABELS}).by_parameter

    class Logits(Kwargs):
        def forward(self, x: Tensor, labels: Tensor | None = None, **more: Any) -> Any:
            return super().forward(x, labels, **more)["logits"]

    plain, inputs, criterion = Logits(), {"x": X, "y": Y, "z": Z}, nn.CrossEntropyLoss()
    for name, value in found.items():
        expected = float(ggn_diagonal(plain, inputs, LABELS, criterion, name).sum())
        assert value == pytest.approx(expected, rel=1e-9)


def test_labels_in_the_example_are_no_input() -> None:
    batch = {"x": X, "y": Y, "z": Z, "labels": LABELS}
    network = ms.read(Kwargs(), batch)
    assert [value.name for value in network.graph.inputs] == ["%x", "%y", "%z"]
    assert ms.hessian_trace(network, batch).total == ms.hessian_trace(Kwargs(), batch).total
    assert ms.symmetries(network, batch).dimension == 0


def test_labels_that_forward_needs_are_an_input() -> None:
    class Needs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 3).double()

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return self.a(x) * labels

    network = ms.read(Needs(), {"labels": Z, "x": X})
    assert [value.name for value in network.graph.inputs] == ["%x", "%labels"]


class Named(nn.Module):
    """Takes two inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 3).double()

    def forward(self, x: Tensor, mask: Tensor, scale: Tensor | None = None) -> Tensor:
        return self.a(x) * mask


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ({"x": X, "mask": Z, "idx": Z}, "forward of Named has no argument 'idx': it takes 'x', 'mask', 'scale'"),
        ({"x": X, "mask": Z, "y": Y, "idx": Z, "labels": LABELS}, "has no argument 'idx', 'y': it takes 'x', 'mask'"),
        ({"x": X}, "forward of Named needs 'mask' too: it takes 'x', 'mask', 'scale'"),
        ({"x": X, "masks": Z}, "has no argument 'masks' and needs 'mask' too"),
        ({"x": X, "target": LABELS, "mask": Z}, r"the targets are called 'labels', or go in a pair: \(inputs, targets"),
        ({"x": X, "mask": True}, "'mask' among the inputs of a batch is bool, expected a tensor"),
        ({"x": X, "mask": Z, "names": ["a", "b"]}, r"'names' among the inputs of a batch is list of \(str, str\)"),
        ({"x": X, "mask": torch.tensor(1.0)}, r"'mask' among the inputs of a batch is a tensor of shape \(\)"),
    ],
)
def test_a_dict_that_does_not_fit_is_refused_by_its_keys(batch: Any, text: str) -> None:
    with pytest.raises(ms.InputError, match=text):
        ms.hessian_trace(Named(), batch)


def test_a_dict_without_a_name_of_forward_goes_in_whole() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 3).double()

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return self.a(batch["x"])

    model = Whole()
    assert ms.hessian_trace(model, {"x": X, "z": Z}).total == pytest.approx(ms.hessian_trace(model.a, X).total)
