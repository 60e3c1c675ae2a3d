"""Experiment B: does a measure rank networks by their generalisation gap, when the gap comes from permuted labels?"""

from ..experiment import Columns, Experiment, Section
from ..registry import register
from .analysis import analyse
from .figures import figures, plots
from .networks import LOSS, MEASURES, PRESETS, RATIOS, Preset, plan, work
from .overview import CAPTION, figure
from .section import INTRODUCTION, command, setting, words
from .tables import summary, tables
from .verdicts import verdicts

__all__ = ["LABELS", "LOSS", "MEASURES", "PRESETS", "RATIOS", "Preset", "plan", "work"]

LABELS = register(
    Experiment(
        "labels",
        work,
        plan,
        Columns(
            orders=("ratio", "seed"),
            numbers=("reached", "train accuracy", "test accuracy", "gap", LOSS),
            text=("preset", "protocol", "model"),
            other_text=("errors",),
        ),
        tables,
        Section(
            "Correlation with the generalisation gap (experiment B)",
            *(INTRODUCTION, setting, words, command, verdicts, figure, CAPTION),
        ),
        analyse,
        figures,
        plots,
        summary,
        most_rows=5_000,  # a correlation over n networks compares n² pairs
    )
)
