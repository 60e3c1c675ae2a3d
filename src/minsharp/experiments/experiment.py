"""What an experiment is: all that the run, the tables, the figures and the pages ask of it, in one object."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .plan import Plan, ResultRow, Work
from .plots import Scatter
from .tables import Table


@dataclass(frozen=True)
class Columns:
    """The columns that every row has. What a row has beyond them are numbers, or nothing."""

    orders: tuple[str, ...]
    """Numbers by which rows are told apart: always there, always finite."""
    numbers: tuple[str, ...]
    text: tuple[str, ...] = ()
    other_text: tuple[str, ...] = ()
    """Text that a table may lack."""

    @property
    def needed(self) -> tuple[str, ...]:
        """What a table has to have to be one of this experiment."""
        return (*self.text, *self.orders, *self.numbers)


@dataclass(frozen=True, eq=False)
class Results:
    """Rows of an experiment, with the settings and the folder that they come from, where there are any."""

    experiment: "Experiment"
    rows: Sequence[ResultRow]
    settings: Mapping[str, Any] | None = None
    folder: Path | None = None

    @cached_property
    def analysis(self) -> Any:
        """What the experiment computes from all rows, once for every table, figure and page."""
        return self.experiment.analyse(self.rows)

    @cached_property
    def tables(self) -> list[Table]:
        """What the experiment shows as tables."""
        return self.experiment.tables(self)

    @property
    def models(self) -> list[str]:
        """The networks, in the order of the rows."""
        return list(dict.fromkeys(str(row["model"]) for row in self.rows if "model" in row))

    @property
    def seeds(self) -> list[Any]:
        """The seeds, in order."""
        return sorted({row["seed"] for row in self.rows if "seed" in row})


def _nothing(results: Any) -> tuple[()]:
    return ()


def _tables_as_data(results: Results) -> dict[str, Any]:
    return {"tables": [{"title": t.title, "head": t.head, "rows": t.rows} for t in results.tables]}


def _name_of_the_folder(results: Results) -> str:
    return results.experiment.name if results.folder is None else results.folder.name


@dataclass(frozen=True)
class Section:
    """An experiment on the page of results: a heading, then each folder with words, command, tables and figures."""

    title: str
    introduction: str = ""
    heading: Callable[[Results], str] = _name_of_the_folder
    words: Callable[[Results], Iterable[str]] = _nothing
    """Paragraphs of Markdown on the results of a folder."""
    command: Callable[[Results], str] = lambda results: ""
    """The command that makes the folder again."""
    verdicts: Callable[[Sequence[Results]], Iterable[str]] = _nothing
    """What all folders together say, for the head of the page."""
    figure: Callable[[Sequence[Results]], Any] | None = None
    """All folders in one matplotlib figure, for the head of the page."""
    caption: str = ""
    """What that figure shows, for those who do not see it."""


@dataclass(frozen=True, eq=False)
class Experiment:
    """An experiment: what a cell does, what rows it makes, and how they are shown.

    Args:
        name: what the command line calls it, and its run folders keep.
        work: a function of a module, so that worker processes find it.
        plan: from options, each with a default, to the plan of a run.
        columns: what every row holds.
        tables: for the terminal and the page.
        section: its part of the page.
        analyse: what is computed from all rows once, for `Results.analysis`.
        figures: names and matplotlib figures; matplotlib is loaded inside.
        plots: scatter plots for the HTML report.
        summary: what `summary.json` holds besides the settings; without it, the tables.
        most_rows: a table with more is refused.
    """

    name: str
    work: Work
    plan: Callable[..., Plan]
    columns: Columns
    tables: Callable[[Results], list[Table]]
    section: Section
    analyse: Callable[[Sequence[ResultRow]], Any] = field(default=tuple)
    figures: Callable[[Results], Iterable[tuple[str, Any]]] = _nothing
    plots: Callable[[Results], Iterable[Scatter]] = _nothing
    summary: Callable[[Results], Mapping[str, Any]] = _tables_as_data
    most_rows: int = 100_000
