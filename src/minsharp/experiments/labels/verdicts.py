"""Plain statements on all runs together, each computed."""

from collections.abc import Iterable, Iterator, Sequence

from ...text import markdown_cell
from .. import published
from ..experiment import Results
from ..statistics import named, ranked
from .networks import LOSS
from .overview import settings, table

PAPERS = ("minimum sharpness", "normalized sharpness")


def verdicts(results: Sequence[Results]) -> Iterator[str]:
    """One table of all settings, and what it says: beside the paper, of the loss alone, and everywhere."""
    everything = table(results)
    yield f"**{everything.title}**"
    yield everything.markdown()
    yield from _listed((*_beside_the_paper(results), *_loss_alone(results), *_everywhere(results)))


def _listed(lines: Iterable[str]) -> Iterator[str]:
    found = [f"- {line}" for line in lines]
    if found:
        yield "\n".join(found)


def _beside_the_paper(results: Sequence[Results]) -> Iterator[str]:
    """The published tau, with the protocol that it was published with: how often our interval has it."""
    fixed = settings([r for r in results if r.rows[0]["protocol"] == "epochs"])
    for measure in PAPERS:
        sides: dict[str, list[str]] = {"agrees": [], "is below": [], "is above": []}
        for place, (r, model) in fixed.items():
            c, known = named(r.analysis.correlations, model, measure), published.correlation(model, measure, "kendall")
            if c is None or known is None:
                continue
            inside = c.kendall.low <= known <= c.kendall.high
            sides["agrees" if inside else "is below" if c.kendall.value < known else "is above"].append(
                f"{markdown_cell(place)} ({c.kendall}; {known:.2f})"
            )
        said = [f"{side} in {'; '.join(places)}" for side, places in sides.items() if places]
        if said:
            yield f"**{measure}** beside the paper (tau with its interval; the published one): {', '.join(said)}."


def _loss_alone(results: Sequence[Results]) -> Iterator[str]:
    """The places that the training loss takes among the measures."""
    places, taus = [], []
    for r, model in settings(results).values():
        loss = named(r.analysis.correlations, model, LOSS)
        order = [c.measure for c in ranked(r.analysis.correlations, model, "kendall")]
        if loss is not None and LOSS in order:
            places.append(f"{order.index(LOSS) + 1} of {len(order)}")
            taus.append(loss.kendall.value)
    if taus:
        often = " and ".join(dict.fromkeys(sorted(places, reverse=True)))
        taken = f"taus from {min(taus):.2f} to {max(taus):.2f}; among the measures, place {often}"
        yield f"**The training loss alone** has {taken}."


def _everywhere(results: Sequence[Results]) -> Iterator[str]:
    """Measures whose interval lies above zero in every setting, and in how many the others' does not."""
    above: dict[str, list[bool]] = {}
    for r in results:
        for c in r.analysis.correlations:
            above.setdefault(c.measure, []).append(c.kendall.low > 0)
    total = max(map(len, above.values()), default=0)
    always = [name for name, found in above.items() if all(found)]
    yield (
        f"**Over all {total} settings** (preset, protocol and network) the interval of tau lies above zero every time "
        f"for: {', '.join(map(markdown_cell, always)) or 'no measure'}."
    )
    rest = [f"{markdown_cell(name)} ({found.count(False)})" for name, found in above.items() if not all(found)]
    if rest:
        yield f"For the others it does not in so many: {', '.join(rest)}."
