"""Weights by name: from `.safetensors`, `.pt` and `.pth` files, into networks, and out again as `.safetensors`."""

import os
import struct
from pathlib import Path
from typing import BinaryIO

from torch import Tensor, nn

from ..errors import InputError
from ..files import is_file, write_atomically
from .pickles import unpickled
from .untrusted import BROKEN, reading

_NAMES = 8 << 20
"""Bytes that the names and shapes in a file may take: tens of thousands of tensors."""
_LISTED = 8
"""Names that an error lists; the others are counted."""


def tensors_of(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` or `.pt`/`.pth` file, by name; a pickle with code in it is refused."""
    if not is_file(path):
        raise InputError(f"there is no file '{path}'")
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return _safetensors(path)
    if suffix not in (".pt", ".pth"):
        raise InputError(f"'{path}': expected a .safetensors, .pt or .pth file of weights")
    held = unpickled(path)
    if isinstance(held, dict) and isinstance(held.get("state_dict"), dict):
        held = held["state_dict"]
    if not isinstance(held, dict) or not all(isinstance(v, Tensor) for v in held.values()):
        raise InputError(f"'{path}' holds a {type(held).__name__}, expected a state dict: names and tensors")
    return {str(name): tensor for name, tensor in held.items()}


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with reading(path, ".safetensors file", (SafetensorError, *BROKEN)), path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        if size > min(_NAMES, os.fstat(file.fileno()).st_size):
            raise ValueError(f"its header announces {size:,} bytes")
        return load_file(_named(path, file))


def metadata_of(path: Path) -> dict[str, str]:
    """The text that a `.safetensors` file carries beside its tensors; `tensors_of` has looked at its size."""
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


def load_weights(module: nn.Module, path: Path) -> None:
    """Weights into a network; an error says which names and shapes do not fit."""
    given, expected = tensors_of(path), module.state_dict(keep_vars=True)
    shared: dict[int, list[str]] = {}
    for name, tensor in expected.items():
        shared.setdefault(id(tensor), []).append(name)
    known = {name for names in shared.values() if any(n in given for n in names) for name in names}
    misfits = [
        f"{name} {tuple(given[name].shape)} instead of {tuple(expected[name].shape)}"
        for name in expected
        if name in given and given[name].shape != expected[name].shape
    ]
    troubles = [
        _listed("missing", [name for name in expected if name not in known]),
        _listed("unexpected", [name for name in given if name not in expected]),
        _listed("of another shape", misfits),
    ]
    if any(troubles):
        raise InputError(f"the weights in '{path}' do not fit the model: {'; '.join(filter(None, troubles))}")
    module.load_state_dict(given, strict=False)


def _listed(what: str, names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{what}: {', '.join(names[:_LISTED])}{more}" if names else ""


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
