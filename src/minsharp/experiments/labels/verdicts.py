"""Plain statements on all runs together, each computed."""

from collections.abc import Iterable, Iterator, Sequence

from .. import published
from ..experiment import Results
from ..statistics import Interval, named, ranked
from ..tables import marked
from .networks import LOSS
from .section import setting

PAPERS = ("minimum sharpness", "normalized sharpness")
LOSS_FREE = ("relative minimum sharpness", "relative sensitivity")


def verdicts(results: Sequence[Results]) -> Iterator[str]:
    """Plain statements, each computed: agreement with the paper, what the loss explains, what holds up everywhere."""
    beside = "**Beside the paper** (agrees: the published number lies in our interval)."
    yield from _listed(beside, _agreement(results))
    yield from _listed("**The training loss alone**, as a measure of the gap:", _loss_alone(results))
    yield from _listed("**The two measures that do not vanish with the loss**:", _loss_free(results))
    yield from _everywhere(results)


def _reading(interval: Interval) -> str:
    """What an interval says about the sign."""
    if interval.value != interval.value:
        return "not defined"
    if interval.low > 0:
        return "positive"
    return "negative" if interval.high < 0 else "not told from zero"


def _listed(title: str, lines: Iterable[str]) -> Iterator[str]:
    """A paragraph and the list below it, if there is one."""
    found = [f"- {line}." for line in lines]
    if found:
        yield title
        yield "\n".join(found)


def _networks(results: Sequence[Results]) -> Iterator[tuple[str, str, Results]]:
    """Every network of every run: its name, how the run and it are called on the page, and the run."""
    for r in results:
        for model in r.models:
            yield model, f"{setting(r)}, {marked(model)}", r


def _agreement(results: Sequence[Results]) -> Iterator[str]:
    fixed_epochs = [r for r in results if r.rows[0]["protocol"] == "epochs"]
    for model, place, r in _networks(fixed_epochs):
        for measure in PAPERS:
            c, known = named(r.analysis.correlations, model, measure), published.correlation(model, measure, "kendall")
            if c is None or known is None:
                continue
            inside = c.kendall.low <= known <= c.kendall.high
            side = "agrees with" if inside else "is below" if c.kendall.value < known else "is above"
            given = published.correlation(model, measure, "partial")
            yield (
                f"{place}: tau of {measure} is {c.kendall}, which {side} the published {known:.2f}; "
                f"given the training loss {c.partial} ({_reading(c.partial)}; the archive's {given:.2f})"
            )


def _loss_alone(results: Sequence[Results]) -> Iterator[str]:
    for model, place, r in _networks(results):
        loss = named(r.analysis.correlations, model, LOSS)
        if loss is not None:
            order = [c.measure for c in ranked(r.analysis.correlations, model, "kendall")]
            rank = f", place {order.index(LOSS) + 1} of {len(order)} among the measures" if LOSS in order else ""
            yield f"{place}: tau {loss.kendall}{rank}"


def _loss_free(results: Sequence[Results]) -> Iterator[str]:
    for model, place, r in _networks(results):
        rival = named(r.analysis.correlations, model, "minimum sharpness")
        beside = "" if rival is None else f"; minimum sharpness {rival.kendall}, given the loss {rival.partial}"
        for measure in LOSS_FREE:
            c = named(r.analysis.correlations, model, measure)
            if c is not None:
                yield (
                    f"{place}: {marked(measure)} has tau {c.kendall} ({_reading(c.kendall)}), "
                    f"given the loss {c.partial} ({_reading(c.partial)}){beside}"
                )


def _everywhere(results: Sequence[Results]) -> Iterator[str]:
    """Measures whose interval lies above zero in every setting, and where the others' does not."""
    readings: dict[str, list[tuple[str, str]]] = {}
    for r in results:
        for c in r.analysis.correlations:
            readings.setdefault(c.measure, []).append((f"{setting(r)}, {marked(c.model)}", _reading(c.kendall)))
    settings = max(map(len, readings.values()), default=0)
    always = [name for name, found in readings.items() if all(sign == "positive" for _, sign in found)]
    yield (
        f"**Over all {settings} settings** (preset, protocol and network) the interval of tau lies above zero every "
        f"time for: {', '.join(map(marked, always)) or 'no measure'}. For the others it does not in:"
    )
    rest = {name: [where for where, sign in found if sign != "positive"] for name, found in readings.items()}
    yield "\n".join(f"- {marked(name)}: {'; '.join(where)}." for name, where in rest.items() if where)
