"""What the options say of the model and of the data, before any of it is loaded."""

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from .names import DATA


@dataclass(frozen=True)
class ModelChoice:
    """What the options say of a model."""

    name: str
    arguments: Sequence[str] = ()
    weights: Path | None = None
    weights_key: str | None = None
    outputs: str | None = None
    class_axis: int | None = None
    fold: bool = False

    @property
    def reading(self) -> dict[str, Any]:
        """How the model is read: which of what it returns, and where the classes are."""
        pick: str | int | None = self.outputs
        if self.outputs is not None and re.fullmatch(r"-?\d{1,9}", self.outputs):
            pick = int(self.outputs)
        return {"outputs": pick, "class_axis": self.class_axis}

    @property
    def settings(self) -> dict[str, Any]:
        """What to tell of it with the results."""
        return {
            "model": self.name,
            "arguments": arguments_of(self.arguments) or None,
            "weights": None if self.weights is None else str(self.weights),
            "weights_key": self.weights_key,
            "outputs": self.outputs,
            "class_axis": self.class_axis,
            **({"fold_batchnorm": True} if self.fold else {}),
        }


@dataclass(frozen=True)
class DataChoice:
    """What the options say of the data."""

    name: str
    samples: int | None = None
    batch_size: int | None = None
    data_dir: Path | None = None
    images: Sequence[str] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """What to tell of it with the results."""
        return {"data": self.name, "images": self.pixels}

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of images."""
        return self.name not in DATA and Path(self.name).is_dir()

    @property
    def pixels(self) -> str | None:
        """What was done to the images, if it is images."""
        if self.is_folder or (self.name in DATA and self.images):
            from ..data.preparation import Preparation

            return str(Preparation.of(self.images))
        return "pixels from -1 to 1" if self.name in DATA else None


_MEANT = {"true": "True", "false": "False", "none": "None", "null": "None"}
"""What Python calls what other languages write so; as text each of them would be true."""


def arguments_of(words: Sequence[str]) -> dict[str, Any]:
    """Arguments by name from words such as ``width=64``: Python literals where they are such, else text; never code.

    >>> arguments_of(["depth=3", "norm=batch", "sizes=[1, 2]", 'tag="3"'])
    {'depth': 3, 'norm': 'batch', 'sizes': [1, 2], 'tag': '3'}
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--arg {word}: expected name=value, as in --arg num_classes=10")
        if name in found:
            raise InputError(f"--arg {word}: '{name}' was given before, as {found[name]!r}")
        found[name] = _literal(word, value)
    return found


def _literal(word: str, text: str) -> Any:
    meant = _MEANT.get(text.strip().lower())
    if meant is not None and text.strip() != meant:
        name = word.partition("=")[0]
        raise InputError(
            f"--arg {word}: {text.strip()} is text here, which Python takes for true. Write --arg {name}={meant}, or "
            f"--arg \"{name}='{text.strip()}'\" if it is the text that is meant"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in what may be no Python at all
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
