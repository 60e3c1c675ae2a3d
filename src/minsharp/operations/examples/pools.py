"""Pools, resizing and pixel shuffles."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .notation import Example
from .shorthand import Examples, called

aten = torch.ops.aten
SPACE = ("l", "h,l", "d,h,l")
SIZES = {"l": (4, 6), "h": (3, 4), "d": (2, 3), "c": (1, 2)}

Calls = Callable[..., Any]


def _places(rank: int) -> list[str]:
    """With a batch axis, without one, with the samples on another axis, and a parameter alone."""
    space = SPACE[rank - 1]
    return [f"x(n,c,{space})", f"x(n,{space})", f"x(a,n,{space})", f"w(c,{space})"]


def _on(call: Calls, rank: int, *texts: str) -> list[Example]:
    found = []
    for text in texts or _places(rank):
        used = {letter: SIZES[letter] for letter in "lhdc" if f",{letter}" in text or f"({letter}" in text}
        found.append(Example(call, text, used))
    return found


def _windows(pool: Calls, rank: int, *options: dict[str, Any], across: bool = True) -> list[Example]:
    """A pool with its options, each on the first shape; the plain one on all."""
    batch, bare, *_ = _places(rank)
    one = ",".join(["n", *["2"] * (rank - 1)])
    found = _on(lambda x: pool(x, 2), rank)
    found += _on(lambda x: pool(x, [2, 3, 3][-rank:], 1, 1), rank, batch, bare)
    for given in options:
        found += _on(lambda x, given=given: pool(x, **given), rank, batch)
    if across and rank > 1:
        found += _on(lambda x: pool(x, 1), rank, f"x(a,b,{one})")
        found += _on(lambda x: pool(x, (1,) * (rank - 1) + (2,)), rank, f"x(a,b,n{',2' * (rank - 2)},l)")
    return found


def _max(pool: Calls, rank: int, indices: bool) -> list[Example]:
    def call(x: Any, *args: Any, **given: Any) -> Any:
        return pool(x, *args, **given, return_indices=indices)

    options: list[dict[str, Any]] = [
        {"kernel_size": 2, "stride": 1},
        {"kernel_size": 2, "stride": 2, "ceil_mode": True},
        {"kernel_size": 2, "stride": 1, "dilation": 2} if rank < 3 else {"kernel_size": 1, "dilation": 2},
        {"kernel_size": 2, "stride": 2, "padding": 1, "ceil_mode": True},
    ]
    found = _windows(call, rank, *options, across=not indices)
    if indices:
        found += _on(lambda x: call(x, 2)[1], rank, _places(rank)[0])
        found += _on(lambda x: call(x, 2)[0], rank, _places(rank)[0])
    return found


def _average(pool: Calls, rank: int) -> list[Example]:
    options: list[dict[str, Any]] = [
        {"kernel_size": 2, "stride": 1, "padding": 1, "count_include_pad": False},
        {"kernel_size": 2, "stride": 2, "ceil_mode": True},
        {"kernel_size": 2, "stride": 1, "padding": 1, "ceil_mode": True},
    ]
    if rank > 1:
        options.append({"kernel_size": 2, "stride": 1, "padding": 1, "divisor_override": 3})
    return _windows(pool, rank, *options)


def _adaptive(pool: Calls, rank: int, *, many: bool = False) -> list[Example]:
    two, first = (2,) * rank, (1,) * rank
    found = _on(lambda x: pool(x, two if rank > 1 else 2), rank)
    found += _on(lambda x: pool(x, first if rank > 1 else 1), rank, *_places(rank)[:2])
    if rank > 1:
        found += _on(lambda x: pool(x, (2,) + (None,) * (rank - 1)), rank, *_places(rank)[:1])
    if many:
        found += _on(lambda x: pool(x, two if rank > 1 else 2, return_indices=True), rank, *_places(rank)[:3])
        found += _on(lambda x: pool(x, two if rank > 1 else 2, return_indices=True)[1], rank, *_places(rank)[:1])
    return found


def _resized(mode: str, rank: int, op: Calls, *, corners: bool = False) -> list[Example]:
    space = SPACE[rank - 1]
    texts = [f"x(n,c,{space})", f"x(a,n,{space})", f"w(1,c,{space})"]
    sizes = {letter: {"l": (3, 4), "h": (2, 3), "d": (2, 2)}[letter] for letter in space.split(",")}
    found = [Example(lambda x: F.interpolate(x, scale_factor=2, mode=mode), text, sizes) for text in texts]
    found.append(Example(lambda x: F.interpolate(x, size=(2,) * rank, mode=mode), texts[0], sizes))
    found.append(Example(lambda x: F.interpolate(x, scale_factor=1.5, mode=mode), texts[0], sizes))
    if corners:
        found.append(
            Example(lambda x: F.interpolate(x, size=(3,) * rank, mode=mode, align_corners=True), texts[0], sizes)
        )
        found.append(Example(lambda x: op(x, [5] * rank, False), texts[0], sizes))
    else:
        found.append(Example(lambda x: op(x, [5] * rank), texts[0], sizes))
    return found


_AVERAGES = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
_MAXIMA = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_TO_SIZE = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
_MAX_TO_SIZE = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)

EXAMPLES: Examples = {
    **{f"max_pool{r}d": _max(_MAXIMA[r - 1], r, False) for r in (1, 2, 3)},
    **{f"max_pool{r}d_with_indices": _max(_MAXIMA[r - 1], r, True) for r in (1, 2, 3)},
    **{f"avg_pool{r}d": _average(_AVERAGES[r - 1], r) for r in (1, 2, 3)},
    **{f"adaptive_avg_pool{r}d": _adaptive(_TO_SIZE[r - 1], r) for r in (1, 2, 3)},
    **{f"adaptive_max_pool{r}d": _adaptive(_MAX_TO_SIZE[r - 1], r, many=True) for r in (1, 2, 3)},
    "_adaptive_avg_pool2d": _on(lambda x: aten._adaptive_avg_pool2d(x, (2, 2)), 2),
    "upsample_nearest1d": _resized("nearest", 1, aten.upsample_nearest1d),
    "upsample_nearest2d": _resized("nearest", 2, aten.upsample_nearest2d),
    "upsample_nearest3d": _resized("nearest", 3, aten.upsample_nearest3d),
    "upsample_linear1d": _resized("linear", 1, aten.upsample_linear1d, corners=True),
    "upsample_bilinear2d": _resized("bilinear", 2, aten.upsample_bilinear2d, corners=True),
    "upsample_bicubic2d": _resized("bicubic", 2, aten.upsample_bicubic2d, corners=True),
    "pixel_shuffle": called(
        lambda x: F.pixel_shuffle(x, 2), "x(n,4,h,l)", "x(n,8,1,l)", "x(n,a,4,h,l)", "x(a,n,4,h,l)", "w(4,h,l)"
    ),
    "pixel_unshuffle": called(lambda x: F.pixel_unshuffle(x, 2), "x(n,c,2h,2l)", "x(a,n,1,2h,2)", "w(c,2,2l)"),
}
