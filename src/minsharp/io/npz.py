"""Arrays by name from `.npz` files, filled piece by piece into memory of the size that was announced and checked."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .untrusted import RefusedError, check_fits, first_line, reading
from .zips import Archive, Member, Window

_HEADER = 1 << 14
"""Bytes of an array's header, and more."""
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def arrays_of(path: Path) -> dict[str, Tensor]:
    """The arrays of an `.npz` file, by name."""
    with reading(path, ".npz file of numbers"), io.FileIO(path) as file:
        archive = Archive(Window(file), deflated=True)
        heads = {member: _head(archive, member) for member in archive.members.values()}
        check_fits(sum(head.nbytes for head in heads.values()))
        return {member.name.removesuffix(".npy"): head.filled(archive, member) for member, head in heads.items()}


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
