"""MNIST and Fashion-MNIST: four gzipped IDX files each, from a folder or downloaded into a cache."""

import hashlib
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError
from ..extras import required
from ..files import reason_of
from ..io.gzips import first_bytes, sha256_unpacked
from ..progress import download_bar
from .dataset import Dataset, normalised

IMAGES, LABELS = 2051, 2049  # the first four bytes of a file: unsigned bytes in three dimensions, or in one
_HOLDS = {IMAGES: "images", LABELS: "labels"}
PARTS = {"train": 60_000, "t10k": 10_000}
SIDE, CLASSES = 28, 10
LARGEST = 16 + PARTS["train"] * SIDE * SIDE
"""Bytes in the largest of the files."""


@dataclass(frozen=True)
class Source:
    """Where a data set is published, and how to know its files."""

    name: str
    mirrors: tuple[str, ...]
    archives: Mapping[str, str]
    """The hashes of the published files, as pooch writes them."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """The sha256 of what is in them, where known: files may have been compressed anew."""


def file_name(part: str, magic: int) -> str:
    """The published name of a file."""
    return f"{part}-images-idx3-ubyte.gz" if magic == IMAGES else f"{part}-labels-idx1-ubyte.gz"


FILES = tuple(file_name(part, magic) for part in PARTS for magic in _HOLDS)

MNIST = Source(
    "mnist",
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    {
        "train-images-idx3-ubyte.gz": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    {
        "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
)

FASHION_MNIST = Source(
    "fashion-mnist",
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    {
        "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
    },
)


def load_idx(source: Source, data_dir: str | Path | None = None, *, progress: bool = False) -> Dataset:
    """The data set: from the folder if one is given, else from the cache, downloaded into it where it is missing."""
    folder = _given(source, Path(data_dir)) if data_dir is not None else cache_folder(source.name)
    if data_dir is None:
        for name in FILES:
            fetch(source, name, folder, progress=progress)
    train_x, train_y = read_part(folder, "train")
    test_x, test_y = read_part(folder, "t10k")
    for name in FILES:
        _belongs(source, folder / name)
    return Dataset(source.name, train_x, train_y, test_x, test_y)


def cache_folder(name: str) -> Path:
    """Where downloads go: $MINSHARP_DATA, or the usual cache of the system."""
    pooch = required("pooch", "downloading data")
    return Path(os.environ.get("MINSHARP_DATA") or pooch.os_cache("minsharp")) / name


def _given(source: Source, folder: Path) -> Path:
    """The folder with the files: the one given, or one in it with the data set's name."""
    for place in (folder, folder / source.name):
        if all((place / name).is_file() for name in FILES):
            return place
    missing = ", ".join(name for name in FILES if not (folder / name).is_file())
    raise InputError(
        f"data_dir={str(folder)!r} lacks {missing}; expected the four files {', '.join(FILES)}. "
        "Without data_dir they are downloaded"
    )


def read_part(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Images and labels of the training or the test part, with everything checked that can be without knowing them."""
    images, labels = folder / file_name(part, IMAGES), folder / file_name(part, LABELS)
    n, m = announced(images, IMAGES)[0], announced(labels, LABELS)[0]
    if n != m:
        raise InputError(f"{images} holds {n} images, but {labels} {m} labels: they do not belong together")
    if n != PARTS[part]:
        raise InputError(f"{images} and {labels} hold {n} samples, expected {PARTS[part]}")
    x, y = read_file(images, IMAGES), read_file(labels, LABELS)
    return normalised(x, 255).unsqueeze(1), y.long()


def announced(path: Path, magic: int) -> tuple[int, ...]:
    """The shape that the header of an IDX file announces; nothing after it is unpacked."""
    dimensions = 3 if magic == IMAGES else 1
    head = 4 + 4 * dimensions
    raw = first_bytes(path, head)
    found = struct.unpack(">i", raw[:4])[0] if len(raw) >= 4 else None
    if found != magic:
        what = f"is a file of {_HOLDS[found]}" if found in _HOLDS else f"starts with {raw[:4].hex(' ') or 'nothing'}"
        swapped = ": are two files swapped?" if found in _HOLDS else ": it is not an IDX file of unsigned bytes"
        raise InputError(f"{path} {what}, expected {_HOLDS[magic]} (magic number {magic}){swapped}")
    if len(raw) < head:
        raise InputError(f"{path} is truncated: it ends inside its header, after {len(raw)} of {head} bytes")
    shape = struct.unpack(f">{dimensions}i", raw[4:head])
    if magic == IMAGES and shape[1:] != (SIDE, SIDE):
        raise InputError(f"{path} holds images of {shape[1]} x {shape[2]} pixels, expected {SIDE} x {SIDE}")
    if shape[0] <= 0:
        raise InputError(f"{path} holds no samples")
    return shape


def read_file(path: Path, magic: int) -> Tensor:
    """The bytes of one IDX file as a tensor; an error names the file and what is wrong with it."""
    shape = announced(path, magic)
    head = 4 + 4 * len(shape)
    expected = head + math.prod(shape)
    raw = first_bytes(path, expected + 1)
    if len(raw) != expected:
        what = f"truncated: {len(raw)} bytes" if len(raw) < expected else f"too long: {len(raw)} bytes or more"
        raise InputError(f"{path} is {what}, its header announces {expected} for {shape[0]} samples")
    values = torch.frombuffer(raw, dtype=torch.uint8, offset=head).view(shape)
    if magic == LABELS and int(values.max()) >= CLASSES:
        raise InputError(f"{path} holds a label {int(values.max())}, expected 0 to {CLASSES - 1}")
    return values


def _belongs(source: Source, path: Path) -> None:
    """Refuse a sound file that is known to be another one: the wrong data set would give wrong numbers silently."""
    kind, expected = source.archives[path.name].split(":")
    with path.open("rb") as file:
        if hashlib.file_digest(file, kind).hexdigest() == expected:
            return
    found = sha256_unpacked(path, LARGEST)
    owners = [(s.name, name) for s in (MNIST, FASHION_MNIST) for name, known in s.contents.items() if known == found]
    if (source.name, path.name) in owners:
        return
    if owners:
        raise InputError(f"{path} is {owners[0][1]} of {owners[0][0]}, expected that of {source.name}")
    if source.contents:
        raise InputError(
            f"{path} is not the file of {source.name}: its content has sha256 {found}, "
            f"expected {source.contents[path.name]}"
        )


def fetch(source: Source, name: str, folder: Path, *, progress: bool = False) -> Path:
    """The file in the folder: the one that is there if it is whole, else from the first mirror that has it whole."""
    required("pooch", "downloading data")  # what is missing is said at once, not as the reason of every mirror
    path = folder / name
    if path.is_file() and _whole(path, source, name):
        return path
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot replace '{path}': {reason_of(error)}") from None
    reasons = []
    for mirror in source.mirrors:
        try:
            return _download(mirror, source, name, folder, progress)
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong hash is a ValueError
            reasons.append(f"  {mirror}: {' '.join(str(error).split())[:200]}")
    raise InputError(
        f"{name} of {source.name} could not be downloaded:\n" + "\n".join(reasons) + "\n"
        f"Put the files into a folder and pass it: --data-dir FOLDER, or load({source.name!r}, data_dir=FOLDER)"
    )


def _download(mirror: str, source: Source, name: str, folder: Path, progress: bool) -> Path:
    """pooch writes to a temporary file, checks its hash and renames it, so the folder never holds half a file."""
    pooch = required("pooch", "downloading data")
    with download_bar(name, progress) as bar:
        download = pooch.HTTPDownloader(progressbar=bar or False, timeout=30)
        pooch.retrieve(mirror + name, source.archives[name], fname=name, path=folder, downloader=download)
    return folder / name


def _whole(path: Path, source: Source, name: str) -> bool:
    pooch = required("pooch", "downloading data")
    if pooch.hashes.hash_matches(path, source.archives[name]):
        return True
    try:
        return sha256_unpacked(path, LARGEST) == source.contents.get(name)
    except InputError:
        return False
