"""Folders of images: classes, sizes, and pixels as they were asked for."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from minsharp.data.folder import ImageFolder
from minsharp.data.preparation import Preparation
from minsharp.errors import InputError
from minsharp.io import images

Image = pytest.importorskip("PIL.Image")


def picture(path: Path, width: int = 6, height: int = 4, colour: Any = (255, 0, 51), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (width, height), colour).save(path)
    return path


def gradient(path: Path, width: int, height: int) -> Path:
    """Red grows with x, green with y."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", (width, height))
    image.putdata([(x, y, 0) for y in range(height) for x in range(width)])
    image.save(path)
    return path


def prepared(*words: str) -> Preparation:
    return Preparation.of(words)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(3):
        picture(tmp_path / "dog" / f"{i}.png", colour=(10 * i, 0, 0))
    picture(tmp_path / "cat" / "inside" / "a.JPG", colour=(0, 0, 0))
    picture(tmp_path / "cat" / "b.bmp", colour=(255, 255, 255))
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    return tmp_path


def test_classes_by_name_and_pixels_from_0_to_1(folder: Path) -> None:
    data = ImageFolder(folder)
    assert data.classes == ["cat", "dog"]
    assert [label for _, label in data.files] == [0, 0, 1, 1, 1]
    assert [path.name for path, _ in data.files] == ["b.bmp", "a.JPG", "0.png", "1.png", "2.png"]
    image, label = data[4]
    assert label == 1
    assert image.dtype == torch.float32
    assert image.shape == (3, 4, 6)
    assert torch.equal(image[0], torch.full((4, 6), 20 / 255))
    assert float(image[1:].abs().max()) == 0


def test_fewer_samples_are_spread_over_the_classes(folder: Path) -> None:
    data = ImageFolder(folder, samples=2)
    assert [label for _, label in data.files] == [0, 1]
    assert data.available == 5
    assert len(ImageFolder(folder, samples=99)) == 5


def test_mean_std_and_channels(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "0.png", colour=(255, 0, 51))
    image, _ = ImageFolder(tmp_path, prepared("mean=0.5,0.25,0", "std=0.5,0.5,0.1"))[0]
    assert image[:, 0, 0].tolist() == pytest.approx([1.0, -0.5, 2.0])
    grey, _ = ImageFolder(tmp_path, prepared("channels=1", "mean=0.5"))[0]
    assert grey.shape == (1, 4, 6)
    expected = round(0.299 * 255 + 0.114 * 51) / 255 - 0.5
    assert float(grey[0, 0, 0]) == pytest.approx(expected, abs=1 / 255)
    picture(tmp_path / "a" / "1.png", colour=200, mode="L")  # grey files in colour networks: three times the same
    assert ImageFolder(tmp_path)[1][0][:, 0, 0].tolist() == pytest.approx([200 / 255] * 3)


def test_crop_is_the_middle(tmp_path: Path) -> None:
    gradient(tmp_path / "a" / "0.png", 10, 8)
    image, _ = ImageFolder(tmp_path, prepared("crop=4x6"))[0]
    assert image.shape == (3, 4, 6)
    assert (image * 255).round()[:2, 0, 0].tolist() == [2, 2]  # two columns left of it, two rows above
    assert (image * 255).round()[:2, -1, -1].tolist() == [7, 5]


@pytest.mark.parametrize(
    ("word", "size", "expected"),
    [("resize=5", (20, 10), (5, 10)), ("resize=5", (10, 21), (10, 5)), ("resize=3x7", (20, 10), (3, 7))],
)
def test_resize_is_of_the_shorter_side_or_both(
    word: str, size: tuple[int, int], expected: tuple[int, int], tmp_path: Path
) -> None:
    gradient(tmp_path / "a" / "0.png", *size)
    assert ImageFolder(tmp_path, prepared(word, "interpolation=nearest"))[0][0].shape[1:] == expected


def test_images_of_different_sizes_are_named(folder: Path) -> None:
    picture(folder / "dog" / "1.png", 7, 4)
    data = ImageFolder(folder)
    with pytest.raises(
        InputError, match=r"b\.bmp' has 6 x 4 pixels, '.*1\.png' 7 x 4: say how to make them equal, --im"
    ):
        list(data)  # type: ignore[call-overload]
    assert len([*map(ImageFolder(folder, prepared("resize=4", "crop=4")).__getitem__, range(5))]) == 5


def test_what_is_no_folder_of_images(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"holds no images: expected a folder for each class with images in it, as in "
    ):
        ImageFolder(tmp_path)
    picture(tmp_path / "1.png")
    with pytest.raises(InputError, match="holds no images: expected a folder for each class"):
        ImageFolder(tmp_path)
    picture(tmp_path / "a" / "1.png")
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match=r"b' holds no images \(\.bmp, .*\), and would be a class"):
        ImageFolder(tmp_path)
    with pytest.raises(InputError, match="cannot read"):
        ImageFolder(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["data_batch_1.bin", "cifar-10-batches-bin", "cifar-10-binary.tar.gz"])
def test_the_files_of_cifar_10_are_no_folder_of_images(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    place.touch() if "." in name else place.mkdir()
    with pytest.raises(InputError, match=rf"For the files of CIFAR-10: --data cifar-10 --data-dir .*{tmp_path.name}$"):
        ImageFolder(tmp_path)


def test_files_that_are_no_images(tmp_path: Path) -> None:
    path = picture(tmp_path / "a" / "0.png")
    whole = path.read_bytes()
    for content in (b"", b"nonsense", whole[:40], whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"0\.png' is not a whole image"):
            ImageFolder(tmp_path)[0]


def test_an_image_that_announces_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a" / "0.ppm"
    path.parent.mkdir()
    path.write_bytes(b"P6\n10000 10000\n255\n")
    with pytest.raises(InputError, match=r"announces 10,000 x 10,000 pixels, expected at most 67,108,864"):
        ImageFolder(tmp_path)
    path.write_bytes(b"P6\n100000 100000\n255\n")
    with pytest.raises(InputError, match="announces too many pixels"):
        ImageFolder(tmp_path)


def test_without_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InputError, match=r"reading images needs Pillow: pip install 'minsharp\[images\]'"):
        images.decoded(folder / "dog" / "0.png", "RGB")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["size=3"], "--image size=3: expected one of resize=256"),
        (["resize"], "--image resize: expected one of"),
        (["resize=0"], "--image resize=0: expected something like resize=256"),
        (["resize=1x2x3"], "expected something like resize=256"),
        (["crop=1e9"], "expected something like crop=224"),
        (["mean=a,b,c"], "expected something like mean=0.485"),
        (["mean=nan"], "expected something like mean=0.485"),
        (["std=0"], "expected something like std=0.229"),
        (["mean=0.5,0.5"], "--image mean: 2 numbers for 3 channels"),
        (["channels=1", "mean=imagenet"], "--image mean: 3 numbers for 1 channels"),
        (["channels=2"], "expected something like channels=1"),
        (["interpolation=magic"], "expected something like interpolation=bicubic"),
    ],
)
def test_words_that_are_not_understood(words: list[str], match: str) -> None:
    with pytest.raises(InputError, match=match):
        Preparation.of(words)


def test_a_crop_larger_than_the_image(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "0.png")
    with pytest.raises(
        InputError, match=r"0\.png': an image of 6 x 4 pixels is smaller than crop=5x5; resize it first"
    ):
        ImageFolder(tmp_path, prepared("crop=5"))
