"""Images, decoded by Pillow: how large one is stands in its head, and is held against a limit before it is decoded."""

import warnings
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..extras import required
from ..files import is_file
from .untrusted import RefusedError, reading

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MOST_PIXELS = 1 << 26
"""More than cameras take."""


def decoded(path: Path, mode: str) -> Any:
    """The image in a file as Pillow has it, in the mode "RGB" or "L"; an error names a file that is none."""
    library = required("PIL.Image", "reading images", "images")
    if not is_file(path):
        raise InputError(f"there is no file '{path}'")
    with reading(path, "image", broken=(Exception,)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata; what Pillow calls a bomb is refused here sooner
        try:
            with library.open(path, formats=_FORMATS) as image:
                _check_size(*image.size)
                return image.convert(mode)
        except library.DecompressionBombError as error:
            raise RefusedError(f"it announces too many pixels ({error})") from None
        except OSError as error:
            if error.errno is not None:
                raise
            raise ValueError(str(error)) from None  # Pillow's own, of what is in the file


def _check_size(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise RefusedError(f"it announces {width:,} x {height:,} pixels, expected at most {MOST_PIXELS:,}")
