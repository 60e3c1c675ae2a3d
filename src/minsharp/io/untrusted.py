"""What all readers share: how a file is refused, and what a damaged one may raise."""

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InputError
from ..files import reason_of

BROKEN: tuple[type[Exception], ...] = (
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


class RefusedError(Exception):
    """A part of a file that is not taken on."""


@contextmanager
def reading(path: Path, expected: str, broken: tuple[type[Exception], ...] = BROKEN) -> Iterator[None]:
    """Whatever goes wrong while a file is read becomes one `InputError` that names it, and what it should have been."""
    try:
        yield
    except InputError:
        raise
    except RefusedError as reason:
        raise InputError(f"'{path}' is refused: {reason}. Nothing in it was run") from None
    except OSError as error:
        raise InputError(f"cannot read '{path}': {reason_of(error)}") from None
    except broken as error:
        raise InputError(f"'{path}' is not a whole {expected}: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    """What an error says, without what follows."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def check_fits(count: int) -> None:
    """Refuse more bytes than the machine has."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 62
    if count > machine:
        raise RefusedError(f"it announces {count:,} bytes of numbers, this machine has {machine:,}")
