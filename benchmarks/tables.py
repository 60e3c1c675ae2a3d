"""The measurements as tables, one sentence on each number with them, and the targets they have to meet."""

from collections.abc import Sequence
from dataclasses import dataclass

from minsharp.text import count, decimals, duration, magnitude, percent, times

from .measure import Measured
from .methods import (
    BACKPACK,
    BARE,
    BASELINE,
    CURVLINOPS,
    DIAGONAL,
    NNGEOMETRY,
    NNGEOMETRY_STABLE,
    PYHESSIAN,
    ROWS,
    TRACE,
    Method,
)
from .models import ENTRIES
from .report import Table

LABELS = {
    BACKPACK.name: "BackPACK DiagGGNExact",
    NNGEOMETRY.name: "nngeometry diagonal Fisher",
    BASELINE.name: "baseline (double backprop) ¹",
    PYHESSIAN.name: "PyHessian, Hutchinson to 1 % ²",
    CURVLINOPS.name: "curvlinops, Hutchinson to 1 % ²",
    BARE.name: "bare K-1 backprops ³",
}
YARDSTICK = 1.3
"""How many times as long as the bare backprops an exact trace may take."""
PACKAGES = ("backpack-for-pytorch", "nngeometry", "PyHessian", "curvlinops-for-pytorch")
TIMES_NOTE = (
    "Median seconds over the rounds, and in brackets the method's time over minsharp's. In every round each method has "
    "its turn, in one process. Not timed: minsharp's reading of the network, BackPACK's conversion, building the "
    "graph of the gradient for the baseline and PyHessian. BackPACK, nngeometry and the bare backprops run at the "
    "batch size that is fastest for them, curvlinops at the fastest number of probes at once (see Settings); minsharp "
    "gets the whole batch and chooses by itself."
)
FOOTNOTES = (
    "¹ Extrapolated: random entries of the diagonal are timed, and their mean time multiplied by the number of "
    "entries. ² Extrapolated: the time of one product with the Hessian (a random sign vector), multiplied by the "
    "number of probes that brings the standard error down to 1 % of the trace, from the measured spread (see "
    "Settings). curvlinops also has estimators of smaller variance (Hutch++, XTrace), which are not timed. "
    "³ Not a method but a yardstick: one forward pass and K-1 backward passes to the outputs of the convolutions "
    "and linear layers, none to the weights, and nothing done with them."
)


def times_table(title: str, ours: Method, methods: Sequence[Method], results: Sequence[Measured]) -> Table:
    """Each method on each network."""
    head = ["", *(f"{m.name}, n={m.samples}" for m in results)]

    def cell(method: Method, m: Measured) -> str:
        seconds = duration(m.seconds(method.name))
        return seconds if method is ours else f"{seconds} ({times(m.ratio(method.name, ours.name))})"

    rows = [[LABELS.get(k.name, "minsharp"), *(cell(k, m) for m in results)] for k in methods]
    return Table(title, TIMES_NOTE, head, rows)


def memory_table(results: Sequence[Measured]) -> Table:
    """Peak memory of each method."""
    rows = [
        [LABELS.get(name, name).rstrip(" ¹²³"), *(decimals(m.peaks[name], 0) for m in results)]
        for name in (k.name for k in ROWS)
    ]
    note = (
        "Megabytes by which one call raises the resident memory at its peak above where it stood after imports, data "
        "and preparation; each in a process of its own, at the settings of the times. The baseline and PyHessian for "
        "one entry or probe, the graph of the gradient included; curvlinops for one product."
    )
    return Table("Peak memory (MB)", note, ["", *(m.name for m in results)], rows)


def settings_table(results: Sequence[Measured]) -> Table:
    """What was chosen, and how much was measured."""
    chosen = (BACKPACK.name, NNGEOMETRY.name, BARE.name)
    noisy = (TRACE.name, DIAGONAL.name, BACKPACK.name, BARE.name)
    rows = [
        ["parameters", *(count(m.parameters) for m in results)],
        ["rounds", *(str(m.rounds) for m in results)],
        *([f"{k}: quartile distance", *(percent(m.timings[k].spread, 0) for m in results)] for k in noisy),
        *([f"{k}: batch size", *(str(m.timings[k].setting) for m in results)] for k in chosen),
        ["nngeometry: variant", *(variant(m) for m in results)],
        ["curvlinops: probes at once", *(str(m.timings[CURVLINOPS.name].setting) for m in results)],
        ["baseline: entries timed", *(str(m.rounds * m.timings[BASELINE.name].calls) for m in results)],
        ["probes drawn for the spread", *(str(m.probes.drawn) for m in results)],
        ["standard deviation of a probe", *(percent(m.probes.deviation, 0) for m in results)],
        ["probes for 1 %", *(count(m.probes.needed) for m in results)],
    ]
    note = (
        "Quartile distance: of the times over the rounds, relative to their median; how quiet the machine was. "
        "Batch sizes and probes at once: the fastest of a few that were tried before the rounds. The spread of v^T H v "
        "over random sign vectors v is relative to the exact trace; from few of them it is rough, and the times of "
        "Hutchinson's method go with its square. nngeometry: its default variant, classif_logits, unless that gives "
        "NaN on a network."
    )
    return Table("Settings", note, ["", *(m.name for m in results)], rows)


def variant(m: Measured) -> str:
    """What nngeometry was asked for."""
    stable = m.timings[NNGEOMETRY.name].method is NNGEOMETRY_STABLE
    return "regression, for NaN otherwise" if stable else "default"


def agreement_table(results: Sequence[Measured]) -> Table:
    """Whether all computed the same."""
    peers = list(results[0].agreement)
    rows = [
        *([f"trace, {p}", *(magnitude(m.agreement[p].trace) for m in results)] for p in peers),
        *([f"diagonal, {p}", *(magnitude(m.agreement[p].diagonal) for m in results)] for p in peers),
        ["trace, mean of the probes", *(magnitude(abs(m.probes.mean - 1)) for m in results)],
        ["(its standard error)", *(magnitude(m.probes.deviation / m.probes.drawn**0.5) for m in results)],
    ]
    note = (
        "The same run's results, relative to minsharp's: |total / ours - 1| for the trace, the Euclidean distance over "
        "our norm for the diagonal. All in float32."
    )
    return Table("Same numbers", note, ["", *(m.name for m in results)], rows)


def reading_table(seconds: dict[str, tuple[float, float]]) -> Table:
    """What minsharp.read costs."""
    rows = [
        ["first in the process", *(duration(first) for first, _ in seconds.values())],
        ["again", *(duration(again) for _, again in seconds.values())],
    ]
    note = (
        "Seconds of `minsharp.read(model, x)`, once per network, then it is reused: in a new process per network, "
        "where the first call also loads what torch.export needs, and once more in the same process."
    )
    return Table("Reading a network", note, ["", *seconds], rows)


def streaming_table(model: str, growth: dict[str, dict[int, float]]) -> Table:
    """Memory against the number of samples."""
    sizes = list(next(iter(growth.values())))
    rows = [[what, *(decimals(by_size[n], 0) for n in sizes)] for what, by_size in growth.items()]
    note = (
        f"{model}, samples streamed from a generator in batches of 100: megabytes by which the call raises the peak of "
        "the resident memory, each in a process of its own, the median of three."
    )
    return Table("Streaming: peak memory (MB) against n", note, ["", *(f"n={count(n)}" for n in sizes)], rows)


def import_table(torch_seconds: float, more: float) -> Table:
    """What importing costs."""
    note = "Median of several new interpreters; each imports torch first, then minsharp."
    row = [duration(torch_seconds), f"{more:+.3f} s"]
    return Table("Importing", note, ["import torch", "import minsharp after it"], [row])


@dataclass(frozen=True)
class Target:
    """Something that must hold, and the number that decides."""

    text: str
    value: str
    met: bool


def speed_targets(results: Sequence[Measured]) -> list[Target]:
    """What every network has to show."""
    found = []
    for m in results:
        least = ENTRIES[m.name].gain
        gain, over = m.ratio(BACKPACK.name, TRACE.name), 1 / m.ratio(BARE.name, TRACE.name)
        diagonal = m.ratio(BACKPACK.name, DIAGONAL.name)
        found += [
            Target(f"{m.name}: trace at least {least}x faster than BackPACK", times(gain), gain >= least),
            Target(f"{m.name}: trace at most {YARDSTICK}x the bare backprops", times(over), over <= YARDSTICK),
            Target(f"{m.name}: diagonal no slower than BackPACK", times(diagonal), diagonal >= 1),
        ]
    return sorted(found, key=lambda target: target.text.split(": ")[1])


def memory_targets(growth: dict[str, dict[int, float]]) -> list[Target]:
    """Streaming more samples must not need more memory; 10 % or 10 MB are the allocator's noise."""
    found = []
    for what, by_size in growth.items():
        few, many = min(by_size), max(by_size)
        met = by_size[many] <= max(1.1 * by_size[few], by_size[few] + 10)
        value = f"{decimals(by_size[few], 0)} -> {decimals(by_size[many], 0)} MB"
        found.append(Target(f"{what}: peak memory does not grow from n={count(few)} to n={count(many)}", value, met))
    return found


def import_target(more: float) -> Target:
    """Importing must cost little more than torch does."""
    return Target("import minsharp: at most 0.2 s more than import torch", f"{more:+.3f} s", more <= 0.2)


def target_table(targets: Sequence[Target]) -> Table:
    """The verdict."""
    rows = [[t.text, t.value, "yes" if t.met else "NO"] for t in targets]
    return Table("Targets", "Computed from the numbers above.", ["target", "measured", "met"], rows)
