"""Tensors by name from files without trust: `.npz`, `.safetensors`, `.pt` and `.pth`.

What a file announces is held against what it holds before it is read, so memory goes into announced tensors alone.
"""

import io
import os
import pickletools
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..files import reason_of
from .zips import Archive, Member, RefusedError, Window

_HEADER = 1 << 14
"""Bytes of an array's header, and more."""
_NAMES = 8 << 20
"""Bytes that the names and shapes in a file may take: tens of thousands of tensors."""
_CONTAINERS = 200_000
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_LEGACY_PICKLES = 5
"""Before 1.6, torch wrote so many pickles before the numbers."""
_MAKES_MEMORY = re.compile(r"\w+ bytearray|torch(\.\w+)* \w*Tensor")
BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    SyntaxError,
    MemoryError,
)
"""What reading a damaged file may raise."""


def first_line(error: BaseException) -> str:
    """What an error says, without what follows."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def is_file(path: Path) -> bool:
    """Whether there is a file; a name that the system cannot take is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def check_fits(count: int) -> None:
    """Refuse more bytes than the machine has."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 62
    if count > machine:
        raise RefusedError(f"it announces {count:,} bytes of numbers, this machine has {machine:,}")


def tensors_of(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` or `.pt`/`.pth` file, by name; a pickle with code in it is refused."""
    if not is_file(path):
        raise InputError(f"there is no file '{path}'")
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return _safetensors(path)
    if suffix not in (".pt", ".pth"):
        raise InputError(f"'{path}': expected a .safetensors, .pt or .pth file of weights")
    held = _unpickled(path)
    if isinstance(held, dict) and isinstance(held.get("state_dict"), dict):
        held = held["state_dict"]
    if not isinstance(held, dict) or not all(isinstance(v, Tensor) for v in held.values()):
        raise InputError(f"'{path}' holds a {type(held).__name__}, expected a state dict: names and tensors")
    return {str(name): tensor for name, tensor in held.items()}


def _unpickled(path: Path) -> Any:
    try:
        with io.FileIO(path) as file:
            check_pickle(Window(file))
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
    except RefusedError as reason:
        raise InputError(f"'{path}' is refused: {reason}. Nothing in it was run") from None
    except OSError as error:
        raise InputError(f"cannot read '{path}': {reason_of(error)}") from None
    except Exception as error:
        if "weights_only" in str(error) or "Unsupported" in str(error):
            raise InputError(
                f"'{path}' is refused: a pickle of more than tensors ({culprit(error)}). Nothing in it was run. "
                "Save the state dict alone: torch.save(model.state_dict(), path)"
            ) from None
        raise InputError(
            f"'{path}' is not a whole file of weights, as torch.save writes it: {first_line(error)}"
        ) from None


def culprit(error: Exception) -> str:
    """What the restricted unpickler met."""
    found = re.search(r"Unsupported (?:global: GLOBAL|class|operand|instruction) ?([\w.]+)|GLOBAL ([\w.]+)", str(error))
    name = next((g for g in found.groups() if g), "") if found else ""
    return f"it names '{name}'" if name else first_line(error)[:120]


def check_pickle(file: Window) -> None:
    """Refuse what torch.save never writes: compressed numbers, sizes that do not fit, objects that only take memory."""
    if file.read(4) != b"PK\3\4":
        file.seek(0)
        for _ in range(_LEGACY_PICKLES):
            _check_opcodes(cast(IO[bytes], file))
        return
    archive = Archive(file)
    pickles = [name for name in archive.members if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise ValueError("it holds no data.pkl")
    _check_opcodes(io.BytesIO(archive.read(pickles[0], _NAMES)))
    file.seek(0)
    announced = torch.load(cast(IO[bytes], file), map_location="meta", weights_only=True)
    storages = {id(s): s for s in (t.untyped_storage() for t in _tensors(announced))}
    total = sum(s.nbytes() for s in storages.values())
    held = sum(m.size for name, m in archive.members.items() if "/data/" in name)
    if total > held:
        raise RefusedError(f"it announces {total:,} bytes of numbers, and holds {held:,}")
    check_fits(total)


def _tensors(held: Any) -> list[Tensor]:
    """The tensors in nested lists and dicts."""
    found: list[Tensor] = []
    seen: set[int] = set()
    left = [held]
    while left:
        item = left.pop()
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, dict | list | tuple) and id(item) not in seen:
            seen.add(id(item))
            left.extend(item.values() if isinstance(item, dict) else item)
    return found


def _check_opcodes(file: IO[bytes]) -> None:
    """Read a pickle without obeying it."""
    containers = 0
    for opcode, argument, place in pickletools.genops(file):
        containers += opcode.name.startswith("EMPTY_")
        if containers > _CONTAINERS or (place or 0) > _NAMES:
            raise RefusedError("its pickle holds more than names and shapes")
        if opcode.name in ("GLOBAL", "INST") and _MAKES_MEMORY.fullmatch(str(argument)):
            raise RefusedError(f"its pickle makes a '{str(argument).replace(' ', '.')}' out of nothing")
        if opcode.name == "STACK_GLOBAL":
            raise RefusedError("a pickle of more than tensors")


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > min(_NAMES, os.fstat(file.fileno()).st_size):
                raise ValueError(f"its header announces {size:,} bytes")
            return load_file(path if _is_text(path) else f"/dev/fd/{file.fileno()}")
    except (SafetensorError, *BROKEN) as error:
        raise InputError(f"'{path}' is not a whole .safetensors file: {first_line(error)}") from None
    except OSError as error:
        raise InputError(f"cannot read '{path}': {reason_of(error)}") from None


def _is_text(path: Path) -> bool:
    """Whether a path is text, as safetensors wants it: names of files may be any bytes."""
    try:
        return bool(str(path).encode())
    except UnicodeEncodeError:
        return False


def arrays_of(path: Path) -> dict[str, Tensor]:
    """The arrays of an `.npz` file, by name."""
    try:
        with io.FileIO(path) as file:
            archive = Archive(Window(file), deflated=True)
            heads = {member: _head(archive, member) for member in archive.members.values()}
            check_fits(sum(head.nbytes for head in heads.values()))
            return {_key(member): head.filled(archive, member) for member, head in heads.items()}
    except RefusedError as reason:
        raise InputError(f"'{path}' is refused: {reason}. Nothing in it was run") from None
    except BROKEN as error:
        raise InputError(f"'{path}' is not a whole .npz file of numbers: {first_line(error)}") from None
    except OSError as error:
        raise InputError(f"cannot read '{path}': {reason_of(error)}") from None


def _key(member: Member) -> str:
    return member.name.removesuffix(".npy")


class _Head:
    """What the header of an array announces."""

    def __init__(self, shape: tuple[int, ...], fortran: bool, dtype: "np.dtype[Any]", length: int):
        self.shape, self.fortran, self.dtype, self.length = shape, fortran, dtype, length
        self.nbytes = int(np.prod(np.array(shape, dtype=object), initial=1)) * dtype.itemsize

    def filled(self, archive: Archive, member: Member) -> Tensor:
        """The array, filled piece by piece."""
        shape = self.shape[::-1] if self.fortran else self.shape
        array = np.empty(shape, self.dtype)
        view = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        at = -self.length
        for chunk in archive.chunks(member):
            skipped = max(-at, 0)
            view[max(at, 0) : at + len(chunk)] = chunk[skipped:]
            at += len(chunk)
        return torch.from_numpy(array.T if self.fortran else array).contiguous()


def _head(archive: Archive, member: Member) -> _Head:
    """The header of a member, held against the size that the directory announces."""
    if not member.name.endswith(".npy"):
        raise ValueError(f"'{member.name}' is not an array")
    start = io.BytesIO(next(archive.chunks(member, _HEADER), b""))
    try:
        version = np.lib.format.read_magic(start)
        shape, fortran, dtype = _READERS[version](start)
    except Exception as error:  # the header is Python's text, and may be wrong in all the ways that Python may
        raise ValueError(f"the header of '{member.name}' cannot be read: {first_line(error)}") from None
    if dtype.hasobject:
        raise RefusedError("it holds pickled objects")
    if dtype.kind not in "biufc" or not dtype.isnative:
        raise ValueError(f"'{member.name}' holds {dtype}, expected numbers of this machine")
    if any(n < 0 for n in shape):
        raise ValueError(f"'{member.name}' has the shape {shape}")
    head = _Head(shape, fortran, dtype, start.tell())
    if head.length + head.nbytes != member.size:
        raise RefusedError(
            f"'{member.name}' announces {dtype} of shape {shape}, {head.nbytes:,} bytes, "
            f"and holds {member.size - head.length:,}"
        )
    return head
