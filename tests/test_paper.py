"""The traces that the authors of the paper archived, to the printed digits.

`archived_images.npz` holds the images that some of them are of, out of MNIST (LeCun, Cortes and Burges; CC BY-SA 3.0).
The others need the MNIST files.
"""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.models import lenet, mlp, small_cnn, small_mlp
from minsharp.reference.estimators import baseline_diagonal

SOME_IMAGES = Path(__file__).parent / "support" / "archived_images.npz"

SMALL_MLP = {1: 20.7915, 3: 25.7751, 5: 23.3165}
SMALL_CNN = {22: 47.0425, 24: 43.6601, 26: 45.9203}
ROUNDING = 6e-5
"""Of the archived numbers, which have four digits after the point."""


def normalised(pixels: Tensor) -> Tensor:
    """Bytes (n, 28, 28) as images (n, 1, 28, 28) with values from -1 to 1."""
    return (pixels[:, None].float() / 255 - 0.5) / 0.5


def seeded(build: Callable[[], nn.Module], seed: int) -> tuple[nn.Module, Tensor]:
    """The archive's recipe: seed, build, then choose the samples; a network, and the order of MNIST's images."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(), torch.randperm(60000)


@pytest.mark.parametrize(
    ("build", "seed", "archived"),
    [*((small_mlp, seed, value) for seed, value in SMALL_MLP.items()), (small_cnn, 22, SMALL_CNN[22])],
)
def test_archived_traces_on_the_images_that_are_here(
    build: Callable[[], nn.Module], seed: int, archived: float
) -> None:
    with np.load(SOME_IMAGES) as held:
        x = normalised(torch.from_numpy(held[f"seed_{seed}"]))
    model, _ = seeded(build, seed)
    assert ms.hessian_trace(model, x).total == pytest.approx(archived, abs=ROUNDING)


@pytest.fixture(scope="module")
def images(mnist_folder: Path) -> Tensor:
    raw = gzip.decompress((mnist_folder / "train-images-idx3-ubyte.gz").read_bytes())[16:]
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(60000, 28, 28)


@pytest.mark.parametrize(("seed", "archived"), SMALL_MLP.items())
def test_small_mlp(seed: int, archived: float, images: Tensor) -> None:
    model, order = seeded(small_mlp, seed)
    assert ms.hessian_trace(model, normalised(images[order[:10]])).total == pytest.approx(archived, abs=ROUNDING)


@pytest.mark.parametrize(("seed", "archived"), SMALL_CNN.items())
def test_small_cnn(seed: int, archived: float, images: Tensor) -> None:
    model, order = seeded(small_cnn, seed)
    assert ms.hessian_trace(model, normalised(images[order[:100]])).total == pytest.approx(archived, abs=ROUNDING)


def test_the_baseline_agrees() -> None:
    """On part of the parameters: all of them would take minutes."""
    with np.load(SOME_IMAGES) as held:
        x = normalised(torch.from_numpy(held["seed_22"][:10]))
    model, _ = seeded(small_cnn, 22)
    y = torch.zeros(10, dtype=torch.int64)
    some = ["*.bias", "0.weight"]
    ours, slow = ms.hessian_trace(model, x, parameters=some), baseline_diagonal(model, (x, y), parameters=some)
    assert ours.by_parameter == pytest.approx(slow.trace.by_parameter, rel=1e-4)


SHAPES: dict[Callable[[], nn.Module], list[tuple[int, ...]]] = {
    small_mlp: [(20, 784), (20, 20), (10, 20)],
    small_cnn: [(20, 1, 5, 5), (20, 20, 5, 5), (10, 320)],
    mlp: [(512, 784), (128, 512), (512, 128), (10, 512)],
    lenet: [(6, 1, 5, 5), (16, 6, 5, 5), (120, 16, 5, 5), (84, 5880), (10, 84)],
}


@pytest.mark.parametrize("build", SHAPES, ids=lambda build: build.__name__)
def test_the_papers_networks(build: Callable[[], nn.Module]) -> None:
    model = build()
    shapes = [tuple(p.shape) for p in model.parameters()]
    assert shapes[::2] == SHAPES[build]
    assert shapes[1::2] == [shape[:1] for shape in SHAPES[build]]
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
