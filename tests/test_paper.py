"""The traces that the authors of the paper archived, to the printed digits. Most need the files of MNIST."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.reference.estimators import baseline_diagonal

DIGITS = Path(__file__).parent / "support" / "paper_digits.npz"
"""Of each seed of SmallMLP the ten images that its recipe draws: those traces are tested everywhere."""

SMALL_MLP = {1: 20.7915, 3: 25.7751, 5: 23.3165}
SMALL_CNN = {22: 47.0425, 24: 43.6601, 26: 45.9203}


@pytest.fixture(scope="module")
def images(mnist_folder: Path) -> Tensor:
    raw = gzip.decompress((mnist_folder / "train-images-idx3-ubyte.gz").read_bytes())[16:]
    return scaled(torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(60000, 1, 28, 28))


def scaled(pixels: Tensor) -> Tensor:
    return (pixels.float() / 255 - 0.5) / 0.5


def small_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 10))


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(320, 10),
    )  # fmt: skip


def draw(build: Callable[[], nn.Module], seed: int, n: int) -> tuple[nn.Module, Tensor]:
    """The archive's recipe: seed, build, then choose the samples. The network, and the numbers of the images."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build()
        return model, torch.randperm(60000)[:n]


@pytest.mark.parametrize(("seed", "archived"), SMALL_MLP.items())
def test_small_mlp_on_its_own_images(seed: int, archived: float) -> None:
    with np.load(DIGITS) as held:
        numbers, pixels = torch.from_numpy(held[f"numbers_{seed}"]), torch.from_numpy(held[f"pixels_{seed}"])
    model, index = draw(small_mlp, seed, 10)
    assert torch.equal(index, numbers)
    assert ms.hessian_trace(model, scaled(pixels)).total == pytest.approx(archived, abs=6e-5)


@pytest.mark.parametrize(("seed", "archived"), SMALL_MLP.items())
def test_small_mlp(seed: int, archived: float, images: Tensor) -> None:
    model, index = draw(small_mlp, seed, 10)
    assert ms.hessian_trace(model, images[index]).total == pytest.approx(archived, abs=6e-5)


@pytest.mark.parametrize(("seed", "archived"), SMALL_CNN.items())
def test_small_cnn(seed: int, archived: float, images: Tensor) -> None:
    model, index = draw(small_cnn, seed, 100)
    assert ms.hessian_trace(model, images[index]).total == pytest.approx(archived, abs=6e-5)


def test_the_baseline_agrees(images: Tensor) -> None:
    """On part of the parameters: all of them would take minutes."""
    model, index = draw(small_cnn, 22, 10)
    x = images[index]
    y = torch.zeros(10, dtype=torch.int64)
    some = ["*.bias", "0.weight"]
    ours, slow = ms.hessian_trace(model, x, parameters=some), baseline_diagonal(model, (x, y), parameters=some)
    assert ours.by_parameter == pytest.approx(slow.trace.by_parameter, rel=1e-4)
