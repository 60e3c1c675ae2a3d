"""Equations of products."""

import pytest
import torch

from minsharp.operations.products import Equation

EQUATIONS = {
    "ni,oi->no": (("ni", "oi"), "no"),
    "...i, oi -> ...o": (("abi", "oi"), "abo"),
    "ni,io": (("ni", "io"), "no"),
    "ba,cb": (("ba", "cb"), "ac"),
    "...ij,...jk->...ik": (("abij", "bjk"), "abik"),
}
RANKS = {
    "ni,oi->no": (2, 2),
    "...i, oi -> ...o": (3, 2),
    "ni,io": (2, 2),
    "ba,cb": (2, 2),
    "...ij,...jk->...ik": (4, 3),
}


@pytest.mark.parametrize("text", EQUATIONS)
def test_reading(text: str) -> None:
    found = Equation.of(text, RANKS[text])
    assert (found.factors, found.result) == EQUATIONS[text]


@pytest.mark.parametrize(
    ("text", "shapes", "plain"),
    [
        ("ni,oi->no", [(2, 3), (4, 3)], True),
        ("ni,oi->no", [(2, 3), (4, 1)], False),  # broadcast
        ("nii->ni", [(2, 3, 3)], False),  # a diagonal
        ("nij->nj", [(2, 3, 4)], False),  # a sum over a letter of its own
        ("ni,ij,nj->n", [(2, 3), (3, 4), (2, 4)], True),
    ],
)
def test_what_is_plain(text: str, shapes: list[tuple[int, ...]], plain: bool) -> None:
    assert Equation.of(text, [len(shape) for shape in shapes]).plain(shapes) is plain


def test_the_way_back_is_the_derivative() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(2, 3, 4), torch.randn(3, 5, 4)]
    equation = Equation.of("nhi,hoi->nho", [3, 3])
    G = torch.randn(6, 2, 3, 5)
    for i, tensor in enumerate(tensors):
        tensor.requires_grad_()
        made = torch.einsum("nhi,hoi->nho", *tensors)
        (expected,) = torch.autograd.grad(made, tensor, G, is_grads_batched=True)
        torch.testing.assert_close(torch.einsum(equation.back(i), G, tensors[1 - i]), expected)
