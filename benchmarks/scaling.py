"""What watching costs, and what more processes bring: `python -m benchmarks.scaling`, printed and put into the docs.

Three parts: the tutorial's loop with and without a `Monitor` of budget 0.05; memory over 1,000 measurements; one trace
on one and on two processes, and from the constants measured there how far it would go.
"""

import multiprocessing
import resource
import tempfile
from math import ceil, log2
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minsharp as ms
from minsharp.data import load
from minsharp.models import build
from minsharp.text import count, decimals, markdown_table, number, percent

from .machine import machine
from .report import within

PAGE = Path("docs/scaling.md")
STEPS, ROUNDS, BUDGET, CALLS = 3000, 5, 0.05, 1000
SAMPLES, REPEATS = 2000, 5
PROCESSES = (1, 2, 10, 100, 1000)


def main() -> None:
    """Measure, print, write."""
    where, found = machine(), []
    for part in (_overhead, _memory, _strong):
        found.append(part())
        print(f"{found[-1]}\n", flush=True)
    within(PAGE, "benchmarks.scaling", "\n\n".join([*found, where]))


def _loop(x: Tensor, y: Tensor, watched: bool) -> tuple[float, int]:
    """Seconds of the tutorial's loop, and how often it was measured."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    monitor = ms.Monitor(model, (x[:200], y[:200]), budget=BUDGET) if watched else None
    start = perf_counter()
    for step in range(STEPS):
        rows = torch.randint(len(x), (128,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        if monitor is not None:
            monitor(step)
    return perf_counter() - start, len(monitor.frame()["step"]) if monitor is not None else 0


def _overhead() -> str:
    digits = load("digits")
    _loop(digits.train_x, digits.train_y, True)
    pairs = [[_loop(digits.train_x, digits.train_y, watched) for watched in (False, True)] for _ in range(ROUNDS)]
    shares = [seen[0] / plain[0] - 1 for plain, seen in pairs]
    times = int(median(seen[1] for _, seen in pairs))
    return (
        f"The tutorial's loop, {count(STEPS)} steps, with `Monitor(model, probe, budget={BUDGET})`: {count(times)} "
        f"measurements, {percent(median(shares), 1)} more time (median of {ROUNDS} rounds, with and without in turn)."
    )


def _memory() -> str:
    digits = load("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    monitor = ms.Monitor(model, digits.train_x[:200])
    peaks = []
    for calls in (CALLS // 10, CALLS):
        for _ in range(calls):
            monitor()
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return f"Peak memory grew by {decimals(peaks[1] - peaks[0])} MB over {count(CALLS)} further measurements."


def _rank(rank: int, size: int, store: str, out: Any) -> None:
    """Seconds of reading, of the measurement, and of one exchange."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    torch.manual_seed(0)
    model, x, group = build("LeNet"), torch.randn(SAMPLES, 1, 28, 28), dist.group.WORLD
    start = perf_counter()
    network = ms.read(model, x)
    reading = perf_counter() - start
    part = list(ms.shard(x))
    trace = ms.hessian_trace(network, part, process_group=group)
    times = [_timed(lambda: ms.hessian_trace(network, part, process_group=group)) for _ in range(REPEATS)]
    exchange = [_timed(lambda: ms.all_reduce(trace)) for _ in range(50)]
    if rank == 0:
        out.send((reading, median(times), median(exchange)))
    dist.barrier()
    dist.destroy_process_group()


def _timed(call: Any) -> float:
    import torch.distributed as dist

    dist.barrier()
    start = perf_counter()
    call()
    return perf_counter() - start


def _on(size: int) -> tuple[float, float, float]:
    spawn = multiprocessing.get_context("spawn")
    ear, mouth = spawn.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        processes = [spawn.Process(target=_rank, args=(r, size, f"{folder}/store", mouth)) for r in range(size)]
        for process in processes:
            process.start()
        found: tuple[float, float, float] = ear.recv()
        for process in processes:
            process.join()
    return found


def _strong() -> str:
    alone, two = _on(1), _on(2)
    reading, work, exchange = alone[0], alone[1], two[2]
    measured = {1: alone[1], 2: two[1]}
    rows = []
    for n in PROCESSES:
        foreseen = work / n + ceil(log2(n)) * exchange
        seen = number(measured[n], 3) if n in measured else ""
        rows.append((count(n), seen, number(foreseen, 3), percent(work / n / foreseen), number(reading + foreseen, 3)))
    head = ("processes", "measured, s", "foreseen, s", "efficiency", "with reading, s")
    words = (
        f"The trace of LeNet over {count(SAMPLES)} samples, one thread per process: {number(work, 3)} s of work, "
        f"{number(exchange * 1000, 2)} ms for an exchange between two processes of this machine, {number(reading, 3)} "
        "s to read the network, which each process does. What is foreseen follows from these three."
    )
    return f"{words}\n\n{markdown_table(head, rows)}"


if __name__ == "__main__":
    main()
