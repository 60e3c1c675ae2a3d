"""Data and losses as the command line names them."""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..data import NAMES
from ..data.preparation import Preparation
from ..errors import InputError
from ..files import is_file
from ..io.npz import arrays_of
from ..io.weights import safetensors_of
from ..losses import Criterion, NextToken
from .choices import DataChoice
from .output import note, watched

LOSSES: dict[str, Callable[[], Criterion | None]] = {
    "cross-entropy": lambda: None,  # what is measured where none is named: labels that may be meant otherwise are told
    "next-token": NextToken,
    "bce": nn.BCEWithLogitsLoss,
    "mse": nn.MSELoss,
}
_TARGETS = ("y", "labels")
_AT_A_TIME = 64
"""Images of a folder that are decoded at a time."""


class Loaded(NamedTuple):
    """Inputs to read the network with, targets if there are any, and all the batches."""

    inputs: Any
    targets: Tensor | None
    batches: Any


def load_data(choice: DataChoice, model: nn.Module) -> Loaded:
    """Data by name, from a folder or from a file, in the model's precision, as batches."""
    if choice.is_folder:
        return _folder(choice, model)
    named = choice.name in NAMES
    if choice.images and not named:
        raise InputError(f"--image {choice.images[0]}: '{choice.name}' is not a folder of images")
    inputs, targets = _named(choice) if named else _data_file(choice.name)
    if choice.samples is not None:
        inputs = _each(inputs, lambda t: t[: choice.samples])
        targets = None if targets is None else targets[: choice.samples]
    n = len(next(iter(_leaves(inputs))))
    if n == 0:
        raise InputError(f"'{choice.name}' holds no samples")
    inputs = _each(_in_order(inputs, model), lambda t: _fitting(t, model))
    if targets is not None and targets.is_floating_point():
        targets = _fitting(targets, model)
    size = choice.batch_size
    if size is None or size >= n:
        return Loaded(inputs, targets, (inputs, targets))
    batches = [
        (_each(inputs, lambda t, i=i: t[i : i + size]), None if targets is None else targets[i : i + size])
        for i in range(0, n, size)
    ]
    return Loaded(inputs, targets, batches)


def _in_order(inputs: Any, model: nn.Module) -> Any:
    """Inputs by name in the order of forward's arguments, which a file does not keep."""
    if not isinstance(inputs, dict):
        return inputs
    order = [name for name in inspect.signature(model.forward).parameters if name in inputs]
    return {name: inputs[name] for name in [*order, *(n for n in inputs if n not in order)]}


def _each(inputs: Any, change: Callable[..., Tensor]) -> Any:
    if isinstance(inputs, dict):
        return {key: change(tensor) for key, tensor in inputs.items()}
    return tuple(map(change, inputs)) if isinstance(inputs, tuple) else change(inputs)


def _leaves(inputs: Any) -> list[Tensor]:
    if isinstance(inputs, dict):
        return list(inputs.values())
    return list(inputs) if isinstance(inputs, tuple) else [inputs]


def _fitting(tensor: Tensor, model: nn.Module) -> Tensor:
    """Floating point in the model's precision, everything on its device."""
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    if like is None:
        return tensor
    return tensor.to(like.device, like.dtype) if tensor.is_floating_point() else tensor.to(like.device)


def _folder(choice: DataChoice, model: nn.Module) -> Loaded:
    """The images of a folder, decoded batch by batch, each time that they are gone through."""
    from torch.utils.data import DataLoader

    from ..data.folder import ImageFolder

    held = ImageFolder(choice.name, Preparation.of(choice.images), choice.samples)

    def batch(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        images, labels = zip(*items, strict=True)
        return _fitting(torch.stack(images), model), _fitting(torch.tensor(labels), model)

    batches = DataLoader(held, choice.batch_size or _AT_A_TIME, collate_fn=batch)
    inputs, targets = next(iter(batches))
    note(f"{len(held)} of {held.available} images, classes: {len(held.classes)}; {choice.pixels}")
    return Loaded(inputs, targets, batches)


def _named(choice: DataChoice) -> tuple[Tensor, Tensor | None]:
    """The training images of a data set, from -1 to 1 unless normalised otherwise."""
    from ..data import load

    held = load(choice.name, choice.data_dir, progress=watched())
    if not choice.images:
        return held.train_x, held.train_y
    channels = held.train_x.shape[1]
    preparation = Preparation.of([*choice.images, *([f"channels={channels}"] if channels == 1 else [])])
    if Preparation.of(choice.images).moves_pixels:
        raise InputError(f"--image {' '.join(choice.images)}: of {choice.name}, expected mean=... and std=... alone")
    pixels = held.train_x[: choice.samples] / 2 + 0.5
    return preparation.normalised(pixels), held.train_y


def _data_file(name: str) -> tuple[Any, Tensor | None]:
    path = Path(name)
    suffix = path.suffix.lower()
    if suffix not in (".npz", ".safetensors"):
        near = get_close_matches(name, NAMES, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise InputError(
            f"'{name}' is not data: expected {', '.join(NAMES)}, or an .npz or .safetensors file that holds 'x' (the "
            "inputs, samples along the first axis) and may hold 'y' (the targets), or a folder of images with a folder "
            f"for each class.{hint}"
        )
    if not is_file(path):
        raise InputError(f"there is no file '{name}'")
    arrays = arrays_of(path) if suffix == ".npz" else safetensors_of(path)
    if all(key in arrays for key in _TARGETS):
        raise InputError(f"'{name}' holds 'y' and 'labels': expected the targets under one of these names")
    targets = next((arrays.pop(key) for key in _TARGETS if key in arrays), None)
    if not arrays:
        raise InputError(f"'{name}' holds no 'x': expected the inputs under that name")
    for key, tensor in arrays.items():
        if tensor.dim() == 0:
            raise InputError(f"'{key}' in '{name}' is a single number: expected samples along the first axis")
    if set(arrays) == {"x"}:
        return arrays["x"], targets
    numbered = [f"x{i}" for i in range(len(arrays))]
    if set(arrays) == set(numbered):
        return tuple(arrays[key] for key in numbered), targets
    return arrays, targets


def load_loss(name: str) -> Criterion | None:
    """A criterion by its name on the command line; None for the default."""
    if name not in LOSSES:
        raise InputError(f"--loss {name}: expected {', '.join(LOSSES)}")
    return LOSSES[name]()
