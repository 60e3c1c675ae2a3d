"""Weights by name: from `.safetensors` files and torch.save's, into networks, and out again as `.safetensors`."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor, nn

from ..errors import InputError
from ..files import is_file, write_atomically
from ..subject.model import unwrapped
from .checkpoints import Expected, Place, weights_in
from .pickles import unpickled
from .untrusted import BROKEN, reading

_NAMES = 8 << 20
"""Bytes that the names and shapes in a file may take: tens of thousands of tensors."""
PICKLED = (".pt", ".pth", ".th", ".ckpt", ".bin", ".tar")
"""What people call the files that torch.save writes; `checkpoint.pth.tar` is one too."""


def held_in(path: Path) -> Any:
    """What a file of weights holds: tensors by name, maybe in dicts of dicts; a pickle with code in it is refused."""
    if not is_file(path):
        raise InputError(f"there is no file '{path}'")
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return safetensors_of(path)
    if suffix not in PICKLED:
        raise InputError(f"'{path}': expected a file of weights, .safetensors or one of {', '.join(PICKLED)}")
    return unpickled(path)


def safetensors_of(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` file, by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with reading(path, ".safetensors file", (SafetensorError, *BROKEN)), path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        if size > min(_NAMES, os.fstat(file.fileno()).st_size):
            raise ValueError(f"its header announces {size:,} bytes")
        return load_file(_named(path, file))


def metadata_of(path: Path) -> dict[str, str]:
    """The text that a `.safetensors` file carries beside its tensors; `safetensors_of` has looked at its size."""
    from safetensors import SafetensorError, safe_open

    broken: tuple[type[Exception], ...] = (SafetensorError, *BROKEN)
    with (
        reading(path, ".safetensors file", broken),
        path.open("rb") as file,
        safe_open(_named(path, file), "pt") as held,
    ):
        return held.metadata() or {}


def _named(path: Path, file: BinaryIO) -> Path | str:
    """A name for an open file that safetensors takes."""
    return path if _is_text(path) else f"/dev/fd/{file.fileno()}"


def _is_text(path: Path) -> bool:
    """Whether a path is text, as safetensors wants it: names of files may be any bytes."""
    try:
        return bool(str(path).encode())
    except UnicodeEncodeError:
        return False


def load_weights(module: nn.Module, path: Path, key: str | None = None) -> Place:
    """Weights into a network, wherever in the file they are; returns where. An error says what does not fit.

    The names may be those of a wrapper around the model, or of a module that has the model as a part. ``key`` says
    which are meant where several in the file fit: keys of dicts and a prefix of the names, with slashes between.
    """
    model = unwrapped(module)
    expected = Expected(model.state_dict(keep_vars=True), frozenset(_counters(model)))
    place = weights_in(held_in(path), expected, key, path)
    model.load_state_dict(dict(place.tensors), strict=False)
    return place


def _counters(module: nn.Module) -> Iterator[str]:
    """Counts of batches that only training reads: files of old, and those of others, have none."""
    for path, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            yield f"{path}.num_batches_tracked".lstrip(".")


def save_weights(module: nn.Module, path: Path) -> Path:
    """The state dict of a network as `.safetensors`, each tensor once under the first of its names."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        first.setdefault(id(tensor), (name, tensor))
    held = {name: tensor.detach().contiguous().clone() for name, tensor in first.values()}
    return write_atomically(path, lambda draft: _save(held, draft))


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(str(error)) from None
