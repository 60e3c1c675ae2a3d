"""Packages that only some of minsharp needs."""

from importlib import import_module
from typing import Any

from .errors import InputError

_PACKAGES = {"sklearn": "scikit-learn", "PIL": "Pillow"}


def how_to_install(extra: str) -> str:
    """What brings the packages of an extra.

    >>> how_to_install("images")
    "pip install 'minsharp[images]', or '.[images]' from a checkout"
    """
    return f"pip install 'minsharp[{extra}]', or '.[{extra}]' from a checkout"


def required(module: str, what: str, extra: str = "experiments") -> Any:
    """A module of an optional package; where it is missing, an error that says how to get it.

    >>> required("json.decoder", "reading").__name__
    'json.decoder'
    """
    try:
        return import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        name = _PACKAGES.get(root, root)
        raise InputError(f"{what} needs {name}: {how_to_install(extra)} ({error})") from None
