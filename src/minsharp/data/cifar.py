"""CIFAR-10: six binary files of records, a byte of label and three planes of 32 x 32 pixels; or the archive of them."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError
from ..files import reason_of
from ..io.tars import files_in
from .dataset import Dataset, normalised
from .idx import Source, cache_folder, fetch

PARTS = {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)}
FILES = tuple(name for names in PARTS.values() for name in names)
ARCHIVE, FOLDER = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"
PER_FILE = 10_000
CLASSES, SHAPE = 10, (3, 32, 32)
RECORD = 1 + 3 * 32 * 32

CIFAR_10 = Source("cifar-10", ("https://www.cs.toronto.edu/~kriz/",), {ARCHIVE: "md5:c32a1d4ab5d03f1284b67883e8d87530"})


def load_cifar(data_dir: str | Path | None = None, *, progress: bool = False) -> Dataset:
    """The data set: from a folder with the files or the archive, from the archive itself, else from the cache."""
    if data_dir is None:
        archive = fetch(CIFAR_10, ARCHIVE, cache_folder(CIFAR_10.name), progress=progress)
        place, raw = archive, _unpacked(archive)
    else:
        place = _given(Path(data_dir))
        raw = _unpacked(place) if place.is_file() else {name: _bytes(place / name) for name in FILES}
    (train_x, train_y), (test_x, test_y) = (_part(place, raw, part) for part in PARTS)
    return Dataset(CIFAR_10.name, train_x, train_y, test_x, test_y)


def _given(place: Path) -> Path:
    """The archive, or the folder with the six files: what was given, or in it."""
    if place.is_file():
        return place
    for folder in (place, place / FOLDER, place / CIFAR_10.name, place / CIFAR_10.name / FOLDER):
        if all((folder / name).is_file() for name in FILES):
            return folder
        if (folder / ARCHIVE).is_file():
            return folder / ARCHIVE
    missing = ", ".join(name for name in FILES if not (place / name).is_file())
    raise InputError(
        f"data_dir={str(place)!r} lacks {missing}; expected the files of CIFAR-10's binary version, "
        f"{', '.join(FILES)}, or {ARCHIVE}. Without data_dir it is downloaded"
    )


def _unpacked(archive: Path) -> Mapping[str, bytearray]:
    return files_in(archive, dict.fromkeys(FILES, PER_FILE * RECORD))


def _bytes(path: Path) -> bytearray:
    """A file of records, its size known before it is read."""
    expected = PER_FILE * RECORD
    try:
        with path.open("rb") as file:
            raw = bytearray(file.read(expected + 1))
    except OSError as error:
        raise InputError(f"cannot read {path}: {reason_of(error)}") from error
    if len(raw) != expected:
        what = f"truncated: {len(raw)} bytes" if len(raw) < expected else f"too long: more than {expected} bytes"
        raise InputError(f"{path} is {what}, expected {expected} for {PER_FILE} images")
    return raw


def _part(place: Path, raw: Mapping[str, bytearray], part: str) -> tuple[Tensor, Tensor]:
    """Images and labels of the training or the test part; each class is there as often as every other."""
    records = [torch.frombuffer(raw[name], dtype=torch.uint8).view(-1, RECORD) for name in PARTS[part]]
    labels = torch.cat([r[:, 0] for r in records]).long()
    if int(labels.max()) >= CLASSES:
        raise InputError(f"{place} holds a label {int(labels.max())}, expected 0 to {CLASSES - 1}: is it CIFAR-10?")
    counts = labels.bincount(minlength=CLASSES)
    if int(counts.min()) != int(counts.max()):
        raise InputError(
            f"{place} is not CIFAR-10: its {part} images are {counts.tolist()} of each class, expected as many of each"
        )
    return normalised(torch.cat([r[:, 1:] for r in records]), 255).view(-1, *SHAPE), labels
