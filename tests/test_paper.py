"""The traces that the authors of the paper archived, to the printed digits. Needs the MNIST files."""

import gzip
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.reference.estimators import baseline_diagonal

FOLDER = Path(os.environ.get("MINSHARP_MNIST", Path(__file__).parents[2] / "shared" / "mnist"))
IMAGES = FOLDER / "train-images-idx3-ubyte.gz"

pytestmark = pytest.mark.skipif(not IMAGES.exists(), reason="needs MNIST: set MINSHARP_MNIST to its folder")

SMALL_MLP = {1: 20.7915, 3: 25.7751, 5: 23.3165}
SMALL_CNN = {22: 47.0425, 24: 43.6601, 26: 45.9203}


@pytest.fixture(scope="module")
def images() -> Tensor:
    raw = gzip.decompress(IMAGES.read_bytes())[16:]
    pixels = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(60000, 1, 28, 28)
    return (pixels.float() / 255 - 0.5) / 0.5


def small_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 10))


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(320, 10),
    )  # fmt: skip


def draw(build: object, seed: int, n: int, images: Tensor) -> tuple[nn.Module, Tensor]:
    """The archive's recipe: seed, build, then choose the samples."""
    assert callable(build)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: nn.Module = build()
        index = torch.randperm(60000)[:n]
    return model, images[index]


@pytest.mark.parametrize(("seed", "archived"), SMALL_MLP.items())
def test_small_mlp(seed: int, archived: float, images: Tensor) -> None:
    model, x = draw(small_mlp, seed, 10, images)
    assert ms.hessian_trace(model, x).total == pytest.approx(archived, abs=6e-5)


@pytest.mark.parametrize(("seed", "archived"), SMALL_CNN.items())
def test_small_cnn(seed: int, archived: float, images: Tensor) -> None:
    model, x = draw(small_cnn, seed, 100, images)
    assert ms.hessian_trace(model, x).total == pytest.approx(archived, abs=6e-5)


def test_the_baseline_agrees(images: Tensor) -> None:
    """On part of the parameters: all of them would take minutes."""
    model, x = draw(small_cnn, 22, 10, images)
    y = torch.zeros(10, dtype=torch.int64)
    some = ["*.bias", "0.weight"]
    ours, slow = ms.hessian_trace(model, x, parameters=some), baseline_diagonal(model, (x, y), parameters=some)
    assert ours.by_parameter == pytest.approx(slow.trace.by_parameter, rel=1e-4)
