"""The data sets that have a name, and where each is loaded."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..errors import InputError
from .dataset import Dataset
from .digits import TRAIN, load_digits
from .idx import FASHION_MNIST, MNIST, PARTS, load_idx

_LOADERS: dict[str, Callable[..., Dataset]] = {
    "mnist": partial(load_idx, MNIST),
    "fashion-mnist": partial(load_idx, FASHION_MNIST),
}
NAMES = ("digits", *_LOADERS)
TRAINING_IMAGES = {"digits": TRAIN} | dict.fromkeys(_LOADERS, PARTS["train"])


def load(name: str = "digits", data_dir: str | Path | None = None, *, progress: bool = False) -> Dataset:
    """A data set by name: "digits" (comes with scikit-learn), "mnist" or "fashion-mnist".

    The latter two are four IDX files, taken from `data_dir`, else from the cache ($MINSHARP_DATA, or the system's),
    else downloaded into the cache.

    >>> load("digits").train_x.shape
    torch.Size([1000, 1, 8, 8])
    """
    if name == "digits":
        return load_digits()
    if name not in _LOADERS:
        raise InputError(f"no data set {name!r}: expected one of {', '.join(NAMES)}")
    return _LOADERS[name](data_dir, progress=progress)
