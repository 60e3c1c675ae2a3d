"""The networks of the paper's experiments, and their small siblings for 8 x 8 digits.

All take images of shape (n, 1, height, width) and start from PyTorch's default initialisation.
"""

from collections.abc import Callable
from itertools import pairwise

from torch import nn

from .errors import InputError

CLASSES = 10


def perceptron(*widths: int) -> nn.Module:
    """Linear layers with ReLU between them, on flattened images."""
    layers: list[nn.Module] = [nn.Flatten()]
    for into, out in pairwise(widths):
        layers += [nn.Linear(into, out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def small_mlp() -> nn.Module:
    """The paper's SmallMLP, 784-20-20-10."""
    return perceptron(784, 20, 20, CLASSES)


def mlp() -> nn.Module:
    """The paper's MLP, 784-512-128-512-10."""
    return perceptron(784, 512, 128, 512, CLASSES)


def small_cnn() -> nn.Module:
    """The paper's SmallCNN: two convolutions of 20 channels and a linear layer."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(320, CLASSES)),
    )


def lenet() -> nn.Module:
    """The paper's LeNet: its first pool has stride 1, its third convolution 7 x 7 positions."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2, stride=1)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2, stride=2)),
        *(nn.Conv2d(16, 120, 5), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(5880, 84), nn.ReLU(), nn.Linear(84, CLASSES)),
    )


def digits_small_mlp() -> nn.Module:
    """SmallMLP for 8 x 8 pixels, 64-20-20-10."""
    return perceptron(64, 20, 20, CLASSES)


def digits_small_cnn() -> nn.Module:
    """SmallCNN for 8 x 8 pixels: kernels of 3 and 2, half the channels."""
    return nn.Sequential(
        *(nn.Conv2d(1, 10, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(10, 10, 2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(10, CLASSES)),
    )


def digits_mlp() -> nn.Module:
    """MLP for 8 x 8 pixels, a quarter of the width: 64-128-32-128-10."""
    return perceptron(64, 128, 32, 128, CLASSES)


def digits_cnn() -> nn.Module:
    """LeNet for 8 x 8 pixels: three convolutions, the first pool with stride 1, and two linear layers."""
    return nn.Sequential(
        *(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, stride=1)),
        *(nn.Conv2d(12, 24, 2), nn.ReLU(), nn.MaxPool2d(2, stride=2)),
        *(nn.Conv2d(24, 48, 2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(192, 84), nn.ReLU(), nn.Linear(84, CLASSES)),
    )


_28: dict[str, Callable[[], nn.Module]] = {
    "SmallMLP": small_mlp,
    "SmallCNN": small_cnn,
    "MLP": mlp,
    "LeNet": lenet,
}
_8: dict[str, Callable[[], nn.Module]] = {
    "SmallMLP": digits_small_mlp,
    "SmallCNN": digits_small_cnn,
    "MLP": digits_mlp,
    "CNN": digits_cnn,
}


def build(name: str, data: str = "mnist") -> nn.Module:
    """A network by the paper's name, in the size that fits the images of a data set.

    >>> sum(p.numel() for p in build("SmallMLP", "mnist").parameters())
    16330
    """
    table = _8 if data == "digits" else _28
    if name not in table:
        raise InputError(f"no network {name!r} for {data}: expected one of {', '.join(table)}")
    return table[name]()
