"""How images become tensors: resized, cropped, and their pixels normalised, as the network was trained."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..extras import required

Size = int | tuple[int, int] | None
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
MODES = {1: "L", 3: "RGB"}
_LARGEST = 1 << 14


@dataclass(frozen=True)
class Preparation:
    """What is done to an image, in this order; nothing but pixels from 0 to 1 unless asked for.

    >>> print(Preparation.of(["resize=256", "crop=224", "mean=imagenet", "std=imagenet"]))
    resize=256 (shorter side, bilinear), crop=224x224, (pixels - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    """

    resize: Size = None
    """The shorter side, or height and width."""
    crop: Size = None
    """Side, or height and width, of what is kept of the middle."""
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    """For each channel, or for all: (pixels - mean) / std of pixels from 0 to 1."""
    channels: int = 3
    interpolation: str = "bilinear"

    @staticmethod
    def of(words: Sequence[str]) -> "Preparation":
        """From words such as ``resize=256``."""
        given: dict[str, Any] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or name not in _PARSERS:
                raise InputError(f"--image {word}: expected one of {', '.join(_EXAMPLES)}")
            try:
                given[name] = _PARSERS[name](name, value)
            except ValueError:
                example = next(e for e in _EXAMPLES if e.startswith(name))
                raise InputError(f"--image {word}: expected something like {example}") from None
        made = Preparation(**given)
        for name in ("mean", "std"):
            if len(getattr(made, name)) not in (1, made.channels):
                raise InputError(f"--image {name}: {len(getattr(made, name))} numbers for {made.channels} channels")
        return made

    def __str__(self) -> str:
        steps = []
        if self.resize is not None:
            side = "shorter side, " if isinstance(self.resize, int) else ""
            steps.append(f"resize={_text(self.resize)} ({side}{self.interpolation})")
        if self.crop is not None:
            steps.append(f"crop={_text(_pair(self.crop))}")
        if self.channels == 1:
            steps.append("grey")
        return ", ".join([*steps, self.scaling])

    @property
    def scaling(self) -> str:
        """What happens to the pixels, in words."""
        if self.mean == (0.0,) and self.std == (1.0,):
            return "pixels from 0 to 1"
        return f"(pixels - {_numbers(self.mean)}) / {_numbers(self.std)}"

    @property
    def moves_pixels(self) -> bool:
        """Whether more is asked for than a normalisation."""
        return self != Preparation(mean=self.mean, std=self.std)

    def normalised(self, pixels: Tensor) -> Tensor:
        """(..., channels, height, width) from 0 to 1 -> the same, normalised."""
        mean, std = (torch.tensor(v, dtype=pixels.dtype).view(-1, 1, 1) for v in (self.mean, self.std))
        return (pixels - mean) / std

    def tensor(self, image: Any) -> Tensor:
        """An image of Pillow's -> (channels, height, width) in float32."""
        image = self._cropped(self._resized(image))
        raw = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(image.height, image.width, -1)
        return self.normalised(raw.movedim(-1, 0).to(torch.float32) / 255)

    def _resized(self, image: Any) -> Any:
        if self.resize is None:
            return image
        if isinstance(self.resize, int):
            short, long = sorted(image.size)
            other = int(self.resize * long / short)
            size = (self.resize, other) if image.width <= image.height else (other, self.resize)
        else:
            size = (self.resize[1], self.resize[0])
        if max(size) > _LARGEST:
            raise InputError(f"an image of {image.width} x {image.height} pixels, resized to {size[0]} x {size[1]}")
        return image.resize(size, _resampling(self.interpolation))

    def _cropped(self, image: Any) -> Any:
        if self.crop is None:
            return image
        height, width = _pair(self.crop)
        if height > image.height or width > image.width:
            raise InputError(
                f"an image of {image.width} x {image.height} pixels is smaller than crop={height}x{width}; "
                f"resize it first: --image resize={max(height, width)}"
            )
        top, left = round((image.height - height) / 2), round((image.width - width) / 2)
        return image.crop((left, top, left + width, top + height))


def _resampling(name: str) -> Any:
    return getattr(required("PIL.Image", "resizing images", "images").Resampling, name.upper())


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _text(size: int | tuple[int, int]) -> str:
    return str(size) if isinstance(size, int) else f"{size[0]}x{size[1]}"


def _numbers(values: tuple[float, ...]) -> str:
    return f"{values[0]:g}" if len(values) == 1 else f"({', '.join(f'{v:g}' for v in values)})"


def _size(name: str, text: str) -> Size:
    sides = [int(part) for part in text.split("x")]
    if not all(0 < side <= _LARGEST for side in sides) or len(sides) > 2:
        raise ValueError(text)
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def _levels(name: str, text: str) -> tuple[float, ...]:
    values = IMAGENET[name] if text == "imagenet" else tuple(float(part) for part in text.split(","))
    if not all(math.isfinite(v) and (v > 0 or name == "mean") for v in values):
        raise ValueError(text)
    return values


def _channels(name: str, text: str) -> int:
    if int(text) not in MODES:
        raise ValueError(text)
    return int(text)


def _interpolation(name: str, text: str) -> str:
    if text not in INTERPOLATIONS:
        raise ValueError(text)
    return text


_PARSERS = {
    "resize": _size,
    "crop": _size,
    "mean": _levels,
    "std": _levels,
    "channels": _channels,
    "interpolation": _interpolation,
}
_EXAMPLES = (
    "resize=256 or resize=256x320",
    "crop=224 or crop=224x288",
    "mean=0.485,0.456,0.406 or mean=imagenet",
    "std=0.229,0.224,0.225 or std=imagenet",
    "channels=1",
    "interpolation=bicubic",
)
