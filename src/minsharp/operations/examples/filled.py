"""Tensors of one number: made anew, or written over others."""

import torch
from torch import Tensor

from .notation import Example
from .shorthand import Examples, called


def _written(x: Tensor, value: Tensor | float) -> Tensor:
    """One number written into the first column."""
    z = 1 * x
    z[:, 0] = value
    return z


EXAMPLES: Examples = {
    "zeros": [
        Example(lambda x: x + torch.zeros(3, dtype=x.dtype), "x(n,3)"),
        Example(lambda x: torch.cat([x, torch.zeros(x.shape[0], 2, dtype=x.dtype)], 1), "x(n,3)"),
        Example(lambda x: x * torch.zeros(1, dtype=x.dtype), "x(n,3)"),
        Example(lambda x: torch.zeros(x.shape[0], 2), "x(n,3)"),
        Example(lambda x: x + torch.zeros(3, dtype=torch.int64), "x(n,3)"),
        Example(lambda x: torch.where(torch.zeros(3, dtype=torch.bool), x, 2 * x), "x(n,3)"),
    ],
    "zeros_like": [
        *called(lambda x: torch.zeros_like(x), "x(n,a)", "x(a,n)", "w(a)", "i(n,a)<5"),
        Example(lambda x: torch.maximum(x, torch.zeros_like(x)), "x(n,a)"),
        Example(lambda x, w: torch.cat([x, torch.zeros_like(w).expand(x.shape[0], -1)], 1), "x(n,a) w(b)"),
        Example(lambda x: torch.zeros_like(x, dtype=torch.int64) + x, "x(n,a)"),
        Example(lambda x: torch.where(x > 0, x, torch.zeros_like(x)), "x(n,a)"),
        Example(lambda x: x == torch.zeros_like(x), "x(n,a)"),
    ],
    "zero": [
        *called(lambda x: (1 * x).zero_(), "x(n,a)", "x(a,n)", "w(a)", "i(n,a)<5"),
        Example(lambda x: torch.maximum(x, (1 * x).zero_()), "x(n,a)"),
    ],
    "fill": [
        *called(lambda x: (1 * x).fill_(1.5), "x(n,a)", "x(a,n)", "w(a)", "i(n,a)<5"),
        *called(lambda x, w: (1 * x).fill_(w), "x(n,a) w()", "x(a,n) w()", "w(a) v()", "x(n,a) i()!<5"),
        *called(lambda x, w: _written(x, w), "x(n,3) w()", "w(2,3) v()"),
        Example(lambda x: _written(x, 0.5), "x(n,3)"),
        Example(lambda x: _written(x, 0.0), "x(n,3)"),
        Example(lambda x, w: (1 * x).fill_(w[0] * w[1]) * x, "x(n,a) w(2)"),
    ],
    "new_zeros": [
        Example(lambda x: torch.cat([x, x.new_zeros(x.shape[0], 2)], 1), "x(n,3)"),
        Example(lambda x: x + x.new_zeros(3), "x(n,3)"),
        Example(lambda w: w.new_zeros(3), "w(2)"),
        Example(lambda x: x.new_zeros(x.shape[0], 2, dtype=torch.int64) + x, "x(n,2)"),
    ],
    "ones_like": [
        *called(lambda x: torch.ones_like(x), "x(n,a)", "x(a,n)", "w(a)", "i(n,a)<5"),
        Example(lambda x: x * torch.ones_like(x), "x(n,a)"),
        Example(lambda x: x + torch.ones_like(x), "x(n,a)"),
        Example(lambda x, w: torch.cat([x, torch.ones_like(x[:, :1]) * w], 1), "x(n,a) w(b)"),
        Example(lambda x: torch.ones_like(x, dtype=torch.bool) * x, "x(n,a)"),
    ],
    "full_like": [
        *called(lambda x: torch.full_like(x, 1.5), "x(n,a)", "x(a,n)", "w(a)"),
        Example(lambda x: x + torch.full_like(x, 2.0), "x(n,a)"),
        Example(lambda x: torch.maximum(x, torch.full_like(x, 0.0)), "x(n,a)"),
        Example(lambda x: torch.maximum(x, torch.full_like(x, 0.5)), "x(n,a)"),
        Example(lambda x: torch.full_like(x, 2, dtype=torch.int64) * x, "x(n,a)"),
    ],
    "empty_like": [
        Example(lambda x: torch.empty_like(x).copy_(x), "x(n,a)"),
        Example(lambda x: torch.empty_like(x).fill_(0.5) + x, "x(n,a)"),
        Example(lambda x: torch.empty_like(x).zero_() + x, "x(a,n)"),
        Example(lambda w: torch.empty_like(w).copy_(w), "w(a)"),
    ],
    "new_ones": [
        Example(lambda x: torch.cat([x, x.new_ones(x.shape[0], 2)], 1), "x(n,3)"),
        Example(lambda x: x + x.new_ones(3), "x(n,3)"),
        Example(lambda x: x * x.new_ones(3), "x(n,3)"),
        Example(lambda w: w * w.new_ones(3), "w(3)"),
    ],
    "new_full": [
        Example(lambda x: torch.cat([x, x.new_full((x.shape[0], 2), 0.5)], 1), "x(n,3)"),
        Example(lambda x: torch.maximum(x, x.new_full((), 0.0)), "x(n,3)"),
        Example(lambda x: torch.maximum(x, x.new_full((1,), 0.5)), "x(n,3)"),
    ],
    "new_empty": [
        Example(lambda x: x.new_empty(x.shape[0], 3).copy_(x), "x(n,3)"),
        Example(lambda x: x.new_empty(x.shape[0], 2).fill_(0.5) + x, "x(n,2)"),
    ],
}
