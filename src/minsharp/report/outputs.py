"""What is made of a folder's `results.csv`: the summary and the figures."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..experiments import Experiment, Results, computed_from, read_results
from ..files import write_bytes, write_text
from .figures import drawn


def write_outputs(out: str | Path, experiment: Experiment | None = None) -> list[Path]:
    """Make summary and figures of a folder again, from its files alone; all are made before any is written.

    Without an experiment, it is the one that the folder's settings name.
    """
    out = Path(out)
    results = read_results(out, experiment)
    with computed_from(out):
        figures = drawn(results)
        text = json.dumps(summary(results), indent=2, allow_nan=False) + "\n"
    written = [write_text(out / "summary.json", text)]
    return [*written, *(write_bytes(out / name, content) for name, content in figures.items())]


def summary(results: Results) -> dict[str, Any]:
    """Settings, versions, seeds, and what the experiment computes from the rows."""
    return {
        "experiment": results.experiment.name,
        "settings": results.settings,
        "versions": {name: version(name) for name in ("minsharp", "torch", "numpy", "scipy")},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "models": results.models,
        "seeds": results.seeds,
        "rows": len(results.rows),
        **results.experiment.summary(results),
    }
