"""Folders of images: one folder for each class, in the order of their names."""

import os
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor
from torch.utils.data import Dataset

from ..errors import InputError
from ..files import reason_of
from ..io.images import SUFFIXES, decoded
from .cifar import ARCHIVE, CIFAR_10, FILES, FOLDER
from .preparation import MODES, Preparation


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """The images of a folder with their labels, decoded when they are asked for; of ``samples``, evenly spread ones.

    As usual, ``folder/cat/1.png`` is of the class "cat", classes are numbered in the order of their names, and folders
    inside of a class belong to it. Hidden files and folders are left out.
    """

    def __init__(self, folder: str | Path, preparation: Preparation | None = None, samples: int | None = None):
        self.folder, self.preparation = Path(folder), preparation or Preparation()
        try:
            self.classes = sorted(f.name for f in self.folder.iterdir() if f.is_dir() and not f.name.startswith("."))
            found = [(path, label) for label, name in enumerate(self.classes) for path in self._images(name)]
        except OSError as error:
            raise InputError(f"cannot read '{folder}': {reason_of(error)}") from None
        if not found:
            raise InputError(
                f"'{folder}' holds no images: expected a folder for each class with images in it, as in "
                f"{self.folder / 'cat' / '1.png'}{self._hint}"
            )
        self.available = len(found)
        count = min(samples or len(found), len(found))
        self.files = [found[i * len(found) // count] for i in range(count)]
        self.shape = tuple(self._tensor(self.files[0][0]).shape)

    @property
    def _hint(self) -> str:
        """What to do with the files of CIFAR-10."""
        held = (self.folder / name for name in (*FILES, ARCHIVE, FOLDER))
        if not any(path.exists() for path in held):
            return ""
        return f". For the files of CIFAR-10: --data {CIFAR_10.name} --data-dir {self.folder}"

    def _images(self, name: str) -> Iterator[Path]:
        """The images of a class, in the order of their paths."""
        images = [
            Path(place) / file
            for place, _, files in os.walk(self.folder / name)
            for file in files
            if file.lower().endswith(SUFFIXES) and not file.startswith(".")
        ]
        if not images:
            raise InputError(
                f"'{self.folder / name}' holds no images ({', '.join(SUFFIXES)}), and would be a class: expected a "
                f"folder for each class in '{self.folder}', with images in it{self._hint}"
            )
        return iter(sorted(images))

    def _tensor(self, path: Path) -> Tensor:
        try:
            return self.preparation.tensor(decoded(path, MODES[self.preparation.channels]))
        except InputError as error:
            raise InputError(str(error) if str(path) in str(error) else f"'{path}': {error}") from None

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.files[index]
        image = self._tensor(path)
        if tuple(image.shape) != self.shape:
            (_, a, b), (_, c, d) = self.shape, image.shape
            raise InputError(
                f"'{self.files[0][0]}' has {b} x {a} pixels, '{path}' {d} x {c}: say how to make them equal, "
                f"--image resize={min(a, b)} --image crop={min(a, b)}"
            )
        return image, label
