"""CIFAR-10 from files of the official form: folders, the archive, and what is neither."""

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minsharp.data import cifar, load
from minsharp.data.cifar import ARCHIVE, FILES, FOLDER, RECORD
from minsharp.errors import InputError

N = 20
"""Images in a file, here."""


def records(seed: int, n: int = N, classes: int = 10) -> bytes:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (n, RECORD - 1), generator=generator, dtype=torch.uint8)
    labels = (torch.arange(n) % classes).to(torch.uint8).view(-1, 1)
    return torch.cat([labels, pixels], 1).numpy().tobytes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six small files, sound in every respect."""
    monkeypatch.setattr(cifar, "PER_FILE", N)
    for seed, name in enumerate(FILES):
        (tmp_path / name).write_bytes(records(seed))
    return tmp_path


def archived(files: dict[str, bytes], path: Path, change: Callable[[tarfile.TarInfo], Any] = lambda info: None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            change(info)
            archive.addfile(info, io.BytesIO(content))
    return path


def official(folder: Path) -> dict[str, bytes]:
    files = {f"{FOLDER}/{name}": (folder / name).read_bytes() for name in FILES}
    return {f"{FOLDER}/batches.meta.txt": b"airplane\n", f"{FOLDER}/readme.html": b"<html>", **files}


def test_the_files_are_read(folder: Path) -> None:
    data = load("cifar-10", folder)
    assert data.train_x.shape == (5 * N, 3, 32, 32)
    assert data.test_x.shape == (N, 3, 32, 32)
    assert data.train_y.tolist() == [i % 10 for i in range(N)] * 5
    raw = records(FILES.index("data_batch_3.bin"))
    label, red, last = raw[4 * RECORD], raw[4 * RECORD + 1], raw[5 * RECORD - 1]
    assert int(data.train_y[2 * N + 4]) == label
    assert float(data.train_x[2 * N + 4, 0, 0, 0]) == pytest.approx((red / 255 - 0.5) / 0.5)
    assert float(data.train_x[2 * N + 4, 2, 31, 31]) == pytest.approx((last / 255 - 0.5) / 0.5)


def test_from_the_archive(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("archive")
    path = archived(official(folder), place / ARCHIVE)
    expected = load("cifar-10", folder)
    for given in (path, place):
        found = load("cifar-10", given)
        assert torch.equal(found.train_x, expected.train_x)
        assert torch.equal(found.test_y, expected.test_y)


def test_in_a_folder_of_its_own(folder: Path) -> None:
    inside = folder / "data" / FOLDER
    inside.mkdir(parents=True)
    for name in FILES:
        (folder / name).rename(inside / name)
    assert len(load("cifar-10", folder / "data").train_x) == 5 * N


def linked(info: tarfile.TarInfo) -> None:
    if info.name.endswith("data_batch_1.bin"):
        info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/passwd", 0


def test_wrong_archives(folder: Path) -> None:
    files, path = official(folder), folder / "wrong.tar.gz"
    first = f"{FOLDER}/data_batch_1.bin"

    def refused(match: str) -> None:
        with pytest.raises(InputError, match=match):
            load("cifar-10", path)

    archived({name: content for name, content in files.items() if name != first}, path)
    refused(r"is refused: it holds no data_batch_1\.bin")
    archived({**files, first: files[first] + b"more"}, path)
    refused(r"data_batch_1\.bin' announces 61,464 bytes, expected 61,460")
    archived(files, path, linked)
    refused(r"it holds no data_batch_1\.bin")
    archived({f"{FOLDER}/zeros": bytes(1 << 22), **files}, path)
    refused("it unpacks to more than the files that are expected in it")
    archived({first: files[first], **{f"again/{n}": files[f"{FOLDER}/{n}"] for n in FILES}}, path)
    refused(r"it holds 'data_batch_1\.bin' twice")
    path.write_bytes(gzip.compress(b"nonsense" * 1000))
    refused(r"is not a whole \.tar\.gz archive")
    path.write_bytes(b"nonsense")
    refused("is corrupt")
    whole = archived(files, path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused("is truncated")


def test_an_archive_of_few_bytes_takes_little_memory(folder: Path) -> None:
    """A head that announces a long name of many bytes, and a file of zeros: neither is unpacked."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 32
    path = folder / "bomb.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf() + bytes(1 << 24)))
    with pytest.raises(InputError, match="it unpacks to more than"):
        load("cifar-10", path)


def test_wrong_files(folder: Path) -> None:
    path = folder / "test_batch.bin"
    path.write_bytes(records(5)[:-1])
    with pytest.raises(InputError, match=r"test_batch\.bin is truncated: 61459 bytes, expected 61460 for 20 images"):
        load("cifar-10", folder)
    path.write_bytes(records(5) + b"x")
    with pytest.raises(InputError, match=r"test_batch\.bin is too long: more than 61460 bytes"):
        load("cifar-10", folder)
    path.write_bytes(records(5, classes=11))
    with pytest.raises(InputError, match="holds a label 10, expected 0 to 9"):
        load("cifar-10", folder)
    path.write_bytes(records(5, classes=9))
    with pytest.raises(InputError, match=r"is not CIFAR-10: its test images are \[3, 3, 2"):
        load("cifar-10", folder)
    path.unlink()
    with pytest.raises(InputError, match=r"lacks test_batch\.bin; expected the files of CIFAR-10's binary version"):
        load("cifar-10", folder)
