"""The paper's experiments, each an object that owns its cells, tables, figures and part of the page; and yours."""

from . import trace, labels, approximations, stability, vits  # isort: skip  # in the order of the page: each registers itself
from .experiment import Columns, Experiment, Results, Section
from .plan import Plan, grid
from .plots import Point, Scatter
from .pool import InterruptedRunError, run
from .registry import EXPERIMENTS, find, register
from .results import computed_from, read_results
from .tables import Table

__all__ = [
    "EXPERIMENTS",
    "Columns",
    "Experiment",
    "InterruptedRunError",
    "Plan",
    "Point",
    "Results",
    "Scatter",
    "Section",
    "Table",
    "approximations",
    "computed_from",
    "find",
    "grid",
    "labels",
    "read_results",
    "register",
    "run",
    "stability",
    "trace",
    "vits",
]
