"""Results from files, of every kind that minsharp saves."""

from pathlib import Path
from typing import Any

from ..results.files import loaded
from . import catalogue, compare, robustness, verify  # noqa: F401  # each brings the kinds of result that it makes


def load(path: str | Path) -> Any:
    """The result that ``result.save(path)`` wrote: equal to it, number by number. Nothing in the file is run.

    A trace or a diagonal adds up with those of other parts of the data as before. What the network computes is not in
    the file, so `minimum_sharpness` wants to be told: ``minimum_sharpness(minsharp.read(model, example), result)``.

    >>> import tempfile, torch, minsharp
    >>> model, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [minsharp.hessian_trace(model, x[i : i + 2]).save(f"{folder}/{i}.json") for i in (0, 2)]
    ...     halves = [load(path) for path in paths]
    >>> whole = minsharp.hessian_trace(model, x)
    >>> sum(halves).samples, abs(sum(halves).total / whole.total - 1) < 1e-6
    (4, True)
    """
    return loaded(path)
