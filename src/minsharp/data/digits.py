"""The 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn: nothing to download."""

import torch

from ..extras import required
from .dataset import Dataset, normalised

TRAIN = 1000
SPLIT_SEED = 0


def load_digits() -> Dataset:
    """The digits, in a split that is the same every time: 1,000 for training, 797 for testing."""
    datasets = required("sklearn.datasets", "the data set 'digits'")
    pixels, labels = datasets.load_digits(return_X_y=True)
    x = normalised(torch.from_numpy(pixels), 16).view(-1, 1, 8, 8)
    y = torch.from_numpy(labels).long()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(SPLIT_SEED))
    train, test = order[:TRAIN], order[TRAIN:]
    return Dataset("digits", x[train], y[train], x[test], y[test])
