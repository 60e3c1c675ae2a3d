"""The data sets that have a name, and where each is loaded."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..errors import InputError
from .cifar import load_cifar
from .dataset import Dataset
from .digits import TRAIN, load_digits
from .idx import FASHION_MNIST, MNIST, PARTS, load_idx

_LOADERS: dict[str, Callable[..., Dataset]] = {
    "mnist": partial(load_idx, MNIST),
    "fashion-mnist": partial(load_idx, FASHION_MNIST),
    "cifar-10": load_cifar,
}
NAMES = ("digits", *_LOADERS)
TRAINING_IMAGES = {"digits": TRAIN, "mnist": PARTS["train"], "fashion-mnist": PARTS["train"]}
"""How many images there are to train on, of the data that the paper's networks take."""


def load(name: str = "digits", data_dir: str | Path | None = None, *, progress: bool = False) -> Dataset:
    """A data set by name: "digits" (comes with scikit-learn), "mnist", "fashion-mnist" or "cifar-10".

    MNIST's are four IDX files, CIFAR-10's the six of its binary version, or their archive. They are taken from
    `data_dir`, else from the cache ($MINSHARP_DATA, or the system's), else downloaded into the cache.

    >>> load("digits").train_x.shape
    torch.Size([1000, 1, 8, 8])
    """
    if name == "digits":
        return load_digits()
    if name not in _LOADERS:
        raise InputError(f"no data set {name!r}: expected one of {', '.join(NAMES)}")
    return _LOADERS[name](data_dir, progress=progress)
