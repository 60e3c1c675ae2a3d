"""Many seeds in several processes, each result a line of JSON; a worker that dies takes only its own seed with it."""

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PORTION = 50  # seeds per process: torch.export keeps memory
LIMIT = 180  # seconds of processor time for one network

Record = dict[str, Any]


def _stop(*args: Any) -> None:
    raise TimeoutError(f"more than {LIMIT} seconds of processor time")


def one(seed: int) -> Record:
    """The record of one seed; what goes wrong in the test itself is a failure too."""
    from .checks import examine
    from .outcome import Outcome

    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        return examine(seed).to_dict()
    except Exception as error:
        lines = traceback.format_exc().strip().splitlines()
        return Outcome(seed, failures=[(f"test: {type(error).__name__}", "\n".join(lines[-6:]))]).to_dict()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _work(seeds: list[int], path: str) -> None:
    import torch

    torch.set_num_threads(1)
    with open(path, "a") as file:
        for seed in seeds:
            file.write(json.dumps(one(seed)) + "\n")
            file.flush()


def records(path: Path) -> dict[int, Record]:
    """The results in a file, by seed; a line cut short is left out."""
    found: dict[int, Record] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[record["seed"]] = record
    return found


def _portions(seeds: Iterable[int], done: Iterable[int]) -> Iterator[list[int]]:
    known = set(done)
    waiting = [seed for seed in seeds if seed not in known]
    for i in range(0, len(waiting), PORTION):
        yield waiting[i : i + PORTION]


class Pool:
    """Worker processes, one portion of seeds each, with a file of results each."""

    def __init__(self, seeds: Iterable[int], jobs: int, out: Path) -> None:
        self.out = out
        self.done = records(out)
        self.waiting = list(_portions(seeds, self.done))
        self.total = sum(map(len, self.waiting)) + len(self.done)
        self.jobs = jobs
        self.running: dict[Any, tuple[list[int], Path]] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self.context = multiprocessing.get_context("fork")

    def run(self) -> dict[int, Record]:
        """Until all seeds have a record."""
        import minsharp as ms  # before the fork, once

        assert ms.__version__
        start, shown = time.monotonic(), 0.0
        try:
            while self.waiting or self.running:
                self._start()
                time.sleep(0.1)
                self._collect()
                if time.monotonic() - shown > 5:
                    shown = time.monotonic()
                    self._show(start)
        finally:
            for process in self.running:
                process.terminate()
            self._collect(everything=True)
        self._show(start, "\n")
        return self.done

    def _start(self) -> None:
        while self.waiting and len(self.running) < self.jobs:
            seeds = self.waiting.pop(0)
            path = self.folder / f"{seeds[0]}-{len(seeds)}-{time.monotonic_ns()}.jsonl"
            process = self.context.Process(target=_work, args=(seeds, str(path)))
            process.start()
            self.running[process] = (seeds, path)

    def _collect(self, everything: bool = False) -> None:
        for process, (seeds, path) in list(self.running.items()):
            if process.is_alive() and not everything:
                self._keep(path)
                continue
            process.join()
            self._keep(path)
            del self.running[process]
            missing = [seed for seed in seeds if seed not in self.done]
            if missing and not everything:
                died = {"seed": missing[0], "failures": [["process died", f"exit code {process.exitcode}"]]}
                self._write({missing[0]: died})
                self.waiting.insert(0, missing[1:]) if missing[1:] else None

    def _keep(self, path: Path) -> None:
        self._write({seed: r for seed, r in records(path).items() if seed not in self.done})

    def _write(self, new: dict[int, Record]) -> None:
        self.done |= new
        with open(self.out, "a") as file:
            for record in new.values():
                file.write(json.dumps(record) + "\n")

    def _show(self, start: float, end: str = "") -> None:
        bad = sum(bool(r.get("failures")) for r in self.done.values())
        text = f"\r{len(self.done)} of {self.total} networks, {bad} with failures, {time.monotonic() - start:.0f} s"
        if sys.stderr.isatty() or end:
            print(text, end=end, file=sys.stderr, flush=True)


def cores() -> int:
    """How many processes to use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
