"""Files packed with gzip: no byte more is unpacked than asked for."""

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path

from ..errors import InputError
from ..files import reason_of

_CHUNK = 1 << 16


def first_bytes(path: Path, most: int) -> bytearray:
    """What a file unpacks to, of it no more than so many bytes."""
    found = bytearray()
    for chunk in unpacked(path):
        found += chunk[: most - len(found)]
        if len(found) == most:
            break
    return found


def sha256_unpacked(path: Path, most: int) -> str:
    """The hash of what a file unpacks to; nothing if that is more than so many bytes."""
    digest, size = hashlib.sha256(), 0
    for chunk in unpacked(path):
        digest.update(chunk)
        size += len(chunk)
        if size > most:
            return ""
    return digest.hexdigest()


def unpacked(path: Path) -> Iterator[bytes]:
    """What a file unpacks to, piece by piece."""
    try:
        with path.open("rb") as packed, gzip.GzipFile(fileobj=packed) as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except EOFError as error:
        raise InputError(f"{path} is truncated: the compressed data ends too early") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path} is corrupt: it cannot be decompressed ({error})") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {reason_of(error)}") from error
