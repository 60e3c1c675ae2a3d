"""Cells on worker processes with one thread each, resumable at any moment.

Networks of one shape could be trained stacked with `torch.func.vmap` instead; tried on digits, a stacked step took
about as long per network as one network after the other, and processes keep every cell independent of its neighbours,
to the last bit, whatever step each stops at.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path

from ..errors import InputError, MinsharpError
from ..files import held, make_folder
from .experiment import Experiment
from .plan import Configuration, Plan, ResultRow, Work
from .store import CELLS, TABLE, cell_name, finished, prepare, read_cell, write_cell, write_csv

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class InterruptedRunError(MinsharpError):
    """Somebody pressed Ctrl-C."""


def run(
    experiment: Experiment,
    plan: Plan,
    out: str | Path,
    *,
    workers: int | None = None,
    force: bool = False,
    data_dir: str | None = None,
) -> list[ResultRow]:
    """Run the cells that the folder does not hold yet, and write `results.csv` of all that it then holds.

    Models, ratios, seeds and the like may be added to a folder; with other settings it is refused, and with `force`
    emptied first.
    """
    if not plan.cells:
        raise InputError("there is nothing to run: name at least one network, one seed, and one of all the others")
    out = make_folder(out)
    with held(out):
        folder = prepare(out, plan.record(experiment.name), plan.cells, force)
        waiting = {cell_name(cell): cell for cell in plan.cells if read_cell(folder / cell_name(cell)) is None}
        if waiting:
            _run_all(experiment, plan, list(waiting.values()), out, workers or _cores(), data_dir)
        rows = finished(folder)
        write_csv(out / TABLE, rows)
    return rows


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_all(
    experiment: Experiment,
    plan: Plan,
    waiting: Sequence[Configuration],
    out: Path,
    workers: int,
    data_dir: str | None,
) -> None:
    """Run cells on workers; each worker writes the file of its cell."""
    before, total = set(multiprocessing.active_children()), len(plan.cells)
    done = total - len(waiting)
    spawn = multiprocessing.get_context("spawn")
    with (
        _one_thread_each(),
        ProcessPoolExecutor(min(workers, len(waiting)), spawn, initializer=_start_worker) as pool,
        _progress(experiment.name, total, done) as advance,
    ):
        try:
            with _deaf():
                given = (experiment.work, plan.settings, str(out / CELLS), data_dir)
                futures = {pool.submit(_run_cell, cell, *given): cell for cell in waiting}
            for future, cell in _as_they_end(futures):
                future.result()
                done += 1
                advance(cell)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
            _tell(error, f"{done} of {total} cells are done and kept in {out}; the same command goes on from there")
            raise


def _tell(error: BaseException, kept: str) -> None:
    """Raise what a person can do about it in place of an error that does not say."""
    if isinstance(error, KeyboardInterrupt):
        raise InterruptedRunError(f"Stopped. {kept}.") from None
    if isinstance(error, BrokenProcessPool):
        text = f"A worker died, perhaps for lack of memory. {kept}, with --workers 1 on less memory."
        raise MinsharpError(text) from None


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


def _run_cell(cell: Configuration, work: Work, settings: Configuration, folder: str, data_dir: str | None) -> None:
    try:
        rows = work({**settings, **cell}, data_dir)
    except MinsharpError:
        raise
    except Exception as error:  # as text: not every error finds its way from one process to another
        raise MinsharpError(f"{cell_name(cell).removesuffix('.json')}: {type(error).__name__}: {error}") from None
    write_cell(Path(folder), cell, rows)


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
