"""The windows of convolutions: the same numbers for one, two or three dimensions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """A convolution's window: the same numbers for one, two or three dimensions."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @staticmethod
    def of(bound: Mapping[str, Any]) -> "Geometry":
        """Read from a convolution's arguments."""
        kernel = tuple(bound["weight"].shape[2:])
        stride, dilation = each(bound["stride"], kernel), each(bound["dilation"], kernel)
        padding = bound["padding"]
        if padding == "valid":
            before = after = (0,) * len(kernel)
        elif padding == "same":
            total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
            before = tuple(t // 2 for t in total)
            after = tuple(t - t // 2 for t in total)
        else:
            before = after = each(padding, kernel)
        return Geometry(kernel, stride, before, after, dilation, bound["groups"])

    @property
    def pads(self) -> list[int]:
        """In the order that `torch.nn.functional.pad` wants."""
        return [p for pair in reversed(list(zip(self.before, self.after, strict=True))) for p in pair]

    def left_over(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """How many rows at the end of each axis no window reaches, because the stride does not divide."""
        return tuple(
            (size + before + after - dilation * (kernel - 1) - 1) % stride
            for size, before, after, dilation, kernel, stride in zip(
                sizes, self.before, self.after, self.dilation, self.kernel, self.stride, strict=True
            )
        )

    def padded(self, x: Tensor) -> Tensor:
        """With the zeros around it."""
        return F.pad(x, self.pads) if any(self.pads) else x

    def by_place(self, window: Sequence[int], x: Tensor) -> tuple["Geometry", list[Tensor]]:
        """What of the input is met at each place in the windows of a pool that follows, and how to slide over it.

        The windows lie side by side from the first position on; positions that none of them covers are left out.
        """
        x = self.padded(x)
        reaches = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]
        starts, lengths = [], []
        for size, reach, step, width in zip(x.shape[2:], reaches, self.stride, window, strict=True):
            count = ((size - reach) // step + 1) // width
            starts.append(range(0, width * step, step))
            lengths.append((count - 1) * width * step + reach)
        parts = [
            x[:, :, *(slice(start, start + length) for start, length in zip(place, lengths, strict=True))]
            for place in product(*starts)
        ]
        none = (0,) * len(self.kernel)
        stride = tuple(step * width for step, width in zip(self.stride, window, strict=True))
        return replace(self, stride=stride, before=none, after=none), parts

    def add_taps(self, gram: Tensor) -> Tensor:
        """From products of pixels to products of windows: (n, g, *space, *space) to (n, g, *positions, *positions).

        <window l, window m> = sum over taps t of pixel(l + t) pixel(m + t), one axis of the image after the other.
        """
        D = len(self.kernel)
        for d in range(D):
            reach = (self.kernel[d] - 1) * self.dilation[d]
            span = gram.shape[2 + d] - reach
            total: Tensor | None = None
            for tap in range(0, reach + 1, self.dilation[d]):
                part = gram.narrow(2 + d, tap, span).narrow(2 + D + d, tap, span)
                if self.stride[d] > 1:
                    index = [slice(None)] * gram.dim()
                    index[2 + d] = index[2 + D + d] = slice(None, None, self.stride[d])
                    part = part[tuple(index)]
                total = part.clone() if total is None else total.add_(part)
            assert total is not None
            gram = total
        return gram

    def windows(self, x: Tensor, positions: Sequence[int] | None = None) -> Tensor:
        """(N, channels, *space) to (N, g, channels/g * taps, positions); all positions, or the first so many."""
        return self._rows(self._taps(x, positions))

    def windows_by_place(self, window: Sequence[int], x: Tensor) -> Tensor:
        """The same, with the positions sorted by their place in the windows of a pool that follows."""
        geometry, parts = self.by_place(window, x)
        return self._rows(torch.stack([geometry._taps(part) for part in parts], dim=2 + len(self.kernel)))

    def _rows(self, taps: Tensor) -> Tensor:
        """(N, channels, *taps, ...) to (N, g, channels/g * taps, all the rest)."""
        channels, rest = taps.shape[1] // self.groups, taps.shape[2 + len(self.kernel) :]
        return taps.reshape(taps.shape[0], self.groups, channels * prod(self.kernel), prod(rest))

    def _taps(self, x: Tensor, positions: Sequence[int] | None = None) -> Tensor:
        """What each tap of the kernel meets, a view: (N, channels, *taps, *positions)."""
        x = self.padded(x)
        D = len(self.kernel)
        for d in range(D):
            x = x.unfold(2 + d, (self.kernel[d] - 1) * self.dilation[d] + 1, self.stride[d])
            x = x[..., :: self.dilation[d]]
            if positions is not None:
                x = x.narrow(2 + d, 0, positions[d])
        return x.permute(0, 1, *range(2 + D, 2 + 2 * D), *range(2, 2 + D))


def each(value: int | Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
    """One number for every dimension of a kernel, where one may stand for all."""
    items = (value,) if isinstance(value, int) else tuple(value)
    return items * len(kernel) if len(items) == 1 else items
