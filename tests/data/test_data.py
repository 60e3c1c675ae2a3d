"""The data sets: what is right is read, what is wrong is refused by name; label noise."""

import gzip
import hashlib
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minsharp.data import NAMES, idx, load, permute_labels
from minsharp.data.idx import FILES, IMAGES, LABELS, MNIST, Source, fetch, load_idx, read_file, read_part
from minsharp.errors import InputError


def images(n: int, side: int = 28, magic: int = IMAGES) -> bytes:
    pixels = bytes(i % 251 for i in range(n * side * side))
    return struct.pack(">4i", magic, n, side, side) + pixels


def labels(n: int, of: int = 10) -> bytes:
    return struct.pack(">2i", LABELS, n) + bytes(i % of for i in range(n))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four small files, sound in every respect."""
    monkeypatch.setattr(idx, "PARTS", {"train": 30, "t10k": 20})
    for part, n in (("train", 30), ("t10k", 20)):
        (tmp_path / idx.file_name(part, IMAGES)).write_bytes(gzip.compress(images(n)))
        (tmp_path / idx.file_name(part, LABELS)).write_bytes(gzip.compress(labels(n)))
    return tmp_path


def source_of(folder: Path, *mirrors: str) -> Source:
    archives = {n: "sha256:" + hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in FILES}
    return Source("tiny", mirrors, archives)


def test_digits() -> None:
    data = load("digits")
    assert data.train_x.shape == (1000, 1, 8, 8)
    assert data.test_x.shape == (797, 1, 8, 8)
    assert (float(data.train_x.min()), float(data.train_x.max())) == (-1.0, 1.0)
    assert data.train_x.dtype == torch.float32
    assert data.train_y.dtype == torch.int64
    assert torch.equal(load("digits").train_x, data.train_x)
    whole = {tuple(row.tolist()) for row in torch.cat([data.train_x, data.test_x]).flatten(1)}
    assert len(whole) == 1797


def test_a_subset_keeps_images_and_labels_together() -> None:
    data = load("digits")
    part = data.subset(50)
    assert len(part.train_x) == 50
    assert torch.equal(part.test_x, data.test_x)
    for x, y in zip(part.train_x, part.train_y, strict=True):
        place = int((data.train_x == x).flatten(1).all(1).nonzero()[0, 0])
        assert data.train_y[place] == y
    assert torch.equal(data.subset(50).train_y, part.train_y)
    assert data.subset(None) is data


def test_an_unknown_name() -> None:
    with pytest.raises(InputError, match=r"no data set 'cifar': expected one of digits, mnist, fashion-mnist"):
        load("cifar")
    assert NAMES == ("digits", "mnist", "fashion-mnist", "cifar-10")


def test_idx_files_are_read(folder: Path) -> None:
    data = load_idx(source_of(folder), folder)
    assert data.train_x.shape == (30, 1, 28, 28)
    assert data.test_y.tolist() == [i % 10 for i in range(20)]
    assert float(data.train_x[0, 0, 0, 1]) == pytest.approx((1 / 255 - 0.5) / 0.5)
    above = folder.parent / "above"
    above.mkdir()
    folder.rename(above / "tiny")
    assert torch.equal(load_idx(source_of(above / "tiny"), above).train_x, data.train_x)


def test_mnist(mnist_folder: Path) -> None:
    data = load("mnist", mnist_folder)
    assert data.train_x.shape == (60000, 1, 28, 28)
    assert data.test_y[:5].tolist() == [7, 2, 1, 0, 4]
    assert data.train_y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_mnist_is_not_fashion_mnist(mnist_folder: Path) -> None:
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte.gz of mnist, expected that of fashion-mnist"):
        load("fashion-mnist", mnist_folder)


def test_sound_files_of_something_else_are_not_mnist(folder: Path) -> None:
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte.gz is not the file of mnist: .*sha256 [0-9a-f]{64}"):
        load("mnist", folder)


WRONG: dict[str, tuple[bytes, int, str]] = {
    "images where labels should be": (images(3), LABELS, r"is a file of images, expected labels .*swapped\?"),
    "labels where images should be": (labels(3), IMAGES, r"is a file of labels, expected images .*swapped\?"),
    "another type": (images(3, magic=2052), IMAGES, r"starts with 00 00 08 04.*not an IDX file"),
    "nothing": (b"", IMAGES, r"starts with nothing"),
    "cut in the header": (images(3)[:10], IMAGES, r"truncated: it ends inside its header, after 10 of 16 bytes"),
    "cut in the data": (images(3)[:-5], IMAGES, r"truncated: 2363 bytes, its header announces 2368 for 3 samples"),
    "more than announced": (labels(3) + b"\0", LABELS, r"too long: 12 bytes or more, its header announces 11"),
    "small images": (images(3, side=27), IMAGES, r"images of 27 x 27 pixels, expected 28 x 28"),
    "an eleventh class": (labels(11, of=11), LABELS, r"holds a label 10, expected 0 to 9"),
    "no samples": (images(0), IMAGES, r"holds no samples"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_are_named(case: str, tmp_path: Path) -> None:
    content, magic, message = WRONG[case]
    path = tmp_path / "the-file.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(InputError, match=r"the-file\.gz .*" + message):
        read_file(path, magic)


def test_broken_compression(tmp_path: Path) -> None:
    path = tmp_path / "the-file.gz"
    packed = gzip.compress(images(3))
    path.write_bytes(packed[:-20])
    with pytest.raises(InputError, match=r"the-file.gz is truncated: the compressed data ends too early"):
        read_file(path, IMAGES)
    path.write_bytes(packed[:30] + bytes([packed[30] ^ 255]) + packed[31:])
    with pytest.raises(InputError, match=r"the-file.gz is (corrupt|truncated)"):
        read_file(path, IMAGES)
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(InputError, match=r"the-file.gz is corrupt: it cannot be decompressed"):
        read_file(path, IMAGES)
    path.unlink()
    with pytest.raises(InputError, match="does not exist"):
        read_file(path, IMAGES)


def test_images_and_labels_that_do_not_belong_together(folder: Path) -> None:
    train, test = (folder / idx.file_name(part, LABELS) for part in ("train", "t10k"))
    held = train.read_bytes()
    train.write_bytes(test.read_bytes())
    with pytest.raises(InputError, match=r"holds 30 images, but .*train-labels.* 20 labels: they do not belong"):
        read_part(folder, "train")
    train.write_bytes(held)
    for magic in (IMAGES, LABELS):
        one, other = (folder / idx.file_name(part, magic) for part in ("train", "t10k"))
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        other.write_bytes(first)
    with pytest.raises(InputError, match=r"train-images.* hold 20 samples, expected 30"):
        read_part(folder, "train")


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / FILES[1]).unlink()
    with pytest.raises(InputError, match=r"lacks train-labels-idx1-ubyte.gz; expected the four files"):
        load_idx(MNIST, folder)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_downloads_go_to_the_cache_from_the_first_good_mirror(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first mirror has nothing, the second one a damaged file: only whole files end up in the cache."""
    cache, damaged = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("damaged")
    monkeypatch.setenv("MINSHARP_DATA", str(cache))
    for name in FILES:
        (damaged / name).write_bytes((folder / name).read_bytes()[:-1])
    nothing = tmp_path_factory.mktemp("nothing")
    with served(nothing) as first, served(damaged) as second, served(folder) as third:
        data = load_idx(source_of(folder, first, second, third), progress=True)
    assert sorted(p.name for p in (cache / "tiny").iterdir()) == sorted(FILES)
    again = load_idx(source_of(folder, "http://127.0.0.1:9/"))  # nobody is there: it has to come from the cache
    assert torch.equal(again.train_x, data.train_x)


def test_a_damaged_file_in_the_cache_is_fetched_again(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = tmp_path_factory.mktemp("cache")
    (cache / FILES[0]).write_bytes(b"half a file")
    with served(folder) as mirror:
        fetch(source_of(folder, mirror), FILES[0], cache)
    assert (cache / FILES[0]).read_bytes() == (folder / FILES[0]).read_bytes()


def test_no_mirror_has_it(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache, damaged = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("damaged")
    (damaged / FILES[0]).write_bytes(b"other")
    with (
        served(damaged) as mirror,
        pytest.raises(InputError, match=r"could not be downloaded:\n.*hash.*\nPut the files into a folder"),
    ):
        fetch(source_of(folder, mirror), FILES[0], cache)
    assert not list(cache.iterdir())


@given(st.integers(1, 200), st.floats(0, 1), st.integers(0, 2**31))
def test_permuted_labels(n: int, ratio: float, seed: int) -> None:
    """The counts stay, no more than the fraction changes, and the seed decides."""
    original = torch.arange(n) % 10
    permuted = permute_labels(original, ratio, seed)
    assert torch.equal(permuted.sort().values, original.sort().values)
    assert int((permuted != original).sum()) <= round(ratio * n)
    assert torch.equal(permute_labels(original, ratio, seed), permuted)
    assert torch.equal(original, torch.arange(n) % 10)


def test_how_many_labels_are_permuted() -> None:
    """Of distinct labels nearly all chosen ones move; a larger fraction includes the samples of a smaller one."""
    original = torch.arange(1000)
    moved = [permute_labels(original, r, 5) != original for r in (0.3, 0.6)]
    assert 290 <= int(moved[0].sum()) <= 300
    assert 590 <= int(moved[1].sum()) <= 600
    assert int((moved[0] & ~moved[1]).sum()) <= 5
    assert not torch.equal(permute_labels(original, 0.3, 5), permute_labels(original, 0.3, 6))


def test_a_ratio_above_one() -> None:
    with pytest.raises(InputError, match=r"ratio=1.5: expected a fraction"):
        permute_labels(torch.arange(3), 1.5, 0)
