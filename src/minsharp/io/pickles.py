"""Pickles as `torch.save` writes them, checked before torch reads them, and never obeyed."""

import io
import pickletools
import re
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor

from ..errors import InputError
from .untrusted import RefusedError, check_fits, first_line, reading
from .zips import Archive, Window

_NAMES = 8 << 20
"""Bytes that the names and shapes in a file may take: tens of thousands of tensors."""
_CONTAINERS = 200_000
_LEGACY_PICKLES = 5
"""Before 1.6, torch wrote so many pickles before the numbers."""
_MAKES_MEMORY = re.compile(r"\w+ bytearray|torch(\.\w+)* \w*Tensor")


def unpickled(path: Path) -> Any:
    """What a `.pt` or `.pth` file holds: tensors, numbers and text in lists and dicts; anything else is refused."""
    with reading(path, "file of weights, as torch.save writes it", broken=(Exception,)), io.FileIO(path) as file:
        try:
            check_pickle(Window(file))
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
        except (RefusedError, OSError):
            raise
        except Exception as error:
            if "weights_only" not in str(error) and "Unsupported" not in str(error):
                raise
            raise InputError(
                f"'{path}' is refused: a pickle of more than tensors ({culprit(error)}). Nothing in it was run. "
                "Save the state dict alone: torch.save(model.state_dict(), path)"
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
    sizes: dict[int, int] = {}  # of each place in the file: tied weights and views are announced once for each name
    for storage in (t.untyped_storage() for t in _tensors(announced)):
        place = getattr(storage, "_checkpoint_offset", id(storage))
        sizes[place] = max(storage.nbytes(), sizes.get(place, 0))
    total = sum(sizes.values())
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
