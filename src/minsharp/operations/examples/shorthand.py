"""Lists of tensors that whole families of operations are tried on."""

import re
from collections.abc import Callable
from typing import Any

from .notation import Example

Examples = dict[str, list[Example]]


def _varies(text: str) -> bool:
    """Whether all of it varies: what is made of parameters alone is tied, and gives freedom away."""
    return all("n" in axes for axes in re.findall(r"\(([^)]*)\)", text))


ONE = ("x(n,i)", "x(i,n)", "x(n,a,b)", "x(n)", "w(i)")
"""Samples first and last, with more axes and with none, and a parameter alone."""

TWO = (
    "x(n,i) y(n,i)",
    "x(n,i) w(i)",
    "w(i) x(n,i)",
    "x(n,a,1) y(n,1,b)",
    "x(n,i) w(a,1,i)",
    "w(1,a) x(n,1)",
    "x(i,n) w(i,1)",
    "x(n,i) w()",
    "x(n,a,i) c(a,1)!",
    "w(i) v(a,1)",
)
"""Samples and parameters in turn, broadcast in all directions, of lower and higher rank."""


def unary(call: Callable[..., Any], *more: str, free: bool = False) -> list[Example]:
    """A function of one tensor."""
    return [
        *(Example(call, text, free=free and _varies(text)) for text in (*ONE, *more)),
        Example(call, "x(n,i)", empty=True),
    ]


def binary(call: Callable[..., Any], *more: str, free: bool = False) -> list[Example]:
    """A function of two tensors that broadcast; also of one tensor twice."""
    return [
        *(Example(call, text, free=free and _varies(text)) for text in (*TWO, *more)),
        Example(call, "x(n,i) w(i)", empty=True),
        Example(lambda x: call(x, x), "x(n,i)"),
        Example(lambda x, w: call(call(x, w), w), "x(n,i) w(i)"),
    ]


def along(call: Callable[..., Any], *, last: bool = True) -> list[Example]:
    """A function ``call(x, dim)`` along an axis."""
    return [
        Example(lambda x: call(x, 1), "x(n,i)"),
        Example(lambda x: call(x, -1), "x(n,a,i)"),
        Example(lambda x: call(x, 1), "x(n,i,a)"),
        Example(lambda x: call(x, 0), "x(i,n)"),
        Example(lambda x: call(x, -3), "x(i,a,n)"),
        Example(lambda w: call(w, 0), "w(i,a)"),
        Example(lambda x: call(x, 1), "x(n,1,a)"),
    ]


def called(call: Callable[..., Any], *texts: str, free: bool = False, **sizes: tuple[int, int]) -> list[Example]:
    """One call on several lists of tensors."""
    return [Example(call, text, sizes, free=free and _varies(text)) for text in texts]
