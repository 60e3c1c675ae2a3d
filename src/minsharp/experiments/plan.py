"""What an experiment runs: cells, each a pure function of the settings that all share and of what tells it apart."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Configuration = dict[str, Any]
ResultRow = dict[str, Any]
Work = Callable[[Configuration, str | None], list[ResultRow]]
"""From the settings and a cell in one dict, and the folder of the data, to rows of the table of results."""

TIMING = "seconds"
"""Columns with this ending hold times: all that may differ between two runs of one cell."""


@dataclass(frozen=True)
class Plan:
    """The settings that all cells share, and the cells. Both are plain: they are kept as JSON."""

    settings: Configuration
    cells: tuple[Configuration, ...]

    def record(self, experiment: str) -> Configuration:
        """What `settings.json` holds."""
        return {"experiment": experiment, **json.loads(json.dumps(self.settings))}


def grid(**axes: Iterable[Any]) -> tuple[Configuration, ...]:
    """One cell for every combination.

    >>> grid(model=["MLP"], seed=[0, 1])
    ({'model': 'MLP', 'seed': 0}, {'model': 'MLP', 'seed': 1})
    """
    cells: list[Configuration] = [{}]
    for name, values in axes.items():
        held = list(values)
        cells = [{**cell, name: value} for cell in cells for value in held]
    return tuple(cells)
