"""Convolutions, plain and transposed, and what the engine makes of a convolution that goes into a max pool."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from .notation import Example
from .shorthand import Examples

SPACE = ("l", "h,l", "d,h,l")
ROOM = {"l": (5, 6), "h": (4, 5), "d": (3, 4)}
"""Sizes that leave room for the windows below."""


def _plain(conv: Callable[..., Any], rank: int) -> list[Example]:
    space, k = SPACE[rank - 1], ",".join(["2"] * rank)
    point = ",".join(["1"] * rank)
    sizes = {letter: ROOM[letter] for letter in space.split(",")}
    x, W = f"x(n,c,{space})", f"W(o,c,{k})"

    def example(call: Callable[..., Any], text: str, *, free: bool = False) -> Example:
        return Example(call, text, sizes, free=free)

    return [
        example(lambda x, W, b: conv(x, W, b), f"{x} {W} b(o)", free=rank == 1),
        example(lambda x, W: conv(x, W), f"{x} {W}"),
        example(lambda x, W, b: conv(x, W, b, stride=2, padding=1), f"{x} {W} b(o)"),
        example(lambda x, W, b: conv(x, W, b, dilation=2), f"{x} {W} b(o)"),
        example(lambda x, W, b: conv(x, W, b, groups=2), f"x(n,2g,{space}) W(2o,g,{k}) b(2o)"),
        example(lambda x, W, c: conv(x, W, groups=c, padding=1, stride=2), f"x(n,c,{space}) W(c,1,{k})"),
        example(lambda x, W, b: conv(x, W, b, padding="same"), f"{x} {W} b(o)"),
        example(lambda x, W, b: conv(x, W, b, padding="same", dilation=2), f"{x} W(o,c,{k.replace('2', '3')}) b(o)"),
        example(lambda x, W, b: conv(x, W, b, padding="valid"), f"{x} {W} b(o)"),
        example(lambda x, W, b: conv(x, W, b), f"{x} {W}! b(o)"),
        example(lambda x, W: conv(F.relu(conv(x, W)), W), f"x(n,c,{space}) W(c,c,{point})"),
        example(lambda x, W, b, a: conv(x.flatten(0, 1), W, b).unflatten(0, (-1, a)), f"x(n,a,c,{space}) {W} b(o)"),
        example(lambda w, x: conv(w, x), f"w(1,c,{space}) x(n,c,{k})"),
        example(lambda w, x, y: conv(w, x, y, stride=2), f"w(a,c,{space}) x(n,c,{k}) y(n)"),
        example(lambda w, W: conv(w, W), f"w(1,c,{space}) {W}"),
        example(lambda x, W, b: conv(x, W, b), f"x(c,n{',2' * (rank - 1)}) W(o,c,{point}) b(o)"),
    ]


def _transposed(conv: Callable[..., Any], rank: int) -> list[Example]:
    space, k = ("l", "h,l", "2,h,l")[rank - 1], ",".join(["2"] * rank)
    three = k.replace("2", "3")
    sizes = {letter: {"l": (3, 4), "h": (2, 3)}[letter] for letter in space.split(",") if letter != "2"}
    x, W = f"x(n,c,{space})", f"W(c,o,{k})"

    def example(call: Callable[..., Any], text: str, *, free: bool = False) -> Example:
        return Example(call, text, sizes, free=free)

    return [
        example(lambda x, W, b: conv(x, W, b), f"{x} {W} b(o)", free=rank == 1),
        example(lambda x, W: conv(x, W), f"{x} {W}"),
        example(lambda x, W, b: conv(x, W, b, stride=2, padding=1), f"{x} {W} b(o)"),
        example(lambda x, W, b: conv(x, W, b, stride=2, output_padding=1), f"{x} {W} b(o)"),
        example(lambda x, W: conv(x, W, stride=3, padding=1, output_padding=2), f"{x} W(c,2,{three})"),
        example(lambda x, W: conv(x, W, dilation=2), f"{x} {W}"),
        example(lambda x, W, b: conv(x, W, b, groups=2), f"x(n,2g,{space}) W(2g,o,{k}) b(4)".replace("o", "2")),
        example(lambda x, W: conv(x, W, groups=2, stride=2), f"x(n,2g,{space}) W(2g,o,{k})"),
        example(lambda x, W, b: conv(x, W, b), f"{x} {W}! b(o)"),
        example(lambda x, W, a: conv(x.flatten(0, 1), W).unflatten(0, (-1, a)), f"x(n,a,c,{space}) {W}"),
        example(lambda w, x: conv(w, x), f"w(a,c,{space}) x(c,n,{k})"),
        example(lambda w, W: conv(w, W), f"w(1,c,{space}) {W}"),
    ]


def _pooled(conv: Callable[..., Any], pool: Callable[..., Any], rank: int) -> list[Example]:
    """Windows side by side over the first convolution of a network."""
    space, k = SPACE[rank - 1], ",".join(["2"] * rank)
    sizes = {letter: ROOM[letter] for letter in space.split(",")}
    W = f"W(o,c,{k})"
    return [
        Example(lambda x, W, b: pool(conv(x, W, b), 2), f"x(n,c,{space})! {W} b(o)", sizes),
        Example(lambda x, W, b: pool(conv(x, W, b, padding=1), 2).relu(), f"x(n,c,{space})! {W} b(o)", sizes),
        Example(lambda x, W, b: pool(conv(x, W, b, padding="same"), 2), f"x(n,c,{space})! {W} b(o)", sizes),
        Example(lambda x, W, b: pool(conv(x, W, b, 2, 1, groups=2), 2), f"x(n,2g,{space})! W(2o,g,{k}) b(2o)", sizes),
    ]


_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_POOLS = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_BY_PLACE = [e for r in (1, 2) for e in _pooled(_CONVOLUTIONS[r - 1], _POOLS[r - 1], r)]

EXAMPLES: Examples = {
    **{f"conv{rank}d": _plain(_CONVOLUTIONS[rank - 1], rank) for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": _transposed(_TRANSPOSED[rank - 1], rank) for rank in (1, 2, 3)},
    "conv_by_place": _BY_PLACE,
    "max_over_places": _BY_PLACE,
    "add_to_channels": _BY_PLACE,
}
