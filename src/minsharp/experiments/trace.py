"""Experiments A and D: Tr[H] and DIAG[H] against double backpropagation, one parameter at a time."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from ..colours import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION
from ..curvature.hessian import hessian_diagonal, hessian_trace
from ..network.reader import read
from ..reference.estimators import baseline_diagonal
from ..text import rounded
from . import published
from .commands import unless_default
from .drawing import log_log, one_legend, panels
from .experiment import Columns, Experiment, Results, Section
from .initial import MODELS, REPEATS, SAMPLES, SEEDS, check, data_of, draw, flat, heading, options, timed
from .plan import TIMING, Configuration, Plan, ResultRow, grid
from .registry import register
from .tables import Table, groups

COLUMNS = Columns(
    orders=("samples", "seed"),
    numbers=(
        *("trace", "baseline trace", "trace relative difference", "diagonal relative difference"),
        *(f"{name} {TIMING}" for name in ("trace", "diagonal", "baseline")),
    ),
    text=("data", "model"),
    other_text=("baseline",),
)


def plan(
    data: str = "digits",
    *,
    models: Sequence[str] = MODELS,
    samples: Sequence[int] = SAMPLES,
    seeds: Sequence[int] = range(SEEDS),
    device: str = "cpu",
) -> Plan:
    """One cell per network, number of samples and seed."""
    check(data, models, samples)
    return Plan({"data": data, "device": device}, grid(model=models, samples=samples, seed=seeds))


def work(configuration: Configuration, data_dir: str | None = None) -> list[ResultRow]:
    """Trace and diagonal of a network as it was initialised, both ways; ours after one call to warm up."""
    model, x, y = draw(configuration, data_dir)
    network = read(model, x)
    hessian_diagonal(network, x)
    ours, trace_seconds = timed(lambda: hessian_trace(network, x), REPEATS)
    diagonal, diagonal_seconds = timed(lambda: hessian_diagonal(network, x), REPEATS)
    baseline, baseline_seconds = timed(lambda: baseline_diagonal(model, (x, y)))
    expected = flat(baseline)
    return [
        {
            "data": configuration["data"],
            "model": configuration["model"],
            "samples": configuration["samples"],
            "seed": configuration["seed"],
            "trace": ours.total,
            "baseline trace": baseline.total,
            "trace relative difference": abs(ours.total / baseline.total - 1),
            "diagonal relative difference": float((flat(diagonal) - expected).norm() / expected.norm()),
            "trace seconds": trace_seconds,
            "diagonal seconds": diagonal_seconds,
            "baseline seconds": baseline_seconds,
        }
    ]


def tables(results: Results) -> list[Table]:
    """Median seconds and the largest differences, beside the published seconds, which are means."""
    lines = []
    for (model, n), own in groups(results.rows, "model", "samples"):
        typical = {c: median(row[f"{c} seconds"] for row in own) for c in ("trace", "diagonal", "baseline")}
        slow = published.SECONDS.get((model, "baseline"), {}).get(n)
        fast = published.SECONDS.get((model, "proposal"), {}).get(n)
        lines.append(
            (
                model,
                str(n),
                str(len(own)),
                *(f"{max(row[f'{c} relative difference'] for row in own):.1e}" for c in ("trace", "diagonal")),
                *(rounded(seconds) for seconds in typical.values()),
                rounded(typical["baseline"] / typical["trace"]),
                *(rounded(fast), rounded(slow), rounded(published.speed_up(model, n))),
            )
        )
    head = (
        *("network", "n", "seeds", "trace: worst difference", "diagonal: worst difference"),
        *("trace, s", "diagonal, s", "baseline, s", "speed-up"),
        *("paper's method, s", "paper's baseline, s", "paper's speed-up"),
    )
    title = f"Tr[H] and DIAG[H] against double backpropagation, medians over seeds, {data_of(results)}"
    return [Table(title, head, tuple(lines))]


def figures(results: Results) -> Iterator[tuple[str, Any]]:
    """Both traces of every cell, and the times."""
    yield "traces", _traces(results)
    yield "times", _times(results)


def _traces(results: Results) -> Any:
    """Both traces of every cell: all points have to lie on the diagonal."""
    rows, names = results.rows, results.models
    figure, axes = panels(1, len(names), 4 * len(names), 4.2)
    sizes = sorted({row["samples"] for row in rows})
    for axis, model in zip(axes[0], names, strict=True):
        own = [row for row in rows if row["model"] == model]
        _traces_panel(axis, own, sizes)
        worst = max(row["trace relative difference"] for row in own)
        axis.set_title(f"{model}: {len(own)} cells, worst relative difference {worst:.1e}")
        axis.set_xlabel("Tr[H] by double backpropagation")
        axis.set_aspect("equal", adjustable="datalim")
    axes[0][0].set_ylabel("Tr[H] by minsharp")
    one_legend(figure, axes)
    figure.suptitle(f"Exactness of the trace on {rows[0]['data']}, float32")
    return figure


def _traces_panel(axis: Any, own: Sequence[ResultRow], sizes: Sequence[int]) -> None:
    looks = list(zip((BLUE, ORANGE, GREEN, PURPLE, SKY), "osD^v", strict=True))
    values = [row[c] for row in own for c in ("trace", "baseline trace")]
    ends = [min(values) * 0.97, max(values) * 1.03]
    axis.plot(ends, ends, color=GREY, linewidth=0.8, label="equal")
    for i, n in enumerate(sizes):
        colour, marker = looks[i % len(looks)]
        at = [row for row in own if row["samples"] == n]
        pairs = [row["baseline trace"] for row in at], [row["trace"] for row in at]
        axis.plot(*pairs, marker, color=colour, markersize=5, alpha=0.8, label=f"n = {n}")


def _times(results: Results) -> Any:
    """Median seconds against the number of samples, and the published means."""
    names = results.models
    figure, axes = panels(1, len(names), 4.2 * len(names), 4, share_y=True)
    for axis, model in zip(axes[0], names, strict=True):
        _times_panel(axis, [row for row in results.rows if row["model"] == model])
        _published_times(axis, model)
        log_log(axis)
        axis.set_xlabel("samples n")
        axis.set_title(model)
    axes[0][0].set_ylabel("time, seconds (median over seeds)")
    one_legend(figure, axes, columns=3)
    figure.suptitle(f"Time on {results.rows[0]['data']}, one CPU thread")
    return figure


def _times_panel(axis: Any, own: Sequence[ResultRow]) -> None:
    looks = {
        "baseline": (VERMILION, "s", "double backpropagation"),
        "diagonal": (SKY, "^", "minsharp, DIAG[H]"),
        "trace": (BLUE, "o", "minsharp, Tr[H]"),
    }
    sizes = sorted({row["samples"] for row in own})
    for column, (colour, marker, title) in looks.items():
        typical = [median(row[f"{column} seconds"] for row in own if row["samples"] == n) for n in sizes]
        axis.plot(sizes, typical, marker=marker, color=colour, label=title)


def _published_times(axis: Any, model: str) -> None:
    for method, colour, marker, what in (
        ("baseline", VERMILION, "s", "double backpropagation"),
        ("proposal", BLUE, "o", "Tr[H]"),
    ):
        known = published.SECONDS[(model, method)]
        axis.plot(
            list(known),
            list(known.values()),
            linestyle="--",
            marker=marker,
            markerfacecolor="white",
            color=colour,
            linewidth=1,
            label=f"paper, {what} (GPU, MNIST, mean)",
        )


def words(results: Results) -> Iterator[str]:
    """How many cells agree with the baseline."""
    differences = [row["trace relative difference"] for row in results.rows]
    yield (
        f"{sum(d < 1e-4 for d in differences)} of {len(differences)} cells agree with the baseline to a relative "
        f"difference below 1e-4; the worst of them differs by {max(differences):.1e}."
    )


def command(results: Results) -> str:
    """The command that makes these results."""
    device = unless_default([(results.settings or {})["device"]], ["cpu"], "--device")
    return " ".join(["minsharp reproduce trace", *options(results), *device])


TRACE = register(
    Experiment(
        "trace",
        work,
        plan,
        COLUMNS,
        tables,
        Section(
            "Exactness and time of Tr[H] and DIAG[H] (experiments A and D)",
            """\
Networks as they are initialised, in float32, `torch.manual_seed(seed)` before the network is built and the samples are
drawn. The baseline is double backpropagation, one parameter at a time. Our times are the median of several calls after
a first one, on one CPU thread; the baseline runs once. The published times are means on one GPU.""",
            heading,
            words,
            command,
        ),
        figures=figures,
    )
)
