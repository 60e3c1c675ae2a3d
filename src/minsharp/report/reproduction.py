"""The page that sets our results beside the published ones. Every number and every verdict is computed from folders."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import InputError
from ..experiments import approximations, labels, published, trace
from ..experiments.cells import Row
from ..experiments.statistics import Correlation, Interval
from ..files import make_folder, write_text
from ..text import printable
from .experiments import compared, label_correlations, models, ranked, tables
from .rows import computed_from, kind, read_rows, read_settings
from .tables import marked

PAPERS = ("minimum sharpness", "normalized sharpness")
LOSS_FREE = ("relative minimum sharpness", "relative sensitivity")


@dataclass(frozen=True)
class Results:
    """A folder that `minsharp reproduce` wrote."""

    folder: Path
    rows: list[Row]
    settings: Mapping[str, Any]

    @property
    def correlations(self) -> list[Correlation]:
        """Every measure against the gap."""
        return label_correlations(self.rows)

    @property
    def setting(self) -> str:
        """Preset and protocol, in words."""
        protocol = "equal loss" if self.rows[0]["protocol"] == "loss" else "fixed epochs"
        return f"{marked(self.rows[0]['preset'])}, {protocol}"

    @property
    def command(self) -> str:
        """The command that makes this folder: what differs from the defaults is spelled out."""
        return " ".join(["minsharp reproduce", kind(self.rows), *_options(self.rows, self.settings)])


def read_results(folder: str | Path) -> Results:
    """The results in a folder."""
    folder = Path(folder)
    rows, settings = read_rows(folder / "results.csv"), folder / "settings.json"
    if not settings.exists():
        raise InputError(f"{settings} does not exist: expected a folder that `minsharp reproduce` wrote")
    return Results(folder, rows, read_settings(settings))


def _options(rows: Sequence[Row], settings: Mapping[str, Any]) -> Iterator[str]:
    if kind(rows) == "labels":
        preset = labels.PRESETS[settings["preset"]]
        yield f"--preset {settings['preset']} --protocol {settings['protocol']}"
        yield from _unless(models(rows), list(preset.recipes), "--models")
        yield from _unless(sorted({row["ratio"] for row in rows}), list(labels.RATIOS), "--ratios")
        yield from _unless(_seeds(rows), list(range(preset.seeds)), "--seeds")
        yield from _unless(settings["measures"], list(labels.MEASURES), "--measures")
        yield from _unless([settings["train"]], [preset.train], "--train")
        epochs = {recipe["epochs"] for recipe in settings["recipes"].values()}
        yield from _unless(sorted(epochs), sorted({r.epochs for r in preset.recipes.values()}), "--epochs")
    else:
        yield f"--data {settings['data']}"
        yield from _unless(models(rows), list(trace.MODELS), "--models")
        yield from _unless(sorted({row["samples"] for row in rows}), list(trace.SAMPLES), "--samples")
        yield from _unless(_seeds(rows), list(range(trace.SEEDS)), "--seeds")
        yield from _unless(settings.get("probes", []), list(approximations.PROBES), "--probes")
    yield from _unless([settings["device"]], ["cpu"], "--device")


def _seeds(rows: Sequence[Row]) -> list[int]:
    return sorted({row["seed"] for row in rows})


def _unless(values: Sequence[Any], default: Sequence[Any], option: str) -> Iterator[str]:
    if not values or sorted(map(str, values)) == sorted(map(str, default)):
        return
    if option == "--seeds" and list(values) == list(range(len(values))):
        yield f"--seeds {len(values)}"
        return
    text = ",".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
    yield f'{option} "{text}"' if " " in text else f"{option} {text}"


def write_page(folders: Sequence[str | Path], path: str | Path) -> None:
    """Write the page; figures are linked where they lie."""
    path = Path(path)
    results = [read_results(folder) for folder in folders]
    with computed_from("', '".join(map(str, folders))):
        text = page(results, path.parent)
    make_folder(path.parent)
    write_text(path, text)


def page(results: Sequence[Results], here: Path) -> str:
    """The page, with links that start at a folder."""
    by_kind = {name: [r for r in results if kind(r.rows) == name] for name in ("trace", "labels", "approximations")}
    parts = ["# The paper's experiments, run again", _INTRODUCTION]
    if by_kind["labels"]:
        parts += ["## What holds, and what does not", *verdicts(by_kind["labels"])]
    if by_kind["trace"]:
        parts += ["## Exactness and time of Tr[H] and DIAG[H] (experiments A and D)", _TRACE]
        for r in by_kind["trace"]:
            parts += [f"### {marked(r.settings['data'])}", *_trace_words(r), *_body(r, here)]
    if by_kind["labels"]:
        parts += ["## Correlation with the generalisation gap (experiment B)", _LABELS]
        for r in by_kind["labels"]:
            parts += [f"### {r.setting}", *_labels_words(r), *_body(r, here)]
    if by_kind["approximations"]:
        parts += ["## The approximations of DIAG[H] (experiment C)", _APPROXIMATIONS]
        for r in by_kind["approximations"]:
            parts += [f"### {marked(r.settings['data'])}", *_body(r, here)]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """\
"Minimum sharpness: Scale-invariant parameter-robustness of neural networks" (arXiv 2106.12612) reports three
experiments. Here they are again, at sizes that a laptop bears. `minsharp reproduce page` writes this page from the
`results.csv` of each run, and no measured number in it is typed.

The small presets are not the paper's settings. Their learning rates, batch sizes and epochs, and the width of the
convolutional network on digits, were chosen by trial so that networks with all labels permuted fit their training set.
One such trial was a full run on digits with fixed epochs and a narrower convolutional network; it was replaced because
a network at ratio 1 did not fit, after its correlations had been seen.

Published numbers stand in brackets; those for LeNet stand beside the small convolutional network on digits, and are
on other data, more seeds and longer training, so only the order of measures can be compared there."""

_TRACE = """\
Networks as they are initialised, in float32, `torch.manual_seed(seed)` before the network is built and the samples are
drawn. The baseline is double backpropagation, one parameter at a time. Our times are the median of several calls after
a first one, on one CPU thread; the baseline runs once. The published times are means on one GPU."""

_LABELS = """\
The labels of a fraction of the training set are permuted among themselves; the gap is the accuracy on the training set
minus that on the test set. Tau is Kendall's tau-b with the gap; the partial tau is what is left of it given the
training loss, (t_xy - t_xz t_yz) / sqrt((1 - t_xz²)(1 - t_yz²)); in square brackets, 95 % bootstrap intervals over the
networks. With fixed epochs (the paper's protocol) networks end at different training losses; with equal loss every
network is stopped at the same one, so that the loss cannot rank them: what its column shows there is the rounding of
the stop, and the partial tau says no more than tau."""

_APPROXIMATIONS = """\
Two approximations of DIAG[H] by Tsuzuku, Sato and Sugiyama, with a growing number of random probes, against the exact
diagonal. The error is the Euclidean norm of the difference to the exact diagonal in double precision; the star is the
exact method in single precision."""


def _body(r: Results, here: Path) -> Iterator[str]:
    """The command, the tables and the figures of a folder."""
    yield f"```\n{printable(r.command).replace('`', '')}\n```"
    for table in tables(r.rows):
        yield f"**{marked(table.title)}**"
        yield table.markdown()
    for figure in sorted(r.folder.glob("*.png")):
        place = Path(os.path.relpath(figure, here)).as_posix()
        yield f"![{marked(figure.stem.replace('-', ' '))}]({quote(place, errors='surrogateescape')})"


def _trace_words(r: Results) -> Iterator[str]:
    worst = max(row["trace relative difference"] for row in r.rows)
    within = sum(row["trace relative difference"] < 1e-4 for row in r.rows)
    yield (
        f"{within} of {len(r.rows)} cells agree with the baseline to a relative difference below 1e-4; "
        f"the worst of them differs by {worst:.1e}."
    )


def _labels_words(r: Results) -> Iterator[str]:
    used, fitted = compared(r.rows), sum(row["train accuracy"] > 0.99 for row in r.rows)
    text = f"{len(r.rows)} networks, {fitted} of them with more than 99 % of their training labels right."
    if r.rows[0]["protocol"] == "loss":
        targets = {recipe["target"] for recipe in r.settings["recipes"].values()}
        goal = " and ".join(f"{t:g}" for t in sorted(targets))
        text += f" {len(used)} reached the training loss {goal} and are compared."
    yield text


def _named(found: Sequence[Correlation], model: str, measure: str) -> Correlation | None:
    return next((c for c in found if c.model == model and c.measure == measure), None)


def _reading(interval: Interval) -> str:
    """What an interval says about the sign."""
    if interval.value != interval.value:
        return "not defined"
    if interval.low > 0:
        return "positive"
    return "negative" if interval.high < 0 else "not told from zero"


def verdicts(results: Sequence[Results]) -> Iterator[str]:
    """Plain statements, each computed: agreement with the paper, what the loss explains, what holds up everywhere."""
    yield from _agreement(results)
    yield from _loss_alone(results)
    yield from _loss_free(results)
    yield from _everywhere(results)


def _agreement(results: Sequence[Results]) -> Iterator[str]:
    lines = []
    for r in results:
        if r.rows[0]["protocol"] != "epochs":
            continue
        found = r.correlations
        for model in models(r.rows):
            for measure in PAPERS:
                c, known = _named(found, model, measure), published.correlation(model, measure, "kendall")
                if c is None or known is None:
                    continue
                inside = c.kendall.low <= known <= c.kendall.high
                side = "agrees with" if inside else "is below" if c.kendall.value < known else "is above"
                given = published.correlation(model, measure, "partial")
                lines.append(
                    f"- {r.setting}, {marked(model)}: tau of {measure} is {c.kendall}, which {side} the published "
                    f"{known:.2f}; given the training loss {c.partial} ({_reading(c.partial)}; "
                    f"the archive's {given:.2f})."
                )
    if lines:
        yield "**Beside the paper** (agrees: the published number lies in our interval)."
        yield "\n".join(lines)


def _loss_alone(results: Sequence[Results]) -> Iterator[str]:
    lines = []
    for r in results:
        found = r.correlations
        for model in models(r.rows):
            loss = _named(found, model, labels.LOSS)
            if loss is None:
                continue
            order = [c.measure for c in ranked(found, model, "kendall")]
            place = order.index(labels.LOSS) + 1 if labels.LOSS in order else None
            where = "" if place is None else f", place {place} of {len(order)} among the measures"
            lines.append(f"- {r.setting}, {marked(model)}: tau {loss.kendall}{where}.")
    if lines:
        yield "**The training loss alone**, as a measure of the gap:"
        yield "\n".join(lines)


def _loss_free(results: Sequence[Results]) -> Iterator[str]:
    lines = []
    for r in results:
        found = r.correlations
        for model in models(r.rows):
            both = [c for name in LOSS_FREE if (c := _named(found, model, name)) is not None]
            rival = _named(found, model, "minimum sharpness")
            for c in both:
                beside = "" if rival is None else f"; minimum sharpness {rival.kendall}, given the loss {rival.partial}"
                lines.append(
                    f"- {r.setting}, {marked(model)}: {marked(c.measure)} has tau {c.kendall} ({_reading(c.kendall)}), "
                    f"given the loss {c.partial} ({_reading(c.partial)}){beside}."
                )
    if lines:
        yield "**The two measures that do not vanish with the loss**:"
        yield "\n".join(lines)


def _everywhere(results: Sequence[Results]) -> Iterator[str]:
    """Measures whose interval lies above zero in every setting, and those that change sign."""
    readings: dict[str, list[tuple[str, str]]] = {}
    for r in results:
        for c in r.correlations:
            readings.setdefault(c.measure, []).append((f"{r.setting}, {marked(c.model)}", _reading(c.kendall)))
    settings = max(map(len, readings.values()), default=0)
    always = [name for name, found in readings.items() if all(sign == "positive" for _, sign in found)]
    yield (
        f"**Over all {settings} settings** (preset, protocol and network) the interval of tau lies above zero every "
        f"time for: {', '.join(map(marked, always)) or 'no measure'}. For the others it does not in:"
    )
    rest = {name: [where for where, sign in found if sign != "positive"] for name, found in readings.items()}
    yield "\n".join(f"- {marked(name)}: {'; '.join(where)}." for name, where in rest.items() if where)
