"""The page that sets our results beside the published ones. Every number and every verdict is computed from folders."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from ..errors import InputError
from ..experiments import EXPERIMENTS, Results, computed_from, read_results
from ..experiments.store import SETTINGS
from ..experiments.tables import marked
from ..files import make_folder, write_text
from ..text import printable

_INTRODUCTION = """\
"Minimum sharpness: Scale-invariant parameter-robustness of neural networks" (arXiv 2106.12612) reports three
experiments. Here they are again, at sizes that a laptop bears. `minsharp reproduce page` writes this page from the
`results.csv` of each run, and no measured number in it is typed.

The small presets are not the paper's settings. Their learning rates, batch sizes and epochs, and the width of the
convolutional network on digits, were chosen by trial so that networks with all labels permuted fit their training set.
One such trial was a full run on digits with fixed epochs and a narrower convolutional network; it was replaced because
a network at ratio 1 did not fit, after its correlations had been seen.

Published numbers stand in brackets; those for LeNet stand beside the small convolutional network on digits, and are
on other data, more seeds and longer training, so only the order of measures can be compared there."""


def write_page(folders: Sequence[str | Path], path: str | Path) -> None:
    """Write the page; figures are linked where they lie."""
    path = Path(path)
    results = [_read(Path(folder)) for folder in folders]
    with computed_from("', '".join(map(str, folders))):
        text = page(results, path.parent)
    make_folder(path.parent)
    write_text(path, text)


def _read(folder: Path) -> Results:
    results = read_results(folder)
    if results.settings is None:
        raise InputError(f"{folder / SETTINGS} does not exist: expected a folder that `minsharp reproduce` wrote")
    return results


def page(results: Sequence[Results], here: Path) -> str:
    """The page, with links that start at a folder: what all runs say together, then each experiment in turn."""
    order = dict.fromkeys((*EXPERIMENTS.values(), *(r.experiment for r in results)))
    runs = {e: own for e in order if (own := [r for r in results if r.experiment is e])}
    verdicts = [text for e, own in runs.items() for text in e.section.verdicts(own)]
    parts = ["# The paper's experiments, run again", _INTRODUCTION]
    if verdicts:
        parts += ["## What holds, and what does not", *verdicts]
    for experiment, own in runs.items():
        parts += filter(None, (f"## {experiment.section.title}", experiment.section.introduction))
        for r in own:
            parts += _run(r, here)
    return "\n\n".join(parts) + "\n"


def _run(results: Results, here: Path) -> Iterator[str]:
    """The words, the command, the tables and the figures of a folder."""
    section = results.experiment.section
    yield f"### {section.heading(results)}"
    yield from section.words(results)
    command = printable(section.command(results)).replace("`", "")
    if command:
        yield f"```\n{command}\n```"
    for table in results.tables:
        yield f"**{marked(table.title)}**"
        yield table.markdown()
    for figure in sorted(results.folder.glob("*.png")) if results.folder else ():
        place = Path(os.path.relpath(figure, here)).as_posix()
        yield f"![{marked(figure.stem.replace('-', ' '))}]({quote(place, errors='surrogateescape')})"
