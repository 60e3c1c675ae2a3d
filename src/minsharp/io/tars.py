"""Files out of a `.tar.gz`: those that are asked for, of the sizes that are expected, and no byte more is unpacked."""

import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from .gzips import unpacked
from .untrusted import RefusedError, reading

_BLOCK = tarfile.BLOCKSIZE
_BESIDE = 1 << 20
"""Bytes that an archive may hold beside what is asked for: a word about it, names, padding."""


class _Stream:
    """What a file unpacks to, taken piece by piece, up to a limit."""

    def __init__(self, path: Path, most: int):
        self._chunks, self._held, self._left = unpacked(path), bytearray(), most

    def take(self, count: int) -> bytearray:
        """The next bytes, fewer at the end."""
        self._left -= count
        if self._left < 0:
            raise RefusedError("it unpacks to more than the files that are expected in it")
        while len(self._held) < count and (chunk := next(self._chunks, b"")):
            self._held += chunk
        taken = self._held[:count]
        del self._held[:count]
        return taken


def files_in(path: Path, sizes: Mapping[str, int]) -> dict[str, bytearray]:
    """Files of a `.tar.gz` by their names without folders; each has to be there, once, and of its size."""
    found: dict[str, bytearray] = {}
    with reading(path, ".tar.gz archive", broken=(tarfile.TarError, ValueError)):
        stream = _Stream(path, sum(sizes.values()) + _BESIDE)
        while len(found) < len(sizes):
            head = stream.take(_BLOCK)
            if not any(head):  # the end
                break
            info = tarfile.TarInfo.frombuf(bytes(head), "utf-8", "surrogateescape")
            name = PurePosixPath(info.name).name
            content = _content(stream, info, sizes.get(name) if info.isreg() else None)
            if content is not None and found.setdefault(name, content) is not content:
                raise RefusedError(f"it holds '{name}' twice")
        missing = [name for name in sizes if name not in found]
        if missing:
            raise RefusedError(f"it holds no {', '.join(missing)}")
    return found


def _content(stream: _Stream, info: tarfile.TarInfo, expected: int | None) -> bytearray | None:
    """The bytes of a file that is asked for; others are passed over."""
    if info.size < 0 or (expected is not None and info.size != expected):
        raise RefusedError(f"'{info.name}' announces {info.size:,} bytes, expected {expected or 0:,}")
    content = bytearray() if expected is None else stream.take(expected)
    if expected is not None and len(content) != expected:
        raise RefusedError(f"'{info.name}' announces {expected:,} bytes, and holds {len(content):,}")
    rest = (0 if expected is not None else info.size) + -info.size % _BLOCK
    while rest > 0:
        step = min(rest, _BESIDE)
        stream.take(step)
        rest -= step
    return None if expected is None else content
