"""`python -m benchmarks.startup`: seconds until the command line answers, beside a Python that does nothing.

In every round each call has its turn, in a fresh process; medians, and what is left after `python -c pass`. Beside the
clock stands what the processor worked, which does not grow when the machine has other things to do.
"""

import argparse
import os
import resource
import subprocess
import sys
from statistics import median
from time import perf_counter

from minsharp.text import plain_table

PASS = "python -c pass"
LIMIT = 0.3
"""Seconds more than a Python that does nothing."""
COMPLETION = {"_MINSHARP_COMPLETE": "complete_bash"}
CALLS: dict[str, tuple[list[str], dict[str, str]]] = {
    PASS: (["-c", "pass"], {}),
    "minsharp --version": (["-m", "minsharp", "--version"], {}),
    "minsharp --help": (["-m", "minsharp", "--help"], {}),
    "minsharp measure --help": (["-m", "minsharp", "measure", "--help"], {}),
    "minsharp mea<TAB>": (["-m", "minsharp"], {**COMPLETION, "COMP_WORDS": "minsharp mea", "COMP_CWORD": "1"}),
    "minsharp compare m.pt2 --measures rel<TAB>": (
        ["-m", "minsharp"],
        {**COMPLETION, "COMP_WORDS": "minsharp compare m.pt2 --measures rel", "COMP_CWORD": "4"},
    ),
    "python -c 'import torch'": (["-c", "import torch"], {}),
}


def seconds(arguments: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """The time of one call in a process of its own: by the clock, and of the processor."""
    start, before = perf_counter(), _worked()
    subprocess.run([sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True, check=True)
    return perf_counter() - start, _worked() - before


def _worked() -> float:
    """Seconds that the processor worked for processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Time all calls, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in CALLS}
    for _ in range(1 + rounds):
        for name, call in CALLS.items():
            times[name].append(seconds(*call))
    clock, worked = (
        {name: median(one[which] for one in found[1:]) for name, found in times.items()} for which in (0, 1)
    )  # the first round warms up the disk
    rows = [
        (name, f"{clock[name]:.3f}", f"{clock[name] - clock[PASS]:+.3f}", f"{worked[name] - worked[PASS]:+.3f}")
        for name in CALLS
    ]
    print(plain_table(("call", "seconds", "more than nothing", "of the processor"), rows))
    print(f"{rounds} rounds; aimed at: less than {LIMIT} s more than nothing, for all but the last")


if __name__ == "__main__":
    main()
