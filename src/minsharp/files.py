"""Files that may come damaged: written whole or not at all, read within limits, held by one run at a time."""

import errno
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import InputError

LOCK = ".lock"
_DRAFT = ".draft"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def check_writable(path: str | Path, suffixes: tuple[str, ...] = ()) -> Path:
    """Refuse, before the work starts, a path that could not be written at its end."""
    target = Path(path)
    if suffixes and target.suffix.lower() not in suffixes:
        raise InputError(f"cannot write '{target}': expected a name that ends in {' or '.join(suffixes)}")
    reason = _unwritable(target)
    if reason:
        raise InputError(f"cannot write '{target}': {reason}")
    return target


def _unwritable(target: Path) -> str:
    folder = target.parent
    try:
        if target.is_dir():
            return "it is a folder"
        if not folder.is_dir():
            return f"there is no folder '{folder}'"
        if target.exists() and not target.is_file():
            return "it is not a file"
        return "" if os.access(folder, os.W_OK) else f"the folder '{folder}' is not writable"
    except OSError as error:  # a name that is too long, say
        return reason_of(error)


def reason_of(error: OSError) -> str:
    """What the system says, without the number and the path."""
    return error.strerror or str(error) or type(error).__name__


def is_file(path: str | Path) -> bool:
    """Whether there is a file; a name that the system cannot take is none."""
    try:
        return Path(path).is_file()
    except OSError:
        return False


def make_folder(path: str | Path) -> Path:
    """The folder, made where there is none."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder '{folder}': {reason_of(error)}") from None
    return folder


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> Path:
    """Call ``write`` with a temporary path in the same folder, then put the file in its place, all or nothing."""
    target = check_writable(path)
    try:
        with _draft(target) as temporary:
            write(temporary)
            temporary.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
            _flush(temporary)
            temporary.replace(target)
    except OSError as error:
        raise InputError(f"cannot write '{target}': {reason_of(error)}") from error
    return target


@contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """A new hidden file beside the target, gone at the end unless it was moved."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", suffix=_DRAFT, dir=target.parent)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        with suppress(OSError):
            os.unlink(name)


def drafts(folder: Path) -> list[Path]:
    """What writers that were killed have left behind."""
    return [path for path in folder.glob(f".*{_DRAFT}") if path.is_file()]


def _flush(path: Path) -> None:
    """Onto the disk, where a full one complains."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file, whole or not at all, even if the machine stops in the middle."""
    return write_atomically(path, lambda draft: draft.write_text(text, encoding="utf-8", newline=""))


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Write a file of any bytes, whole or not at all."""
    return write_atomically(path, lambda draft: draft.write_bytes(content))


def read_text(path: str | Path, most: int) -> str:
    """A text file of at most so many bytes; what is none, or longer, is refused."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"'{path}' is not a file")
            if status.st_size > most:
                raise InputError(f"'{path}' is damaged: it has {status.st_size:,} bytes, expected at most {most:,}")
            return file.read(most).decode("utf-8")
    except OSError as error:
        raise InputError(f"cannot read '{path}': {reason_of(error)}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"'{path}' is damaged: byte {error.start} is not text") from None


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to is no reason to wait."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_json(path: str | Path, most: int) -> Any:
    """What a JSON file of at most so many bytes holds."""
    text = read_text(path, most)
    try:
        return json.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"'{path}' is damaged: {str(error) or type(error).__name__}") from None


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone; refused while another process that is alive holds it.

    The system takes the lock from a process that dies, so what a killed one leaves behind holds nobody up.
    """
    path = folder / LOCK
    try:
        handle = _locked(path)
    except OSError as error:
        raise InputError(f"cannot write '{path}': {reason_of(error)}") from None
    try:
        _sign(path, handle)
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(handle)


def _sign(path: Path, handle: int) -> None:
    """Write whose the lock is."""
    try:
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, f"{os.getpid()}\n".encode())
    except OSError as error:
        raise InputError(f"cannot write '{path}': {reason_of(error)}") from None


def _locked(path: Path) -> int:
    """The lock file, open and locked."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            _lock(handle, path.parent)
            if _is_still(path, handle):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # whoever had it has ended meanwhile, and taken the file away


def _lock(handle: int, folder: Path) -> None:
    """Make the file ours; where there are no locks, it is free once the process that it names has ended."""
    owner = os.read(handle, 20).decode("ascii", "replace").strip()
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        taken = False
    except OSError as error:
        taken = isinstance(error, BlockingIOError) or os.path.exists(f"/proc/{owner or 'none'}")
        if not taken and error.errno not in _NO_LOCKS:
            raise
    else:
        taken = False
    if taken:
        raise InputError(
            f"'{folder}' is in use by another run, process {owner or 'unknown'}. Wait for its end, or pass another "
            "folder with --out"
        )


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle))
    except FileNotFoundError:
        return False


def _umask() -> int:
    """The mask of permissions: it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
