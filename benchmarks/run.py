"""`make bench`: minsharp beside its peers, printed and written to docs/performance.md."""

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from rich.console import Console

from minsharp.files import write_text
from minsharp.text import duration, magnitude, number

from . import tables
from .fresh import ask, import_times
from .machine import machine
from .measure import DIAGONALS, FULL, QUICK, TRACES, Effort, Measured, distance, measure
from .methods import BASELINE, DIAGONAL, TRACE, baseline_diagonal
from .models import ENTRIES
from .report import PAGE, Table, others

README = Path("README.md")
INTRODUCTION = """# Performance

This page is written by `make bench`: each section is from one run of its program, and no number is typed by hand. The
sections from Trace to Targets are of `python -m benchmarks.run`, and the machine that it ran on is described below; a
section of another program, with networks of its own, ends with the machine, versions and load of that run.

The first four networks are those of the paper (arXiv 2106.12612), the others take 32 x 32 images; ten classes,
cross-entropy, float32. The samples are clouds around ten random images, and each network has been trained on them until
its loss was below 0.1.
The trace by BackPACK, nngeometry and the baseline is the sum of their diagonal: they have no shorter way. Their batch
sizes are tuned beforehand (see Settings). ResNet-18 is the published one; with a 3 x 3 stem and no pool, as is usual
for small images, every feature map has sixteen times the pixels: there the bare backward passes take so much of the
time that no exact method can gain much more than the ratio in their row.
"""


def main() -> None:
    """Measure, print, write."""
    options = arguments()
    warnings.simplefilter("ignore")  # the peers' own
    console = Console(width=170)
    where, start = machine(*tables.PACKAGES), perf_counter()
    console.print(where)
    results = [measured(name, QUICK if options.quick else FULL, console) for name in options.only or ENTRIES]
    found, remarks = sections(results, options.quick)
    for table in found:
        console.print(table.rich())
    for remark in remarks:
        console.print(remark)
    console.print(f"{duration(perf_counter() - start)} in all.")
    out = options.out or (None if options.quick or options.only else PAGE)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, others(out, page(where, found, remarks)))
        console.print(f"Written to {out}.")
        if out == PAGE:
            update_readme(where, found[0])


def update_readme(where: str, table: Table) -> None:
    """Put the table of traces where the README has its place for it."""
    start, end = "<!-- performance: written by `make bench` -->\n", "<!-- end of performance -->"
    text = README.read_text()
    before, rest = text.split(start)
    after = rest.split(end)[1]
    body = table.markdown().replace("## Trace", "## Performance", 1)
    link = "[All tables](docs/performance.md), with diagonals, memory, settings, and what ¹ ² ³ stand for."
    write_text(README, f"{before}{start}{body}\n\n{where} {link}\n{end}{after}")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few samples, few rounds: only to see that it runs")
    parser.add_argument("--only", action="append", choices=ENTRIES, metavar="MODEL", help=", ".join(ENTRIES))
    parser.add_argument("--out", type=Path, help=f"the page to write; a complete run writes {PAGE}")
    return parser.parse_args()


def measured(name: str, effort: Effort, console: Console) -> Measured:
    """One network, with a line on how it went."""
    start = perf_counter()
    result = measure(name, effort)
    differs = result.agreement["BackPACK"].trace
    console.print(
        f"{name}: {result.rounds} rounds in {duration(perf_counter() - start)}; "
        f"trace {number(result.trace.total)}, relative difference from BackPACK {magnitude(differs)}"
    )
    return result


def sections(results: Sequence[Measured], quick: bool) -> tuple[list[Table], list[str]]:
    """All tables and the remarks under them, with what is measured apart from the rounds."""
    names = [m.name for m in results]
    growth = {
        what: {n: streamed(n, what) for n in ((200, 1000) if quick else (1000, 20000))}
        for what in ("trace", "diagonal")
    }
    torch_seconds, more = import_times(2 if quick else 9)
    targets = [*tables.speed_targets(results), *tables.memory_targets(growth), tables.import_target(more)]
    found = [
        tables.times_table("Trace", TRACE, TRACES, results),
        tables.times_table("Diagonal", DIAGONAL, DIAGONALS, results),
        tables.memory_table(results),
        tables.settings_table(results),
        tables.agreement_table(results),
        tables.streaming_table("SmallCNN", growth),
        tables.reading_table({name: ask("read", name) for name in names}),
        tables.import_table(torch_seconds, more),
        tables.target_table(targets),
    ]
    whole = [] if quick or "SmallMLP" not in names else [whole_baseline(results[names.index("SmallMLP")])]
    return found, [tables.FOOTNOTES, *whole]


def streamed(n: int, what: str) -> float:
    """Megabytes for n samples, the median of three processes: now and then the allocator takes more than it needs."""
    return median(float(ask("stream", "SmallCNN", n, what)) for _ in range(3))


def whole_baseline(result: Measured) -> str:
    """The baseline in full on the smallest network: how good the extrapolation is, and the numbers."""
    start = perf_counter()
    diagonal = baseline_diagonal(result.problem)
    seconds = perf_counter() - start
    differs = distance(result.diagonal.by_parameter, diagonal)
    return (
        f"The baseline was also run in full on {result.name}, once: {duration(seconds)} against the extrapolated "
        f"{duration(result.seconds(BASELINE.name))}; its diagonal differs from minsharp's by {magnitude(differs)}."
    )


def page(where: str, found: Sequence[Table], remarks: Sequence[str]) -> str:
    """The page; the remarks stand under the two tables of times, which they explain."""
    parts = [INTRODUCTION + "\n" + where]
    parts += [table.markdown() for table in found[:2]]
    parts += remarks
    parts += [table.markdown() for table in found[2:]]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
