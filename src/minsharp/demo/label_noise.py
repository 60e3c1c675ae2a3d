"""Beside the stories: does a measure rank networks by their generalisation gap?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..text import percent
from .steps import Steps

if TYPE_CHECKING:
    from ..experiments import Results

RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
MEASURES = ("training loss", "trace", "minimum sharpness", "relative minimum sharpness", "relative sensitivity")
EPOCHS = 120


def label_noise(epochs: int, ratios: Sequence[float], step: Steps) -> "Results":
    """One network per fraction of permuted labels, trained and measured as in the paper's experiment."""
    from ..experiments import Results
    from ..experiments.labels import LABELS, plan, work

    planned = plan("digits", models=["MLP"], ratios=ratios, seeds=[0], measures=MEASURES, epochs=epochs)
    rows: list[dict[str, Any]] = []
    for i, cell in enumerate(planned.cells):
        step.within(i / len(planned.cells))
        step.detail(percent(cell["ratio"], 0))
        rows += work({**planned.settings, **cell}, None)
    return Results(LABELS, rows, planned.settings)
