"""Small vision transformers at equal training loss: what a change of basis does to each measure, and what each says of
the generalisation gap."""

from ..experiment import Columns, Experiment, Section
from ..registry import register
from .analysis import analyse
from .figures import figures, plots
from .networks import HYPERPARAMETERS, VisionTransformer, plan, work
from .section import INTRODUCTION, command, words
from .tables import tables

__all__ = ["HYPERPARAMETERS", "VITS", "VisionTransformer", "plan", "work"]

VITS = register(
    Experiment(
        "vits",
        work,
        plan,
        Columns(
            orders=("network", *HYPERPARAMETERS),
            numbers=("weights", "reached", "train accuracy", "test accuracy", "gap", "test loss", "training loss"),
            other_text=("errors",),
        ),
        tables,
        Section("Vision transformers under the whole group", INTRODUCTION, words=words, command=command),
        analyse,
        figures,
        plots,
        most_rows=5_000,  # a correlation over n networks compares n² pairs
    )
)
