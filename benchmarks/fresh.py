"""What has to be measured in a process of its own: peak memory, the first reading of a network, importing.

`python -m benchmarks.fresh peak MODEL SAMPLES METHOD SETTING` and its like print one line of JSON.
"""

import gc
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

MEGABYTE = 1 << 20


def ask(*words: object) -> Any:
    """The answer of this module, run in a new process."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.fresh", *map(str, words)]
    return json.loads(_output(command))


def import_times(rounds: int) -> tuple[float, float]:
    """Median seconds to import torch, and to import minsharp after it: both in one interpreter, and that many times.

    An import of torch alone varies by more than minsharp adds, so two interpreters could not be compared.
    """
    code = (
        "from time import perf_counter as now; a = now(); import torch; b = now(); "
        "from minsharp import hessian_trace; c = now(); print(b - a, c - b)"
    )
    command = [sys.executable, "-c", code]
    _output(command)  # so that the files are in the page cache
    pairs = [_output(command).split() for _ in range(rounds)]
    return median(float(torch) for torch, _ in pairs), median(float(more) for _, more in pairs)


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout.splitlines()[-1]


def peak_growth(run: Callable[[], object]) -> float:
    """By how many megabytes a call raises the peak of the resident memory above where it stood before."""
    gc.collect()
    with suppress(OSError):  # Linux: forget earlier peaks
        Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    run()
    return (memory("VmHWM") - before) / MEGABYTE


def memory(field: str) -> int:
    """Bytes resident now (VmRSS) or at the peak (VmHWM); without /proc, the peak for both.

    Where there is /proc, ru_maxrss must not be used: a new process inherits in it the size of the one that began it.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def peak(model: str, samples: str, method: str, setting: str) -> float:
    """The memory of one method, prepared beforehand."""
    from .methods import METHODS
    from .models import problem

    return peak_growth(METHODS[method].prepare(problem(model, int(samples)), int(setting)))


def stream(model: str, samples: str, what: str) -> float:
    """The memory of minsharp over a generator that makes batches of 100 samples as they are asked for."""
    import torch

    import minsharp

    from .models import ENTRIES, problem

    small = problem(model, 2)
    network = minsharp.read(small.model, small.x)

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(int(samples) // 100):
            yield torch.randn(100, *ENTRIES[model].shape)

    measure = minsharp.hessian_trace if what == "trace" else minsharp.hessian_diagonal
    return peak_growth(lambda: measure(network, batches()))


def read(model: str) -> tuple[float, float]:
    """Seconds to read a network the first time in a process, and again."""
    import minsharp

    from .models import problem

    given = problem(model, 2)

    def seconds() -> float:
        start = perf_counter()
        minsharp.read(given.model, given.x)
        return perf_counter() - start

    return seconds(), seconds()


if __name__ == "__main__":
    tasks: dict[str, Callable[..., object]] = {"peak": peak, "stream": stream, "read": read}
    print(json.dumps(tasks[sys.argv[1]](*sys.argv[2:])))
