"""Cells on worker processes with one thread each, resumable at any moment.

Networks of one shape could be trained stacked with `torch.func.vmap` instead; tried on digits, a stacked step took
about as long per network as one network after the other, and processes keep every cell independent of its neighbours,
to the last bit, whatever step each stops at.
"""

import multiprocessing
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

from ..errors import InputError, MinsharpError
from ..files import held, make_folder
from .experiment import Experiment
from .plan import Configuration, Plan, ResultRow, Work
from .store import TABLE, cell_name, finished, prepare, read_cell, write_cell, write_csv

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class InterruptedRunError(MinsharpError):
    """Somebody pressed Ctrl-C."""


class LostError(MinsharpError):
    """Where cells were running is gone."""


@dataclass(frozen=True)
class Job:
    """What all cells of a run share. `rows` may be called anywhere, `keep` where the folder of the run is."""

    work: Work
    settings: Configuration
    folder: str
    data_dir: str | None

    def rows(self, cell: Configuration) -> list[ResultRow]:
        """The rows of a cell; an error names it."""
        try:
            return self.work({**self.settings, **cell}, self.data_dir)
        except MinsharpError:
            raise
        except Exception as error:  # as text: not every error finds its way from one process to another
            name = cell_name(cell).removesuffix(".json")
            raise MinsharpError(f"{name}: {type(error).__name__}: {error}") from None

    def keep(self, cell: Configuration, rows: Sequence[ResultRow]) -> None:
        """Write the file of a finished cell."""
        write_cell(Path(self.folder), cell, rows)


class Executor(ABC):
    """Where cells run: on processes of this machine (`Local`), or on those of a cluster."""

    @abstractmethod
    def run(self, job: Job, cells: Sequence[Configuration]) -> Iterator[Configuration]:
        """Run the cells, and yield each once it is kept in its folder; closed early, nothing goes on running."""


def run(
    experiment: Experiment,
    plan: Plan,
    out: str | Path,
    *,
    workers: int | None = None,
    force: bool = False,
    data_dir: str | None = None,
    executor: Executor | None = None,
) -> list[ResultRow]:
    """Run the cells that the folder does not hold yet, and write `results.csv` of all that it then holds.

    Models, ratios, seeds and the like may be added to a folder; with other settings it is refused, and with `force`
    emptied first. Cells run on worker processes of this machine, unless an executor takes them elsewhere: the folder is
    the same, and one goes on where another stopped.
    """
    if not plan.cells:
        raise InputError("there is nothing to run: name at least one network, one seed, and one of all the others")
    out = make_folder(out)
    with held(out):
        folder = prepare(out, plan.record(experiment.name), plan.cells, force)
        waiting = {cell_name(cell): cell for cell in plan.cells if read_cell(folder / cell_name(cell)) is None}
        if waiting:
            job = Job(experiment.work, plan.settings, str(folder), data_dir)
            _run_all(executor or Local(workers), job, list(waiting.values()), (experiment.name, len(plan.cells)), out)
        rows = finished(folder)
        write_csv(out / TABLE, rows)
    return rows


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_all(executor: Executor, job: Job, waiting: Sequence[Configuration], what: tuple[str, int], out: Path) -> None:
    """Run cells, and show how far they are."""
    name, total = what
    done = total - len(waiting)
    with _progress(name, total, done) as advance, closing(executor.run(job, waiting)) as cells:  # type: ignore[type-var]
        try:
            for cell in cells:
                done += 1
                advance(cell)
        except BaseException as error:
            _tell(error, f"{done} of {total} cells are done and kept in {out}; the same command goes on from there")
            raise


class Local(Executor):
    """Worker processes of this machine, one per core unless given; each writes the file of its cell."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or _cores()

    def run(self, job: Job, cells: Sequence[Configuration]) -> Iterator[Configuration]:
        """Each cell once its worker has written it."""
        before = set(multiprocessing.active_children())
        spawn = multiprocessing.get_context("spawn")
        count = min(self.workers, len(cells))
        with _one_thread_each(), ProcessPoolExecutor(count, spawn, initializer=_start_worker) as pool:
            try:
                with _deaf():
                    futures = {pool.submit(_run_cell, cell, job): cell for cell in cells}
                for future, cell in _as_they_end(futures):
                    future.result()
                    yield cell
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for child in set(multiprocessing.active_children()) - before:
                    child.terminate()
                raise


def _tell(error: BaseException, kept: str) -> None:
    """Raise what a person can do about it in place of an error that does not say."""
    if isinstance(error, KeyboardInterrupt):
        raise InterruptedRunError(f"Stopped. {kept}.") from None
    if isinstance(error, LostError):
        raise MinsharpError(f"{error}. {kept}.") from None
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


def _run_cell(cell: Configuration, job: Job) -> None:
    job.keep(cell, job.rows(cell))


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
