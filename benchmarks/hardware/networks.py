"""The networks: public ResNets for CIFAR-10, a depthwise network and two for the digits trained here; and the data."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import minsharp as ms
from minsharp.data.registry import load

Pairs = list[tuple[str, str]]
Data = tuple[Tensor, Tensor]
MEAN, DEVIATION = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
EPOCHS = 60


class Block(nn.Module):
    """conv-bn-relu-conv-bn and a shortcut that takes every second pixel and pads channels with zeros."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.pad = (out - into) // 2

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.pad:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(y + x)


class ResNet(nn.Module):
    """The ResNets of He et al. for CIFAR-10: 6 n + 2 layers."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(*(Block(into if i == 0 else out, out, stride if i == 0 else 1) for i in range(blocks)))
            for into, out, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        )
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(x.mean((2, 3)))


def resnet(blocks: int, weights: Path) -> tuple[nn.Module, Pairs]:
    """A public network with its BatchNorms folded, and the pairs of layers with only a ReLU between them."""
    model = ResNet(blocks)
    model.load_state_dict(load_file(weights))
    places = [f"layer{k}.{i}" for k in (1, 2, 3) for i in range(blocks)]
    return ms.fold_batchnorm(model.eval()), [(f"{p}.conv1", f"{p}.conv2") for p in places]


def depthwise(train: Data) -> tuple[nn.Module, Pairs]:
    """A small network of depthwise and pointwise convolutions, trained here, and its pairs of layers."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()]
    for into, out, stride in ((16, 32, 1), (32, 64, 2), (64, 64, 1)):
        layers += [nn.Conv2d(into, into, 3, stride, 1, groups=into), nn.BatchNorm2d(into), nn.ReLU()]
        layers += [nn.Conv2d(into, out, 1), nn.BatchNorm2d(out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    x, y = train
    for _ in range(15):
        for part in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
    places = [str(i) for i, layer in enumerate(layers) if isinstance(layer, nn.Conv2d)]
    return ms.fold_batchnorm(model.eval()), list(pairwise(places))


def digits(name: str) -> tuple[nn.Module, Data]:
    """A small network for the digits, trained here, and the images that it has not seen."""
    torch.manual_seed(0)
    data = load("digits")
    mlp = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    cnn = nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Conv2d(12, 24, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    model = {"digits MLP": mlp, "digits CNN": cnn}[name]
    trained(model, (data.train_x, data.train_y), EPOCHS, 3e-3)
    return model.eval(), (data.test_x, data.test_y)


def trained(model: nn.Module, train: Data, epochs: int, rate: float) -> None:
    """Adam, its rate on a cosine down to zero."""
    x, y = train
    optimizer = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
        schedule.step()


def images(path: Path, samples: int | None = None) -> Data:
    """Images as the public networks take them, and labels."""
    held = np.load(path)
    x, y = torch.from_numpy(held["x"][:samples]).float() / 255, torch.from_numpy(held["y"][:samples])
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, DEVIATION))
    return (x - mean) / deviation, y
