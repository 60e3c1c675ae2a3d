"""Images on the command line: folders, CIFAR-10, and what is said of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.data import cifar
from minsharp.data.folder import ImageFolder
from minsharp.data.preparation import Preparation
from tests.cli.test_cli import Capture, documents, refused
from tests.data.test_cifar import N, records
from tests.data.test_folder import gradient

NET = f"{__name__}:net"


def net(side: int = 8, channels: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, 5), nn.ReLU(), nn.Linear(5, 10)).double()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("PIL")
    for i in range(9):
        gradient(tmp_path / "abc"[i % 3] / f"{i}.png", 10 + i, 9)
    return tmp_path


def test_a_folder_of_images(folder: Path, capsys: Capture) -> None:
    words = ["resize=8", "crop=8", "mean=imagenet", "std=imagenet"]
    options: list[Any] = ["measure", NET, "--data", folder, *(part for word in words for part in ("--image", word))]
    held = ImageFolder(folder, Preparation.of(words))
    images, labels = zip(*(held[i] for i in range(len(held))), strict=True)
    expected = ms.hessian_trace(net(), (torch.stack(images).double(), torch.tensor(labels))).total
    for size in ([], ["--batch-size", "2"]):
        found = documents(capsys, [*options, *size, "--verify"])
        assert found["trace"]["total"] == pytest.approx(expected, rel=1e-12)
        assert found["samples"] == 9
        assert found["images"].startswith(
            "resize=8 (shorter side, bilinear), crop=8x8, (pixels - (0.485, 0.456, 0.406))"
        )
    assert documents(capsys, [*options, "--samples", "3"])["samples"] == 3
    (row,) = documents(capsys, ["bench", *options[1:], "--repeat", "1"])["networks"]
    assert row["samples"] == 9


def test_images_of_different_sizes(folder: Path, capsys: Capture) -> None:
    refused(capsys, ["measure", NET, "--data", folder], r"say how to make them equal, --image resize=9 --image crop=9")


def test_what_is_asked_of_no_images(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    refused(capsys, ["measure", NET, "--data", "digits", "--image", "resize=3"], "of digits, expected mean=")
    refused(capsys, ["measure", NET, "--data", "digits", "--image", "mean=1,2,3"], "3 numbers for 1 channels")
    torch.save({}, tmp_path / "d.npz")
    refused(capsys, ["measure", NET, "--data", tmp_path / "d.npz", "--image", "mean=1"], "is not a folder of images")


def test_cifar_10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(cifar, "PER_FILE", N)
    for seed, name in enumerate(cifar.FILES):
        (tmp_path / name).write_bytes(records(seed))
    options = ["measure", NET, "--arg", "side=32", "--data", "cifar-10", "--data-dir", tmp_path, "--samples", "5"]
    data = cifar.load_cifar(tmp_path).train_x
    found = documents(capsys, options)
    assert found["trace"]["total"] == pytest.approx(ms.hessian_trace(net(32), data[:5].double()).total, rel=1e-9)
    assert found["images"] == "pixels from -1 to 1"
    found = documents(capsys, [*options, "--image", "mean=0.4,0.5,0.6", "--image", "std=0.25"])
    pixels = (data[:5].double() / 2 + 0.5 - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / 0.25
    assert found["trace"]["total"] == pytest.approx(ms.hessian_trace(net(32), pixels).total, rel=1e-5)
    assert found["images"] == "(pixels - (0.4, 0.5, 0.6)) / 0.25"
