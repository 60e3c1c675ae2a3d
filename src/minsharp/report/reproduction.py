"""The page that sets our results beside the published ones. Every number and every verdict is computed from folders."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from ..errors import InputError
from ..experiments import EXPERIMENTS, Experiment, Results, computed_from, read_results
from ..experiments.store import SETTINGS
from ..files import make_folder, write_bytes, write_text
from ..text import markdown_cell, printable
from .figures import overall

_INTRODUCTION = """\
"Minimum sharpness: Scale-invariant parameter-robustness of neural networks" (arXiv 2106.12612) reports three
experiments. Here they are again, at sizes that a laptop bears: first all of it at a glance, then each run with its
command. `minsharp reproduce page` writes this page from the `results.csv` of each run: no measured number is typed."""

_SMALL_PRINT = """\
## How to read this

The small presets are not the paper's settings. Their learning rates, batch sizes and epochs, and the width of the
convolutional network on digits, were chosen by trial so that networks with all labels permuted fit their training set.
One such trial was a full run on digits with fixed epochs and a narrower convolutional network; it was replaced because
a network at ratio 1 did not fit, after its correlations had been seen.

Published numbers stand in brackets; those for LeNet stand beside the small convolutional network on digits, and are
on other data, more seeds and longer training, so only the order of measures can be compared there."""

Runs = Mapping[Experiment, Sequence[Results]]


def write_page(folders: Sequence[str | Path], path: str | Path) -> None:
    """Write the page, with one figure of all runs beside it; other figures are linked where they lie."""
    path = Path(path)
    results = [_read(Path(folder)) for folder in folders]
    with computed_from("', '".join(map(str, folders))):
        pictures = {
            e: (f"{path.stem}-{e.name}.png", drawn)
            for e, own in _by_experiment(results).items()
            if (drawn := overall(e, own)) is not None
        }
        text = page(results, path.parent, {e: name for e, (name, _) in pictures.items()})
    make_folder(path.parent)
    for name, drawn in pictures.values():
        write_bytes(path.parent / name, drawn)
    write_text(path, text)


def _read(folder: Path) -> Results:
    results = read_results(folder)
    if results.settings is None:
        raise InputError(f"{folder / SETTINGS} does not exist: expected a folder that `minsharp reproduce` wrote")
    return results


def page(results: Sequence[Results], here: Path, pictures: Mapping[Experiment, str] | None = None) -> str:
    """The page, with links that start at a folder: what all runs say together, then each experiment in turn.

    ``pictures``: the file, in that folder, of an experiment's figure of all runs.
    """
    runs = _by_experiment(results)
    parts = ["# The paper's experiments, run again", _INTRODUCTION]
    for experiment, own in runs.items():
        if pictures and experiment in pictures:
            parts.append(f"![{markdown_cell(experiment.section.caption)}]({quote(pictures[experiment])})")
        parts += experiment.section.verdicts(own)
    parts.append(_SMALL_PRINT)
    for experiment, own in runs.items():
        parts += filter(None, (f"## {experiment.section.title}", experiment.section.introduction))
        for r in own:
            parts += _run(r, here)
    return "\n\n".join(parts) + "\n"


def _by_experiment(results: Sequence[Results]) -> Runs:
    """The results of each experiment, in the order of the registry, then of the folders."""
    order = dict.fromkeys((*EXPERIMENTS.values(), *(r.experiment for r in results)))
    return {e: own for e in order if (own := [r for r in results if r.experiment is e])}


def _run(results: Results, here: Path) -> Iterator[str]:
    """The words, the command, the tables and the figures of a folder."""
    section = results.experiment.section
    yield f"### {section.heading(results)}"
    yield from section.words(results)
    command = printable(section.command(results)).replace("`", "")
    if command:
        yield f"```\n{command}\n```"
    for table in results.tables:
        yield f"**{markdown_cell(table.title)}**"
        yield table.markdown()
    for figure in sorted(results.folder.glob("*.png")) if results.folder else ():
        place = Path(os.path.relpath(figure, here)).as_posix()
        yield f"![{markdown_cell(figure.stem.replace('-', ' '))}]({quote(place, errors='surrogateescape')})"
