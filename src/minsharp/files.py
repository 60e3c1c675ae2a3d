"""Writing files so that a reader never sees half of one."""

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from .errors import InputError


def check_writable(path: str | Path, suffixes: tuple[str, ...] = ()) -> Path:
    """Refuse, before the work starts, a path that could not be written at its end."""
    target = Path(path)
    folder = target.parent
    if suffixes and target.suffix.lower() not in suffixes:
        raise InputError(f"cannot write '{target}': expected a name that ends in {' or '.join(suffixes)}")
    if target.is_dir():
        raise InputError(f"cannot write '{target}': it is a folder")
    if not folder.is_dir():
        raise InputError(f"cannot write '{target}': there is no folder '{folder}'")
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write '{target}': the folder '{folder}' is not writable")
    return target


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> Path:
    """Call ``write`` with a temporary path in the same folder, then put the file in its place, all or nothing."""
    target = check_writable(path)
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
        temporary.replace(target)
    except OSError as error:
        raise InputError(f"cannot write '{target}': {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, whole or not at all, even if the machine stops in the middle."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    with draft.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(target)


def _umask() -> int:
    """The mask of permissions: it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
