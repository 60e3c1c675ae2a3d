"""The networks that are measured, and inputs for them: the paper's, and larger ones."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from minsharp.models import CLASSES, lenet, mlp, small_cnn, small_mlp


def vgg11() -> nn.Module:
    """VGG-11 for 32 x 32 images, without batch norm, one linear layer at the end."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        if width:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        else:
            layers.append(nn.MaxPool2d(2))
    return kaiming(nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, CLASSES)))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with batch norm around a skip connection."""

    def __init__(self, into: int, out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module | None = None
        if into != out or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """`+` rather than `+=` or torch.add: the form that BackPACK can convert."""
        y = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        skip = x if self.shortcut is None else self.shortcut(x)
        return self.relu2(y + skip)


class ResNet18(nn.Module):
    """ResNet-18 as published, with its 7 x 7 stem and a pool after it; or with a 3 x 3 stem of stride 1 and no pool."""

    def __init__(self, stem: nn.Module, classes: int = CLASSES) -> None:
        super().__init__()
        self.stem = stem
        blocks: list[nn.Module] = []
        channels = 64
        for width in (64, 128, 256, 512):
            blocks += [BasicBlock(channels, width, 1 + (width > channels)), BasicBlock(width, width, 1)]
            channels = width
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        return self.head(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


def resnet18(classes: int = CLASSES) -> nn.Module:
    """As published."""
    stem = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
    )
    return with_statistics(kaiming(ResNet18(stem, classes)))


def resnet18_small_stem() -> nn.Module:
    """As is usual for small images: all of it at four times the resolution."""
    stem = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    return with_statistics(kaiming(ResNet18(stem)))


def with_statistics(model: nn.Module) -> nn.Module:
    """The model after its batch norms have seen 64 random images, so that their statistics are not 0 and 1."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # a plain mean over what was seen
    with torch.no_grad():
        model.train()(torch.randn(64, 3, 32, 32))
    return model


def kaiming(model: nn.Module) -> nn.Module:
    """Convolutions with He's initial weights, as is usual for deep networks."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


@dataclass(frozen=True)
class Problem:
    """A network in eval mode with a batch of inputs and labels, in float32."""

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Entry:
    """How to make a problem."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    samples: int
    gain: int
    """How many times faster than BackPACK the trace has to be."""


ENTRIES = {
    "SmallMLP": Entry(small_mlp, (784,), 1000, gain=2),
    "SmallCNN": Entry(small_cnn, (1, 28, 28), 1000, gain=2),
    "MLP": Entry(mlp, (784,), 1000, gain=2),
    "LeNet": Entry(lenet, (1, 28, 28), 200, gain=2),
    "VGG-11": Entry(vgg11, (3, 32, 32), 16, gain=8),
    "ResNet-18": Entry(resnet18, (3, 32, 32), 16, gain=8),
    "ResNet-18, 3x3 stem": Entry(resnet18_small_stem, (3, 32, 32), 16, gain=2),
}


def problem(name: str, samples: int | None = None, train: bool = False) -> Problem:
    """A network with its usual number of samples, or with another; the same every time.

    Every class is a cloud around a random image. Trained or not makes no difference to time or memory, but much to
    the spread of Hutchinson's estimator, and who measures curvature measures trained networks.
    """
    entry = ENTRIES[name]
    n = samples or entry.samples
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = entry.build().eval()
        y = torch.randint(CLASSES, (n,))
        x = torch.randn(CLASSES, *entry.shape)[y] + torch.randn(n, *entry.shape)
        if train:
            fit(model, x, y)
    return Problem(name, model, x, y)


def thousand_classes(samples: int = 16) -> Problem:
    """ResNet-18 with 1000 classes on 64 x 64 images, trained a little: ten steps of Adam on 64 of them."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = resnet18(1000).eval()
        x, y = torch.randn(64, 3, 64, 64), torch.randint(1000, (64,))
        fit(model, x, y, steps=10)
    return Problem("ResNet-18, 64 x 64, K=1000", model, x[:samples], y[:samples])


def fit(model: nn.Module, x: Tensor, y: Tensor, target: float = 0.1, steps: int = 200) -> None:
    """Adam on the whole batch, in eval mode, until the loss is below the target."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if loss < target:
            break
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()
