"""The report: one HTML file that needs nothing else, to read on a screen or on paper."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError
from ..experiments import Results, Scatter
from ..files import write_text
from ..measures.bits import BitAllocation
from ..measures.minimum import MinimumSharpness
from ..measures.verify import Verification
from . import sections as shown
from .allocation import allocation
from .charts import number
from .history import History, told
from .noise import Predictions, Robustness, noise
from .templating import asset, render


class PageSection(NamedTuple):
    """A section of the page: its template's name, its heading, and what the template shows; nothing is left out."""

    name: str
    heading: str
    content: Any


def write_report(
    path: str | Path,
    *,
    title: str = "How sharp is this minimum?",
    minimum: MinimumSharpness | Sequence[MinimumSharpness] = (),
    curvature: shown.Curvature | None = None,
    comparison: Any | None = None,
    robustness: Robustness | None = None,
    predictions: Predictions | None = None,
    bits: BitAllocation | None = None,
    history: History | None = None,
    verification: Verification | Mapping[str, Verification] | None = None,
    experiments: Sequence[Scatter | Results] | None = None,
    settings: Mapping[str, object] | None = None,
    story: str = "",
) -> Path:
    """Write one self-contained HTML file: no network, light and dark, and fit for print.

    Args:
        path: where to write; the file appears whole, or not at all.
        title: the heading.
        minimum: one or more results of `minimum_sharpness`, usually one per scope; none only where there are ``bits``.
        curvature: the trace, diagonal or Gram matrices that the minimum was made of: its standard errors are shown.
        comparison: a result of `compare`: every measure, and its drift under rescaling.
        robustness: results of `noise_robustness` by the name of the network, as in
            ``{"original": [absolute, relative], "flattest": [absolute, relative]}``, of noise or of rounding.
        predictions: results of `predicted_accuracy` by the same names, drawn beside what was measured.
        bits: a result of `allocate_bits`.
        history: a `Monitor`, or its ``frame()``: every measure over the steps.
        verification: a result of `verify`, or several by name.
        experiments: scatter plots to show, or results that `minsharp.experiments.read_results` has read.
        settings: what was measured and how, by name.
        story: an opening sentence; without it, one is made of the numbers.

    >>> import tempfile, torch, minsharp as ms
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> result = ms.minimum_sharpness(model, torch.randn(16, 4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = write_report(f"{folder}/report.html", minimum=result)
    ...     "Minimum sharpness" in written.read_text(encoding="utf-8")
    True
    """
    results = [minimum] if isinstance(minimum, MinimumSharpness) else list(minimum)
    if not (results or bits) or not all(isinstance(result, MinimumSharpness) for result in results):
        raise InputError(f"minimum={minimum!r}: expected a result of minimum_sharpness, or a list of them")
    checks = {"": verification} if isinstance(verification, Verification) else dict(verification or {})
    measures = None if comparison is None else shown.measures(comparison)
    sections = [
        PageSection("numbers", "The numbers", shown.numbers(results, curvature) if results else None),
        PageSection("layers", "Where the curvature sits", shown.layers(results, curvature) if results else None),
        PageSection("scales", "What the flattest network changes", shown.scales(results) if results else None),
        PageSection("measures", "Other measures, and what rescaling does to them", measures),
        PageSection("noise", "Under noise on the weights", noise(robustness, predictions, bits) or None),
        PageSection("bits", "Bits", None if bits is None else allocation(bits)),
        PageSection("history", "While it trained", None if history is None else told(history)),
        PageSection("experiments", "Experiments", shown.experiments(experiments) if experiments else None),
        PageSection("certificates", "Certificates", shown.certificates(results, checks) if results else None),
        PageSection("settings", "Settings and versions", shown.settings(next(iter(results), None), settings)),
    ]
    return write_text(path, _page(title, story or (_story(results) if results else _spent(bits)), sections))


def _page(title: str, story: str, sections: Sequence[PageSection]) -> str:
    """The whole file; its policy lets no script run but ours, and lets nothing be fetched."""
    script = asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render(
        "report.html.j2",
        title=title,
        story=story,
        sections=[section for section in sections if section.content is not None],
        style=asset("report.css"),
        script=script,
        script_hash=f"sha256-{digest}",
        when=datetime.now().astimezone().strftime("%d %B %Y, %H:%M").lstrip("0"),
    )


def _spent(bits: BitAllocation | None) -> str:
    """The opening where there are bits and no minimum."""
    return f"{number(bits.mean_bits, 3)} bits per weight, shared out among the tensors." if bits else ""


def _story(results: Sequence[MinimumSharpness]) -> str:
    best = shown.best_of(results)
    what = f"{shown.quantity_of(best)} of the {shown.kind_of(best)}"
    what = f"The {what[0].lower()}{what[1:]}"
    group = "rescaling or change of basis" if best.scope == "full" else "rescaling"
    if not best.trace or best.value >= best.trace * (1 - 1e-9):
        return f"{what} is {number(best.trace)}, and no {group} of this network lowers it."
    ratio = f"{number(best.trace / best.value, 3)} times" if best.value else "arbitrarily"
    return (
        f"{what} is {number(best.trace)}. The same function can be written with one of "
        f"{number(best.value)}: {ratio} flatter, and no {group} goes lower."
    )
