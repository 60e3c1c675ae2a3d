"""Experiments by name."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..text import printable
from .experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {}
"""Every experiment that was registered, in the order of the page."""


def register(experiment: Experiment) -> Experiment:
    """Make an experiment known by its name: its folders are then read, drawn and set on the page."""
    known = EXPERIMENTS.get(experiment.name)
    if known is not None and known.work.__module__ != experiment.work.__module__:
        raise InputError(f"an experiment called {experiment.name!r} exists already, in {known.work.__module__}")
    EXPERIMENTS[experiment.name] = experiment
    return experiment


def find(name: str) -> Experiment:
    """An experiment by its name, or as ``package.module:OBJECT``: that module is imported, from the current folder too.

    >>> find("trace").name
    'trace'
    """
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name):
        raise InputError(
            f"no experiment '{printable(name)}': expected one of {', '.join(EXPERIMENTS)}, or package.module:OBJECT"
        )
    module, _, attribute = name.partition(":")
    found = getattr(_imported(module, name), attribute, None)
    if not isinstance(found, Experiment):
        raise InputError(f"'{name}' is {type(found).__name__}: expected a minsharp.experiments.Experiment")
    return register(found)


def _imported(module: str, name: str) -> Any:
    """Other people's code: whatever it raises is an error that names it."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except (KeyboardInterrupt, InputError):
        raise
    except BaseException as error:
        raise InputError(
            f"cannot import '{module}' for the experiment '{name}': {type(error).__name__}: {error}"
        ) from error
