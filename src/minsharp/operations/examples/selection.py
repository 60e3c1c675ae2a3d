"""Some of the entries, several times, in another place, or beside others."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .notation import Example
from .shorthand import Examples, along, called

aten = torch.ops.aten


def _put(x: Tensor, values: Tensor, accumulate: bool = False) -> Tensor:
    """Into the columns 0 and 2."""
    result: Tensor = aten.index_put(x, [None, torch.tensor([0, 2])], values, accumulate)
    return result


def _halves(x: Tensor, y: Tensor) -> Tensor:
    """Written into a part of a tensor, which is what copying in place comes from."""
    z = x.clone()
    z[..., 0] = y
    return z


def _columns(x: Tensor, *places: int) -> Tensor:
    """The same columns in every sample, as gather and scatter want them."""
    return torch.tensor([list(places)]).expand(x.shape[0], len(places))


EXAMPLES: Examples = {
    "select": [
        *along(lambda x, dim: x.select(dim, 0)),
        Example(lambda x: x[:, -1], "x(n,a,b)"),
        Example(lambda x: x[:, 0], "i(n,a)<5"),
        Example(lambda x, W: F.linear(x, W[1]), "x(n,i) W(2,o,i)"),
        Example(lambda x, W: F.linear(F.relu(F.linear(x, W[0])), W[1]), "x(n,i) W(2,i,i)"),
    ],
    "slice": [
        *along(lambda x, dim: aten.slice(x, dim, 1)),
        Example(lambda x: x[:, :2], "x(n,i)", {"i": (3, 4)}),
        Example(lambda x: x[:, 1::2], "x(n,i,a)", {"i": (3, 4)}),
        Example(lambda x: x[..., :-1], "x(a,n,i)"),
        Example(lambda x: x[:, -2:], "i(n,3)<5"),
        Example(lambda x: x[:, 2:2], "x(n,3)"),
        Example(lambda x, W: F.linear(x, W[:2]), "x(n,i) W(3,i)"),
        Example(lambda x, W: F.linear(F.linear(x, W[:2]), W[2:, :2]), "x(n,i) W(4,i)", {"i": (2, 3)}),
        Example(lambda x, W: F.linear(x[:, :2], W[:, :2]) + F.linear(x[:, 2:], W[:, 2:]), "x(n,4) W(o,4)"),
    ],
    "narrow": [
        *along(lambda x, dim: x.narrow(dim, 0, 1)),
        Example(lambda x: x.narrow(1, 1, 2), "x(n,i)", {"i": (3, 4)}),
        Example(lambda x: x.narrow(-1, -2, 2), "x(n,a,i)", {"i": (3, 4)}),
        Example(lambda x, W: F.linear(x, W.narrow(0, 1, 2)), "x(n,i) W(3,i)"),
    ],
    "index": [
        Example(lambda x: x[:, [0, 2, 0]], "x(n,3)"),
        Example(lambda x: x[:, [0, 1], [1, 0]], "x(n,2,2)"),
        Example(lambda x, i: x[:, i], "x(n,5,a) i(b)!<5"),
        Example(lambda x, i: x[i], "x(5,n) i(b)!<5"),
        Example(lambda W, i: W[i], "W(5,a) i(n)<5"),
        Example(lambda W, i: W[i], "W(5,a) i(n,b)<5"),
        Example(lambda W, i: W[:, i], "W(a,5) i(n)<5"),
        Example(lambda W, i, j: W[i, j], "W(5,3) i(n)<5 j(n)<3"),
        Example(lambda x, i: x[torch.arange(x.shape[0]), i], "x(n,5,a) i(n)<5"),
        Example(lambda x: x[:, torch.tensor([True, False, True])], "x(n,3)"),
        Example(lambda x, W: F.linear(x, W[[1, 0, 1]]), "x(n,i) W(2,i)"),
        Example(lambda x: x[:, [1, 0]], "j(n,2)<5"),
        Example(lambda w: w[[0, 1, 1]], "w(2)"),
    ],
    "index_select": [
        Example(lambda x, i: x.index_select(1, i), "x(n,5) i(b)!<5"),
        Example(lambda x, i: x.index_select(-1, i), "x(n,a,5) i(b)!<5"),
        Example(lambda x, i: x.index_select(0, i), "x(5,n) i(b)!<5"),
        Example(lambda W, i: W.index_select(0, i), "W(5,a) i(n)<5"),
        Example(lambda W, i: W.index_select(1, i), "W(a,5) i(n)<5"),
        Example(lambda W, i: W.index_select(0, i), "W(5,a) i(b)!<5"),
        Example(lambda x, i: x.index_select(1, i), "x(n,5)! i(b)!<5"),
    ],
    "gather": [
        Example(lambda x, i: x.gather(1, i), "x(n,5) i(n,b)<5"),
        Example(lambda x, i: x.gather(-1, i), "x(n,a,5) i(n,a,b)<5"),
        Example(lambda x, i: x.gather(0, i), "x(5,n) i(b,n)<5"),
        Example(lambda W, i: W.expand(i.shape[0], -1).gather(1, i), "W(1,5) i(n,b)<5"),
        Example(lambda W, i: W.gather(0, i), "W(5,a) i(b,a)!<5"),
        Example(lambda x: x.gather(1, x.argmax(1, keepdim=True)), "x(n,i)"),
        Example(lambda x, i: x.gather(1, i, sparse_grad=False), "j(n,5)<5 i(n,b)<5"),
    ],
    "flip": [
        *along(lambda x, dim: x.flip(dim)),
        Example(lambda x: x.flip(1, -1), "x(n,a,b)"),
        Example(lambda x: x.flip(1), "i(n,a)<5"),
        Example(lambda x, W: F.linear(x, W.flip(0)), "x(n,i) W(o,i)"),
    ],
    "roll": [
        *along(lambda x, dim: x.roll(1, dim)),
        Example(lambda x: x.roll((1, -1), (1, 2)), "x(n,a,b)"),
        Example(lambda w: w.roll(1), "w(a,b)"),
        Example(lambda x, W: F.linear(x, W.roll(1, 1)), "x(n,i) W(o,i)"),
    ],
    "expand": [
        Example(lambda x: x.expand(-1, 3), "x(n,1)"),
        Example(lambda x: x.expand(2, -1, -1), "x(n,a)"),
        Example(lambda x: x.expand(x.shape[0], -1, 3), "x(n,a,1)"),
        Example(lambda x: x.expand(-1, -1, 3), "x(a,n,1)"),
        Example(lambda w, x: w.expand(x.shape[0], -1), "w(1,i) x(n,1)!"),
        Example(lambda w, x: w.expand(x.shape[0], 2, -1), "w(i) x(n,1)!"),
        Example(lambda w, x: w.expand(x.shape[0]), "w() x(n,1)!"),
        Example(lambda w, x: w.expand(2, x.shape[0], -1), "w(1,i) x(n,1)!"),
        Example(lambda w, x: (w.expand(2 * x.shape[0], -1) * x.flatten(0, 1)).view_as(x), "w(1,i) x(n,2,i)"),
        Example(lambda w, x: w.expand(-1, x.shape[0]), "w(i,1) x(n,1)!"),
        Example(lambda w: w.expand(3, -1), "w(i)"),
        Example(lambda x, w: F.linear(x, w.expand(3, -1)), "x(n,i) w(1,i)"),
    ],
    "expand_as": [
        Example(lambda x, y: x.expand_as(y), "x(n,1) y(n,i)"),
        Example(lambda w, y: w.expand_as(y), "w(i) y(n,i)"),
        Example(lambda w, y: w.expand_as(y), "w(i) y(n,i)!"),
        Example(lambda w, y: w.expand_as(y), "w() y(i,n)!"),
        Example(lambda x, w: x.expand_as(torch.cat([x, x], 1)) + w, "x(n,1) w(2)"),
        Example(lambda w, v: w.expand_as(v), "w(i) v(a,i)"),
        Example(lambda w, x: (w.expand_as(x.flatten(0, 1)) * x.flatten(0, 1)).view_as(x), "w(i) x(n,2,i)"),
    ],
    "broadcast_to": [
        Example(lambda x: torch.broadcast_to(x, (x.shape[0], 3)), "x(n,1)"),
        Example(lambda x: torch.broadcast_to(x, (2, *x.shape)), "x(n,a)"),
        Example(lambda w, x: torch.broadcast_to(w, (x.shape[0], w.shape[0])), "w(i) x(n,1)!"),
        Example(lambda w: torch.broadcast_to(w, (2, w.shape[0])), "w(i)"),
        Example(
            lambda w, x: (torch.broadcast_to(w, (2 * x.shape[0], w.shape[0])) * x.flatten(0, 1)).view_as(x),
            "w(i) x(n,2,i)",
        ),
    ],
    "repeat": [
        Example(lambda x: x.repeat(1, 2), "x(n,i)"),
        Example(lambda x: x.repeat(2, 1, 3), "x(n,i)"),
        Example(lambda x: x.repeat(2, 1), "x(i,n)"),
        Example(lambda w, x: w.repeat(x.shape[0], 1), "w(i) x(n,1)!"),
        Example(lambda w: w.repeat(2, 2), "w(i)"),
        Example(lambda x, W: F.linear(x, W.repeat(2, 1)), "x(n,i) W(o,i)"),
        Example(lambda x: x.repeat(1, 0), "x(n,i)"),
        Example(lambda x: x.repeat(2, 1).view(2, -1, x.shape[1]).transpose(0, 1), "x(n,i)"),
        Example(lambda x, W: (W.repeat(x.shape[0], 1) * x.flatten(0, 1)).view_as(x), "x(n,o,i) W(o,i)"),
    ],
    "tile": [
        Example(lambda x: x.tile(2), "x(n,i)"),
        Example(lambda x: x.tile(1, 2, 1), "x(n,a,b)"),
        Example(lambda w, x: w.tile(x.shape[0], 1), "w(i) x(n,1)!"),
        Example(lambda x, W: (W.tile(x.shape[0], 1) * x.flatten(0, 1)).view_as(x), "x(n,o,i) W(o,i)"),
        Example(lambda w: w.tile(2), "w(i)"),
    ],
    "diagonal": [
        Example(lambda x: x.diagonal(dim1=1, dim2=2), "x(n,a,b)"),
        Example(lambda x: x.diagonal(1, -2, -1), "x(n,3,3)"),
        Example(lambda x: x.diagonal(-1, 0, 2), "x(3,n,3)"),
        Example(lambda W: W.diagonal(), "W(a,b)"),
        Example(lambda x, W: x * W.diagonal(), "x(n,i) W(i,i)"),
    ],
    "diag_embed": [
        Example(torch.diag_embed, "x(n,a)"),
        Example(lambda x: torch.diag_embed(x, 1), "x(n,a)"),
        Example(lambda x: torch.diag_embed(x, -1, 0, 2), "x(n,a)"),
        Example(lambda x, w: F.linear(x, torch.diag_embed(w)), "x(n,i) w(i)"),
    ],
    "channel_shuffle": called(
        lambda x: F.channel_shuffle(x, 2), "x(n,2c,h,2)", "x(n,2c,h)", "x(n,4,2,h,2)", "w(1,2c,h,2)"
    ),
    "rot90": [
        Example(lambda x: x.rot90(1, (1, 2)), "x(n,a,b)"),
        Example(lambda x: x.rot90(2, (-1, -2)), "x(n,a,b)"),
        Example(lambda x: x.rot90(0, (1, 2)), "x(n,a,b)"),
        Example(lambda x: x.rot90(-1, (0, 2)), "x(a,n,b)"),
        Example(lambda w: w.rot90(), "w(a,b)"),
        Example(lambda x, W: F.linear(x, W.rot90()), "x(n,i) W(i,o)"),
    ],
    "slice_scatter": [
        Example(lambda x, y: torch.slice_scatter(x, y, 1, 1, 3), "x(n,4) y(n,2)"),
        Example(lambda x, w: torch.slice_scatter(x, w.expand(x.shape[0], 2), 1, 1, 3), "x(n,4) w(2)"),
        Example(lambda w, v: torch.slice_scatter(w, v, 0, 0, 4, 2), "w(4,a) v(2,a)"),
        Example(lambda x, y: torch.slice_scatter(x, y, -1, 0, 2), "x(n,a,3) y(n,a,2)"),
        Example(lambda x, y: torch.slice_scatter(x, y, 0, 0, 1), "x(3,n) y(1,n)"),
        Example(lambda x, y: torch.slice_scatter(x, y, 1, 0, 2), "x(n,3) y(n,2)!"),
        Example(lambda x: torch.slice_scatter(torch.zeros_like(x), x[:, :1], 1, 1, 2), "x(n,3)"),
    ],
    "select_scatter": [
        Example(lambda x, y: torch.select_scatter(x, y, 1, 0), "x(n,a,b) y(n,b)"),
        Example(lambda x, y: torch.select_scatter(x, y, -1, -1), "x(n,a) y(n)"),
        Example(lambda x, y: torch.select_scatter(x, y, 0, 0), "x(a,n) y(n)"),
        Example(lambda w, v: torch.select_scatter(w, v, 0, 1), "w(3,a) v(a)"),
        Example(lambda x, y: torch.select_scatter(x, y, 1, 0), "x(n,a) y(n)!"),
    ],
    "scatter": [
        Example(lambda x, y: x.scatter(1, _columns(x, 0, 2), y), "x(n,3) y(n,2)"),
        Example(lambda x, i, y: x.scatter(1, i, y), "x(n,4) i(n,1)<4 y(n,1)"),
        Example(lambda x, i: x.scatter(1, i, 1.5), "x(n,4) i(n,1)<4"),
        Example(lambda x, i: x.scatter(1, i, 0.0), "x(n,4) i(n,2)<4"),
        Example(lambda x, y: x.scatter(1, _columns(x, 0, 2), y, reduce="multiply"), "x(n,3) y(n,2)!"),
        Example(lambda x, y: x.scatter(1, _columns(x, 0, 2), y, reduce="add"), "x(n,3) y(n,2)!"),
        Example(lambda x: x.scatter(1, _columns(x, 0, 2), 1.5, reduce="add"), "x(n,3)"),
        Example(lambda x: x.scatter(1, _columns(x, 0, 2), 1.5, reduce="multiply"), "x(n,3)"),
        Example(lambda x: torch.zeros_like(x).scatter(1, _columns(x, 1, 2, 0), x), "x(n,3)"),
        Example(lambda x, y: x.scatter(0, torch.tensor([[1]]).expand(1, x.shape[1]), y), "x(3,n) y(1,n)"),
        Example(lambda w, v, i: w.scatter(0, i, v), "w(3,a) v(1,a) i(1,a)!<3"),
    ],
    "index_put": [
        Example(lambda x, y: _put(x, y), "x(n,4) y(n,2)"),
        Example(lambda x, w: _put(x, w), "x(n,4) w(2)"),
        Example(lambda x, w: _put(x, w), "x(n,4) w()"),
        Example(lambda x, y: _put(x, y, True), "x(n,4) y(n,2)"),
        Example(lambda x, w: _put(x, w, True), "x(n,4) w(2)"),
        Example(lambda x, c: _put(x, c), "x(n,4) c(2)!"),
        Example(lambda x, y: torch.index_put(x, (torch.tensor([1, 1]),), y, accumulate=True), "x(3,n) y(2,n)"),
        Example(lambda w, v: torch.index_put(w, (torch.tensor([0, 1]),), v), "w(3,a) v(2,a)"),
        Example(lambda x, m, w: torch.index_put(x, (m,), w), "x(n,4) m(n,4)? w()"),
        Example(lambda x, w: _put(torch.zeros_like(x), w), "x(n,4) w(2)"),
    ],
    "copy": [
        *called(lambda x, y: x.clone().copy_(y), "x(n,i) y(n,i)", "x(n,i) w(i)", "x(a,n) w(a,1)", "w(a,i) v(i)"),
        *called(lambda x, y: x.clone().copy_(y), "x(n,a) i(n,a)<5", "x(n,a) y(n,a)!"),
        Example(lambda i, x: i.clone().copy_(9 * x), "i(n,a)<5 x(n,a)"),
        Example(lambda x: torch.empty_like(x).copy_(x), "x(n,a)"),
        Example(_halves, "x(n,a,2) y(n,a)"),
    ],
    "col2im": [
        Example(lambda x: F.fold(x, (3, 4), 2), "x(n,8,6)"),
        Example(lambda x: F.fold(x, (3, 4), 2, stride=2, padding=1), "x(n,4,6)"),
        Example(lambda x: F.fold(x, (3, 3), 2, dilation=2), "x(n,4,1)"),
        Example(lambda w: F.fold(w, (2, 3), 2), "w(4,2)"),
    ],
    "im2col": [
        Example(lambda x: F.unfold(x, 2), "x(n,c,h,l)", {"h": (2, 3), "l": (3, 4)}),
        Example(lambda x: F.unfold(x, 2, padding=1, stride=2), "x(n,c,h,l)", {"h": (2, 3), "l": (3, 4)}),
        Example(lambda x: F.unfold(x, 2, dilation=2), "x(n,c,3,l)", {"l": (3, 4)}),
        Example(lambda w: F.unfold(w, 2), "w(c,2,3)"),
    ],
    "repeat_interleave": [
        Example(lambda x: x.repeat_interleave(2, 1), "x(n,i)"),
        Example(lambda x: x.repeat_interleave(2, -1), "x(n,a,i)"),
        Example(lambda x: x.repeat_interleave(2, 0), "x(i,n)"),
        Example(lambda w: w.repeat_interleave(2), "w(a,b)"),
        Example(lambda x: x.repeat_interleave(torch.tensor([2, 0, 1]), 1, output_size=3), "x(n,3)"),
        Example(lambda x, W: F.linear(x, W.repeat_interleave(2, 0)), "x(n,i) W(o,i)"),
        Example(lambda x: x.repeat_interleave(3, 0).view(-1, 3, x.shape[1]), "x(n,i)"),
        Example(lambda x, W, o: (W.repeat_interleave(x.shape[1], 0) * x.flatten(0, 1)).view_as(x), "x(o,n,i) W(o,i)"),
    ],
    "tensor_split": [
        Example(lambda x: x.tensor_split(2, 1), "x(n,2a)"),
        Example(lambda x: x.tensor_split(3, -1), "x(n,a,5)"),
        Example(lambda x: x.tensor_split([1, 2], 1)[1], "x(n,5)"),
        Example(lambda x: x.tensor_split(2, 0), "x(2a,n)"),
        Example(lambda w: w.tensor_split(2), "w(4,a)"),
    ],
    "chunk": [
        Example(lambda x: x.chunk(2, 1), "x(n,2a)"),
        Example(lambda x: x.chunk(2, -1), "x(n,a,3)"),
        Example(lambda x: x.chunk(2, 1)[1], "x(n,2a)"),
        Example(lambda x: x.chunk(2, 0), "x(2a,n)"),
        Example(lambda w: w.chunk(2), "w(4,a)"),
        Example(lambda x, W: F.linear(F.relu(F.linear(x, W.chunk(2)[0])), W.chunk(2)[1]), "x(n,i) W(2i,i)"),
    ],
    "split": [
        Example(lambda x: x.split(2, 1), "x(n,2a)"),
        Example(lambda x: x.split(2, -1), "x(n,a,3)"),
        Example(lambda x: x.split(2, 1)[-1], "x(n,2a)"),
        Example(lambda x: x.split(2, 0), "x(3,n)"),
        Example(lambda w: w.split(2), "w(4,a)"),
    ],
    "split_with_sizes": [
        Example(lambda x: x.split([1, 2], 1), "x(n,3)"),
        Example(lambda x: x.split([2, 0, 1], -1), "x(n,a,3)"),
        Example(lambda x: x.split([1, 2], 0)[1], "x(3,n)"),
        Example(lambda x, W: [F.linear(x, w) for w in W.split([1, 2])], "x(n,i) W(3,i)"),
    ],
    "unbind": [
        Example(lambda x: x.unbind(1), "x(n,2,a)"),
        Example(lambda x: x.unbind(-1), "x(n,3)"),
        Example(lambda x: x.unbind(0), "x(2,n)"),
        Example(lambda x: x.unbind(1)[1], "x(n,2,a)"),
        Example(lambda x, W: [F.linear(x, w) for w in W.unbind()], "x(n,i) W(2,o,i)"),
        Example(lambda x: x.unbind(1), "i(n,2)<5"),
    ],
    "unfold": [
        Example(lambda x: x.unfold(1, 2, 1), "x(n,3)"),
        Example(lambda x: x.unfold(-1, 2, 2), "x(n,a,4)"),
        Example(lambda x: x.unfold(0, 2, 1), "x(3,n)"),
        Example(lambda w: w.unfold(0, 2, 1), "w(3)"),
        Example(lambda x, w: F.linear(x, w.unfold(0, 2, 1)), "x(n,2) w(3)"),
    ],
    "tril": [
        *called(lambda x: x.tril(), "x(n,a,b)", "w(a,b)", "x(n,a,3,b)"),
        Example(lambda x: x.tril(-1), "x(n,3,b)"),
        Example(lambda x, W: F.linear(x, W.tril()), "x(n,i) W(o,i)"),
    ],
    "triu": [
        *called(lambda x: x.triu(), "x(n,a,b)", "w(a,b)"),
        Example(lambda x: x.triu(1), "x(n,a,3)"),
        Example(lambda x, W: F.linear(x, W.triu()), "x(n,i) W(o,i)"),
    ],
    "constant_pad_nd": [
        *called(lambda x: aten.constant_pad_nd(x, (1, 2)), "x(n,a)", "x(n,a,b)", "w(a)", "i(n,a)<5"),
        Example(lambda x: aten.constant_pad_nd(x, (1, 1, 0, 1), 1.5), "x(n,a,b)"),
        Example(lambda x: aten.constant_pad_nd(x, (-1, 1)), "x(n,3)"),
        Example(lambda x: aten.constant_pad_nd(x, (0, 0, 1, 0)), "x(a,n)"),
        Example(lambda x: F.relu(aten.constant_pad_nd(x, (1, 1), -float("inf"))), "x(n,a)"),
        Example(lambda x, W: F.linear(x, aten.constant_pad_nd(W, (0, 1))), "x(n,3) W(o,2)"),
    ],
    "pad": [
        *called(lambda x: F.pad(x, (1, 2)), "x(n,a)", "x(n,a,b)", "w(a)", "i(n,a)<5"),
        Example(lambda x: F.pad(x, (1, 1, 0, 1), value=1.5), "x(n,a,b)"),
        Example(lambda x: F.pad(x, (1, 1), value=0.0), "x(n,a)"),
        Example(lambda x: F.pad(x, (-1, 1)), "x(n,3)"),
        Example(lambda x: F.pad(x, (0, 0, 1, 0)), "x(a,n)"),
        *called(lambda x: F.pad(x, (1, 1), mode="circular"), "x(n,c,3)", "x(n,3)", "x(a,n,3)", "w(c,3)"),
        *called(lambda x: F.pad(x, (1, 1), mode="reflect"), "x(n,c,3)", "x(n,3)"),
        *called(lambda x: F.pad(x, (2, 0), mode="replicate"), "x(n,c,3)", "x(n,3)"),
        Example(lambda x: F.pad(x, (1, -1), mode="circular"), "x(n,4)"),
        Example(lambda x: F.pad(x, (1, 0, 0, 1), mode="circular"), "x(n,c,2,3)"),
    ],
    "reflection_pad1d": called(lambda x: aten.reflection_pad1d(x, (1, 2)), "x(n,c,3)", "x(n,4)", "x(a,n,3)", "w(c,3)"),
    "replication_pad1d": called(
        lambda x: aten.replication_pad1d(x, (1, 2)), "x(n,c,3)", "x(n,2)", "x(a,n,3)", "w(c,3)"
    ),
    "reflection_pad2d": called(
        lambda x: aten.reflection_pad2d(x, (1, 0, 1, 1)), "x(n,c,2,3)", "x(n,2,3)", "x(a,n,2,3)", "w(c,2,3)"
    ),
    "replication_pad2d": called(
        lambda x: aten.replication_pad2d(x, (1, 0, 1, 1)), "x(n,c,2,3)", "x(n,2,3)", "x(a,n,2,3)", "w(c,2,3)"
    ),
}
