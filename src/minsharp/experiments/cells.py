"""Runs made of cells: each a pure function of its configuration, on worker processes, resumable at any moment.

A folder holds `settings.json` (what all its cells share), `cells/` (one file per finished cell) and `results.csv`.
Cells run on worker processes with one thread each. Networks of one shape could be trained stacked with
`torch.func.vmap` instead; tried on digits, a stacked step took about as long per network as one network after
the other, and processes keep every cell independent of its neighbours, to the last bit, whatever step each stops at.
"""

import csv
import io
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from multiprocessing import connection
from pathlib import Path
from typing import Any

from ..errors import InputError, MinsharpError
from ..files import check_writable, drafts, held, make_folder, read_json, read_text, reason_of, write_text
from ..text import csv_cell

Configuration = dict[str, Any]
Row = dict[str, Any]
Work = Callable[[Configuration, str | None], list[Row]]

TIMING = "seconds"
"""Columns with this ending hold times: all that may differ between two runs of one cell."""
SETTINGS, _CELL, _TABLE = 1 << 20, 16 << 20, 64 << 20
"""Bytes that settings, a cell and a table may have: far more than they do."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class InterruptedRunError(MinsharpError):
    """Somebody pressed Ctrl-C."""


@dataclass(frozen=True)
class Experiment:
    """What to run: a module-level function, the settings that all cells share, and what tells the cells apart."""

    name: str
    work: Work
    settings: Configuration
    cells: tuple[Configuration, ...]

    @property
    def record(self) -> Configuration:
        """What `settings.json` holds."""
        return {"experiment": self.name, **json.loads(json.dumps(self.settings))}


def run(
    experiment: Experiment,
    out: str | Path,
    *,
    workers: int | None = None,
    force: bool = False,
    data_dir: str | None = None,
) -> list[Row]:
    """Run the cells that the folder does not hold yet, and write `results.csv` of all that it then holds.

    Models, ratios, seeds and the like may be added to a folder; with other settings it is refused, and with `force`
    emptied first.
    """
    if not experiment.cells:
        raise InputError("there is nothing to run: name at least one network, one seed, and one of all the others")
    out = make_folder(out)
    with held(out):
        folder = _prepare(experiment, out, force)
        waiting = {cell_name(cell): cell for cell in experiment.cells if read_cell(folder / cell_name(cell)) is None}
        if waiting:
            _run_all(experiment, list(waiting.values()), out, workers or _cores(), data_dir)
        rows = finished(folder)
        write_csv(out / "results.csv", rows)
    return rows


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _prepare(experiment: Experiment, out: Path, force: bool) -> Path:
    """Make the folder of the cells, or make sure that they were made for the same settings."""
    path, folder = out / "settings.json", make_folder(out / "cells")
    for place in (path, out / "results.csv", *(folder / cell_name(cell) for cell in experiment.cells)):
        check_writable(place)
    if force:
        _empty(out, folder)
    elif path.exists() or _cells(folder):
        _check_settings(path, experiment)
    for draft in (*drafts(out), *drafts(folder)):  # of a run that was killed
        draft.unlink(missing_ok=True)
    write_text(path, json.dumps(experiment.record, indent=2) + "\n")
    return folder


def _empty(out: Path, folder: Path) -> None:
    """Throw away what was computed, first what was made of the cells: at no moment do results stand without them."""
    made = [*out.glob("*.png"), *out.glob("*.svg"), out / "summary.json", out / "results.csv"]
    try:
        for path in (*made, *_cells(folder)):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot remove '{error.filename}': {reason_of(error)}") from None


def _check_settings(path: Path, experiment: Experiment) -> None:
    """Refuse to add to results of unknown, or of other, settings."""
    advice = "Pass another folder, --out, or --force to throw its results away and run everything again"
    try:
        known = read_json(path, SETTINGS)
    except InputError as error:
        raise InputError(f"the settings of the results in '{path.parent}' are not known: {error}. {advice}") from None
    differences = list(_differences(known, experiment.record))
    if differences:
        lines = ";\n".join(f"  {line}" for line in differences)
        raise InputError(f"{path.parent} was made with other settings:\n{lines}.\n{advice}")


def _cells(folder: Path) -> list[Path]:
    """The files of cells; what is hidden is a draft."""
    return [path for path in folder.glob("*.json") if not path.name.startswith(".")]


def _differences(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Every setting that differs, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            where = f"{name}.{key}" if name else key
            yield from _differences(old.get(key, "(not there)"), new.get(key, "(not there)"), where)
    elif old != new:
        yield f"{name or 'all'}: {str(old)[:200]} in the folder, {str(new)[:200]} asked for"


def cell_name(cell: Configuration) -> str:
    """The name of a cell's file."""
    return "_".join(f"{key}-{value}" for key, value in cell.items()) + ".json"


def read_cell(path: Path) -> dict[str, Any] | None:
    """A finished cell, or nothing where there is none, or a file that a dying disk left in pieces."""
    try:
        found = read_json(path, _CELL)
    except InputError:
        return None
    return found if _is_cell(found) and cell_name(found["cell"]) == path.name else None


def _is_cell(found: Any) -> bool:
    """Whether it has the form that `_run_cell` writes."""
    if not isinstance(found, dict) or not _is_flat(found.get("cell")):
        return False
    rows = found.get("rows")
    return isinstance(rows, list) and all(map(_is_flat, rows))


def _is_flat(found: Any) -> bool:
    return isinstance(found, dict) and all(v is None or isinstance(v, str | int | float) for v in found.values())


def finished(folder: Path) -> list[Row]:
    """The rows of all finished cells, in an order that depends on nothing but the cells."""
    cells = [cell for cell in map(read_cell, _cells(folder)) if cell is not None]
    cells.sort(key=lambda cell: [(isinstance(value, str), value) for value in cell["cell"].values()])
    return [row for cell in cells for row in cell["rows"]]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """The rows as a table; what a row does not have, or is no finite number, is left empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(csv_cell, columns))
    writer.writerows([csv_cell(_plain(row.get(column))) for column in columns] for row in rows)
    write_text(path, text.getvalue())


def _plain(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not isfinite(value)) else value


def read_csv(path: str | Path) -> list[Row]:
    """The rows of a table, numbers as numbers, what is empty as NaN."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist: expected a folder that `minsharp reproduce` wrote")
    text = io.StringIO(read_text(path, _TABLE), newline="")
    try:
        head, *lines = list(csv.reader(text, strict=True)) or [[]]
    except csv.Error as error:
        raise InputError(f"'{path}' is damaged: {error}") from None
    for number, line in enumerate(lines, 2):
        if len(line) != len(head):
            raise InputError(f"'{path}' is damaged: row {number} has {len(line)} cells, expected {len(head)}")
    if len(set(head)) != len(head):
        raise InputError(f"'{path}' is damaged: two columns have one name")
    return [dict(zip(head, map(_parsed, line), strict=True)) for line in lines]


def _parsed(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    with suppress(ValueError):
        return int(text)
    try:
        return float(text) if text else float("nan")
    except ValueError:
        return text


def _run_all(
    experiment: Experiment, waiting: Sequence[Configuration], out: Path, workers: int, data_dir: str | None
) -> None:
    """Run cells on workers; each worker writes the file of its cell."""
    before = set(multiprocessing.active_children())
    done = 0
    with (
        _one_thread_each(),
        ProcessPoolExecutor(
            min(workers, len(waiting)), multiprocessing.get_context("spawn"), initializer=_start_worker
        ) as pool,
        _progress(experiment.name, len(experiment.cells), len(experiment.cells) - len(waiting)) as advance,
    ):
        try:
            with _deaf():
                futures = {
                    pool.submit(
                        _run_cell, experiment.work, experiment.settings, cell, str(out / "cells"), data_dir
                    ): cell
                    for cell in waiting
                }
            for future, cell in _as_they_end(futures):
                future.result()
                done += 1
                advance(cell)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
            kept = f"{len(experiment.cells) - len(waiting) + done} of {len(experiment.cells)} cells are done and kept"
            if isinstance(error, KeyboardInterrupt):
                raise InterruptedRunError(f"Stopped. {kept} in {out}; the same command goes on from there.") from None
            if isinstance(error, BrokenProcessPool):
                raise MinsharpError(
                    f"A worker died, perhaps for lack of memory. {kept} in {out}; the same command goes on from there, "
                    "with --workers 1 on less memory."
                ) from None
            raise


def _as_they_end(futures: dict["Future[None]", Configuration]) -> Iterator[tuple["Future[None]", Configuration]]:
    left = set(futures)
    while left:
        ended, left = wait(left, return_when=FIRST_COMPLETED)
        yield from ((future, futures[future]) for future in ended)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Workers inherit these; a second thread per worker would only get in the other worker's way."""
    held = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in held.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def _deaf() -> Iterator[None]:
    """Without an ear for Ctrl-C, which processes started now inherit: it is the parent's business."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start_worker() -> None:
    """One thread, deaf to Ctrl-C; and no worker outlives its parent, however that one dies."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _run_cell(work: Work, settings: Configuration, cell: Configuration, folder: str, data_dir: str | None) -> None:
    try:
        rows = work({**settings, **cell}, data_dir)
    except MinsharpError:
        raise
    except Exception as error:  # as text: not every error finds its way from one process to another
        raise MinsharpError(f"{cell_name(cell).removesuffix('.json')}: {type(error).__name__}: {error}") from None
    write_text(Path(folder) / cell_name(cell), json.dumps({"cell": cell, "rows": rows}) + "\n")


@contextmanager
def _progress(name: str, total: int, done: int) -> Iterator[Callable[[Configuration], None]]:
    """Cells done and time left, on stderr: a bar on a terminal, a line per cell elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Left

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("cells"))
    times = (TimeElapsedColumn(), TextColumn("left:"), Left(elapsed_when_finished=False))
    bar = Progress(*columns, *times, console=console, disable=not console.is_terminal, speed_estimate_period=1e9)
    task = bar.add_task(name, total=total, completed=done)
    start, count = bar.get_time(), done

    def advance(cell: Configuration) -> None:
        nonlocal count
        count += 1
        bar.advance(task)
        if not console.is_terminal:
            left = (bar.get_time() - start) / (count - done) * (total - count)
            what = " ".join(f"{key} {value}" for key, value in cell.items())
            console.print(f"{name}: {count}/{total} cells, about {_span(left)} left ({what})", highlight=False)

    with bar:
        yield advance


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


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
