"""What every data set is once it is loaded."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """Training and test images of shape (n, channels, height, width) in [-1, 1], with labels from 0 to 9."""

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    def subset(self, train: int | None, seed: int = 0) -> "Dataset":
        """The same with that many training images, drawn with a seed; the test images stay."""
        if train is None or train == len(self.train_x):
            return self
        chosen = torch.randperm(len(self.train_x), generator=torch.Generator().manual_seed(seed))[:train]
        return Dataset(self.name, self.train_x[chosen], self.train_y[chosen], self.test_x, self.test_y)

    def to(self, device: str) -> "Dataset":
        """The same four tensors on a device."""
        tensors = (self.train_x, self.train_y, self.test_x, self.test_y)
        return Dataset(self.name, *(t.to(device) for t in tensors))


def normalised(pixels: Tensor, brightest: int) -> Tensor:
    """Pixels from 0 to the brightest, as the paper maps them: (x - 0.5) / 0.5."""
    return pixels.to(torch.float32, copy=True).div_(brightest).sub_(0.5).div_(0.5)
