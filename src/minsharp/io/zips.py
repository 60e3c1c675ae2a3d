"""Zip files without trust: what the directory announces is held against the file before anything is unpacked.

A file of a few kilobytes can announce, or unpack to, more than any machine holds. So a reader here knows the size of
every member in advance, sees to it that the members lie side by side in the file, and unpacks no byte more.
"""

import io
import os
import stat
import struct
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .untrusted import RefusedError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

DIRECTORY = 4 << 20
"""Bytes that the directory of an archive may take: tens of thousands of members."""
EXPANSION = 1032
"""The most that deflate can shrink anything by."""
_CHUNK = 1 << 20
_LOCAL, _END, _END64 = b"PK\3\4", b"PK\5\6", 56 + 20
_ENCRYPTED = 0x1 | 0x40 | 0x2000


@dataclass(frozen=True)
class Member:
    """A file in the archive: its size unpacked and packed, and where in the archive it begins."""

    name: str
    size: int
    packed: int
    start: int
    crc: int
    deflated: bool


class _Readable(io.RawIOBase):
    """A file to read from any place."""

    length: int
    _at: int

    def readable(self) -> bool:
        """What torch and zipfile ask before they read."""
        return True

    def seekable(self) -> bool:
        """What torch and zipfile ask before they go elsewhere."""
        return True

    def tell(self) -> int:
        """The place that is read next."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a place, counted from the start, from here or from the end; the place, counted from the start."""
        place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.length}[whence]
        if place < 0:
            raise OSError("a place before the start")
        self._at = place
        return place


class Window(_Readable):
    """A stretch of a file, as a file of its own."""

    def __init__(self, file: io.FileIO, start: int = 0, length: int | None = None):
        self._file, self._start, self._at = file, start, 0
        self.length = os.fstat(file.fileno()).st_size - start if length is None else length

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Bytes from the place on."""
        view = memoryview(buffer).cast("B")
        view = view[: max(min(len(view), self.length - self._at), 0)]
        self._file.seek(self._start + self._at)
        count = self._file.readinto(view)
        self._at += count
        return count

    def part(self, start: int, length: int) -> "Window":
        """A stretch of this one."""
        return Window(self._file, self._start + start, length)


class _Frugal(Window):
    """For Python's zipfile, which takes the whole directory into memory, however large it says it is."""

    def read(self, size: int | None = -1, /) -> bytes:
        """As a file does; refuses what is too much for a directory."""
        if size is None or size < 0:
            size = self.length - self.tell()
        if size > DIRECTORY:
            raise RefusedError(f"its directory takes more than {DIRECTORY >> 20} MiB")
        return super().read(size) or b""


class Archive:
    """The members of a zip file by name, all of them checked; ``deflated`` ones are refused unless asked for."""

    def __init__(self, file: Window, deflated: bool = False):
        self.file = file
        self.members = self._checked(deflated)

    def _checked(self, deflated: bool) -> dict[str, Member]:
        self._check_end()
        frugal = _Frugal(self.file._file, self.file._start, self.file.length)
        with zipfile.ZipFile(frugal) as archive:
            found = archive.infolist()
            directory: int = archive.start_dir
        names = {info.filename for info in found}
        if len(names) != len(found):
            raise RefusedError("it holds two files of the same name")
        members = [self._member(info, deflated) for info in found]
        places = sorted((info.header_offset, m.start + m.packed) for info, m in zip(found, members, strict=True))
        for (_, end), (after, _) in zip(places, [*places[1:], (directory, 0)], strict=True):
            if end > after:
                raise RefusedError("its files overlap")
        return {m.name: m for m in members if not m.name.endswith("/")}

    def _check_end(self) -> None:
        """The directory lies right before the end of the file: every reader finds the same one."""
        if self.file.length < 22:
            raise zipfile.BadZipFile("File is not a zip file")
        self.file.seek(-22, os.SEEK_END)
        end = self._bytes(22)
        size, offset, comment = struct.unpack("<LLH", end[12:22])
        if end[:4] != _END or comment:
            raise zipfile.BadZipFile("File is not a zip file" if end[:4] != _END else "it ends with a comment")
        if 0xFFFFFFFF not in (size, offset) and size + offset + 22 not in (self.file.length, self.file.length - _END64):
            raise zipfile.BadZipFile("its directory is not where it should be")

    def _member(self, info: zipfile.ZipInfo, deflated: bool) -> Member:
        """What the directory says of a member, held against what stands at its place."""
        name, kinds = info.filename, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) if deflated else (zipfile.ZIP_STORED,)
        parts = name.split("/")
        if ".." in parts or "\\" in name or name.startswith("/") or ":" in parts[0] or not name.isprintable():
            raise RefusedError(f"it holds a file outside of its folder, {name[:60]!r}")
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise RefusedError(f"'{name}' is a link, or no file at all")
        if info.compress_type not in kinds or info.flag_bits & _ENCRYPTED:
            raise RefusedError(f"'{name}' is compressed, or encrypted, in a way that is not used for numbers")
        if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
            raise RefusedError(f"'{name}' announces {info.file_size:,} bytes, and holds {info.compress_size:,}")
        if info.file_size > EXPANSION * info.compress_size + 64:
            raise RefusedError(f"'{name}' announces {info.file_size:,} bytes in {info.compress_size:,}: impossible")
        start = self._start(info)
        crc, packed = info.CRC, info.compress_size
        return Member(name, info.file_size, packed, start, crc, info.compress_type == zipfile.ZIP_DEFLATED)

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Where a member's bytes begin, by the words that stand before them."""
        self.file.seek(info.header_offset)
        head = self._bytes(30)
        if len(head) < 30 or head[:4] != _LOCAL:
            raise zipfile.BadZipFile(f"'{info.filename}' is not where it should be")
        length, extra = struct.unpack("<HH", head[26:30])
        if self._bytes(length) != info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437"):
            raise RefusedError(f"'{info.filename}' has another name at its place")
        begin: int = info.header_offset
        return begin + 30 + length + extra

    def _bytes(self, count: int) -> bytes:
        return self.file.read(count) or b""

    def window(self, name: str) -> Window:
        """A stored member as a file of its own."""
        member = self.members[name]
        return self.file.part(member.start, member.size)

    def chunks(self, member: Member, step: int = _CHUNK) -> Iterator[bytes]:
        """A member piece by piece; never more than announced, and an error if less, or something else."""
        done, crc = 0, 0
        for chunk in self._unpacked(member, step) if member.deflated else self._raw(member, step):
            done += len(chunk)
            crc = zlib.crc32(chunk, crc)
            if done > member.size:
                raise RefusedError(f"'{member.name}' announces {member.size:,} bytes, and unpacks to more")
            yield chunk
        if done != member.size:
            raise RefusedError(f"'{member.name}' announces {member.size:,} bytes, and holds {done:,}")
        if crc != member.crc:
            raise zipfile.BadZipFile(f"'{member.name}' is damaged: its checksum is another one")

    def _raw(self, member: Member, step: int) -> Iterator[bytes]:
        for at in range(0, member.packed, step):
            self.file.seek(member.start + at)
            chunk = self._bytes(min(step, member.packed - at))
            if not chunk:
                raise EOFError(f"'{member.name}' ends too early")
            yield chunk

    def _unpacked(self, member: Member, step: int) -> Iterator[bytes]:
        machine = zlib.decompressobj(-zlib.MAX_WBITS)
        for packed in self._raw(member, step):
            while packed and not machine.eof:
                yield machine.decompress(packed, step)
                packed = machine.unconsumed_tail
        while not machine.eof and (rest := machine.decompress(b"", step)):
            yield rest
        if not machine.eof or machine.unused_data:
            raise RefusedError(f"'{member.name}' is not packed as its directory says")

    def read(self, name: str, most: int) -> bytes:
        """A small member as a whole."""
        member = self.members[name]
        if member.size > most:
            raise RefusedError(f"'{name}' has {member.size:,} bytes, expected at most {most:,}")
        return b"".join(self.chunks(member))


class _Sink:
    """All of a file that a zip needs to be written to."""

    def __init__(self, target: "Patchwork"):
        self.write = target.take

    def flush(self) -> None:
        """What zipfile calls at the end; every byte has been handed on by then."""


class Patchwork(_Readable):
    """A zip file of new bytes and of members of another one, which stay where they are: no copy in memory."""

    def __init__(self, archive: Archive):
        self._archive = archive
        self._begins: list[int] = []
        self._parts: list[tuple[int, bytes | int]] = []  # length, and the bytes or their place in the other file
        self.length = self._at = 0
        self._place: int | None = None
        self._zip = zipfile.ZipFile(_Sink(self), "w")  # type: ignore[call-overload]

    def add(self, name: str, content: bytes | Member) -> None:
        """One more member: bytes, or a stored member of the other archive."""
        with self._zip.open(zipfile.ZipInfo(name), "w", force_zip64=True) as target:
            if isinstance(content, bytes):
                target.write(content)
                return
            place = content.start
            for chunk in self._archive.chunks(content):
                self._place = place
                target.write(chunk)
                place += len(chunk)

    def take(self, content: bytes) -> int:
        """Bytes for the end of the file; what lies in the other one is only remembered."""
        source, self._place = content if self._place is None else self._place, None
        self._begins.append(self.length)
        self._parts.append((len(content), source))
        self.length += len(content)
        return len(content)

    def finish(self) -> None:
        """Write the directory, and go back to the start."""
        self._zip.close()
        self.seek(0)

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Bytes from the place on, as many as there are."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view) and self._at < self.length:
            count = self._read_part(view[done:])
            done += count
            self._at += count
        return done

    def _read_part(self, view: memoryview) -> int:
        """Bytes from the place on that lie in one part."""
        part = bisect_right(self._begins, self._at) - 1
        (length, source), inside = self._parts[part], self._at - self._begins[part]
        count = min(length - inside, len(view))
        if isinstance(source, bytes):
            view[:count] = source[inside : inside + count]
            return count
        self._archive.file.seek(source + inside)
        count = self._archive.file.readinto(view[:count])
        if not count:
            raise EOFError("the file became shorter while it was read")
        return count
