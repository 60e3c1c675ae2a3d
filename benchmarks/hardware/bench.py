"""What all measurements share: networks, data, curvature, and a folder with what has been measured."""

import argparse
import base64
import json
import zlib
from collections.abc import Callable, Mapping
from math import sqrt
from pathlib import Path
from time import monotonic, process_time
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.errors import InputError
from minsharp.files import write_text
from minsharp.measures.noise import Bits, Noise, bits_of, quantized

from .equalise import equalised, largest, norm
from .networks import Data, Pairs, depthwise, digits, images, resnet

VARIANTS = ("original", "flattest", "cross-layer", "equal norms", "matched, Hessian", "matched, margin")
RESNETS = {"resnet20": 3, "resnet56": 9}
DIGITS = ("digits MLP", "digits CNN")
BATCH = 50


Found = TypeVar("Found")


class LaterError(Exception):
    """The time for new measurements is up."""


class Bench:
    """The networks, the data, and a folder with what has been measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.end = monotonic() + 60 * options.minutes
        self.missing: list[str] = []
        self._held: dict[Any, Any] = {}

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._held:
            self._held[key] = make()
        return self._held[key]

    def samples(self, name: str) -> int:
        """How many images of the test set are taken for a network."""
        return int(self.options.samples_resnet56 if name == "resnet56" else self.options.samples)

    def _file(self, name: str) -> Path:
        path: Path | None = getattr(self.options, name)
        if path is None:
            raise InputError(f"a number is not measured yet, and needs --{name} FILE")
        return path

    def train(self, samples: int | None = None) -> Data:
        """The first training images."""
        x, y = self._once("train", lambda: images(self._file("train")))
        return x[:samples], y[:samples]

    def test(self, name: str) -> Data:
        """The images that a network is tested on."""
        if name in DIGITS:
            return self._digits(name)[1]
        samples = self.samples(name)
        return self._once(samples, lambda: images(self._file("test"), samples))

    def _digits(self, name: str) -> tuple[nn.Module, Data]:
        return self._once(name, lambda: digits(name))

    def network(self, name: str) -> tuple[nn.Module, Pairs]:
        """A network by name, with the pairs of layers that only a ReLU separates."""
        if name in DIGITS:
            return self._digits(name)[0], []
        if name in RESNETS:
            return self._once(name, lambda: resnet(RESNETS[name], self._file(name)))
        return self._once(name, lambda: depthwise(self.train()))

    def diagonal(self, name: str, curvature: Any, calibration: int | None = None) -> ms.Diagonal:
        """The curvature of a network, on the images for calibration; kept in a file."""
        path = self._path(name, curvature, calibration)
        if not path.exists():
            self._measure(name, curvature, calibration)
        return self._once(path, lambda: ms.load(path))

    def seconds(self, name: str, curvature: Any, calibration: int) -> float:
        """The processor time that it took to measure it."""
        told = self._path(name, curvature, calibration).with_suffix(".json")
        if not told.exists():
            self._measure(name, curvature, calibration)
        return float(told.read_text())

    def _path(self, name: str, curvature: str, calibration: int | None) -> Path:
        return Path(self.options.cache / f"{name}-{curvature}-{calibration or self.options.calibration}.safetensors")

    def _measure(self, name: str, curvature: Any, calibration: int | None) -> None:
        path = self._path(name, curvature, calibration)
        path.parent.mkdir(parents=True, exist_ok=True)
        network, data = self.read(name), self.train(calibration or self.options.calibration)
        start = process_time()
        found = ms.hessian_diagonal(network, data, curvature=curvature)
        write_text(path.with_suffix(".json"), json.dumps(process_time() - start) + "\n")
        found.save(path)

    def variant(self, name: str, variant: str, noise: Noise) -> nn.Module:
        """An equivalent network."""
        model, pairs = self.network(name)
        if variant == "original":
            return model
        if variant in ("cross-layer", "equal norms"):
            return equalised(model, pairs, largest if variant == "cross-layer" else norm)
        matched: Noise = "absolute" if variant == "flattest" else noise
        return self.matched(name, "margin" if variant == "matched, margin" else "hessian", matched)[0]

    def read(self, name: str) -> ms.Network:
        """A network, read."""
        model = self.network(name)[0]
        return self._once(("read", name), lambda: ms.read(model, self.train(2)[0]))

    def matched(self, name: str, curvature: Any, noise: Noise) -> tuple[nn.Module, Mapping[str, Any]]:
        """The network that bears a noise best, and its scales."""
        diagonal = self.diagonal(name, curvature)
        result = ms.minimum_sharpness(self.read(name), diagonal, scope="neuron", noise=noise)
        return ms.rescale(self.network(name)[0], result.scales), result.scales

    def whole(self, what: str, make: Callable[[], Found]) -> list[Found]:
        """What is made of cells, in a list; an empty one where some are for later."""
        try:
            return [make()]
        except LaterError as key:
            self.missing.append(f"{what} ({key})")
            return []

    def cell(self, key: str, work: Callable[[], Any]) -> Any:
        """What is known of a cell, measured now if it is not yet."""
        path = self.options.out / f"{key.replace(', ', '-').replace(' ', '-')}.json"
        if not path.exists():
            if monotonic() > self.end:
                raise LaterError(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            start = process_time()
            found = work()
            write_text(path, json.dumps(found) + "\n")
            print(f"{path}: {process_time() - start:.1f} s", flush=True)
        return json.loads(path.read_text())


def right(model: nn.Module, data: Data, changed: Mapping[str, Tensor]) -> Tensor:
    """Which images are right, some parameters changed: (n,)."""
    return outputs(model, data, changed).argmax(1) == data[1]


def outputs(model: nn.Module, data: Data, changed: Mapping[str, Tensor]) -> Tensor:
    """What comes out, some parameters changed: (n, K), in batches that fit into a cache, channels last."""
    state = {name: _last(changed.get(name, p).detach()) for name, p in model.named_parameters()}
    with torch.no_grad():
        return torch.cat([torch.func.functional_call(model, state, (_last(x),)) for x in data[0].split(BATCH)])


def _last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t


def rounded(model: nn.Module, bits: Bits, noise: Noise) -> dict[str, Tensor]:
    """The weights, as `noise_robustness` rounds them."""
    weights = {n: p.detach() for n, p in model.named_parameters() if p.dim() > 1}
    return {n: quantized(w, bits_of(n, w, bits), noise) for n, w in weights.items()}


def packed(which: Tensor) -> str:
    """Which images are right, as text."""
    return base64.b85encode(zlib.compress(np.packbits(which.numpy()).tobytes(), 9)).decode()


def unpacked(text: str, count: int) -> Any:
    """Which images are right, as a numpy array of zeros and ones."""
    return np.unpackbits(np.frombuffer(zlib.decompress(base64.b85decode(text)), np.uint8), count=count).astype(int)


def error_of(share: float, samples: int) -> float:
    """The standard error of a share of so many images."""
    return sqrt(share * (1 - share) / samples)


def shown(share: float, samples: int) -> str:
    """A share in percent, with its standard error."""
    return f"{100 * share:.2f} ± {100 * error_of(share, samples):.2f}"
