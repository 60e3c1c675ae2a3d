"""The report: one HTML file that needs nothing else, to read on a screen or on paper."""

import base64
import hashlib
import math
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..experiments.plots import Scatter
from ..files import write_atomically
from ..measures.minimum import MinimumSharpness
from ..measures.robustness import Measured, NoiseRobustness
from ..measures.verify import Verification
from .charts import TIMES, Curve, Reading, bars, curves, number, ranges, scatter
from .markup import Markup, el, join, table

KINDS = {"hessian": "Hessian", "ggn": "Gauss-Newton matrix", "jacobian": "squared Jacobian"}
SCOPES = {"layer": "one factor per tensor", "neuron": "one factor per neuron"}
NOISES = {
    "absolute": "Absolute noise: every weight moves by sigma",
    "relative": "Relative noise: every weight moves by sigma times the root mean square of its tensor",
}

SHOWN = 40
"""Parameters in a chart; the tables hold all."""

Robustness = Mapping[str, NoiseRobustness | Sequence[NoiseRobustness]]


def write_report(
    path: str | Path,
    *,
    title: str = "How sharp is this minimum?",
    minimum: MinimumSharpness | Sequence[MinimumSharpness],
    comparison: Any | None = None,
    robustness: Robustness | None = None,
    verification: Verification | Mapping[str, Verification] | None = None,
    experiments: Sequence[Scatter] | None = None,
    settings: Mapping[str, object] | None = None,
    story: str = "",
) -> Path:
    """Write one self-contained HTML file: no network, light and dark, and fit for print.

    Args:
        path: where to write; the file appears whole, or not at all.
        title: the heading.
        minimum: one or more results of `minimum_sharpness`, usually one per scope.
        comparison: a result of `compare`: every measure, and its drift under rescaling.
        robustness: results of `noise_robustness` by the name of the network, as in
            ``{"original": [absolute, relative], "flattest": [absolute, relative]}``.
        verification: a result of `verify`, or several by name.
        experiments: scatter plots to show.
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
    if not results or not all(isinstance(result, MinimumSharpness) for result in results):
        raise InputError(f"minimum={minimum!r}: expected a result of minimum_sharpness, or a list of them")
    checks = {"": verification} if isinstance(verification, Verification) else dict(verification or {})
    sections = [
        ("numbers", "The numbers", _numbers(results)),
        ("layers", "Where the curvature sits", _layers(results)),
        ("scales", "The scale factors", _scales(results)),
        ("measures", "Other measures, and what rescaling does to them", _comparison(comparison)),
        ("noise", "Under noise on the weights", _robustness(robustness)),
        ("experiments", "Experiments", _experiments(experiments)),
        ("certificates", "Certificates", _certificates(results, checks)),
        ("settings", "Settings and versions", _settings(results[0], settings)),
    ]
    page = _page(title, story or _story(results), [(i, h, c) for i, h, c in sections if c is not None])
    return write_atomically(path, lambda temporary: temporary.write_text(page, encoding="utf-8"))


def _asset(name: str) -> Markup:
    return Markup(files("minsharp.report").joinpath(name).read_text(encoding="utf-8"))


def _page(title: str, story: str, sections: list[tuple[str, str, Markup]]) -> str:
    style, script = _asset("report.css"), _asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="generator", content="minsharp"),
        el("title", title),
        el("style", style),
    )
    links = [el("li", el("a", heading, href=f"#{name}")) for name, heading, _ in sections]
    header = el(
        "header",
        el("button", "Dark", class_="theme", type="button", hidden=True),
        el("p", "minsharp report", class_="eyebrow"),
        el("h1", title),
        el("p", story, class_="lead"),
        el("nav", el("ul", *links), aria_label="Contents"),
    )
    parts = [
        el("section", el("h2", heading, id=f"{name}-heading"), content, id=name, aria_labelledby=f"{name}-heading")
        for name, heading, content in sections
    ]
    when = datetime.now().astimezone().strftime("%d %B %Y, %H:%M").lstrip("0")
    foot = el("footer", el("p", f"Made with minsharp on {when}. This file needs no network."))
    skip = el("a", "Skip to the numbers", href="#numbers", class_="skip")
    body = el("body", skip, header, el("main", *parts, id="main"), foot, el("script", script))
    return "<!doctype html>\n" + el("html", head, body, lang="en") + "\n"


def _best(results: Sequence[MinimumSharpness]) -> MinimumSharpness:
    return min(results, key=lambda result: result.value)


def _story(results: Sequence[MinimumSharpness]) -> str:
    best = _best(results)
    kind = KINDS.get(best.curvature, best.curvature)
    if not best.trace or best.value >= best.trace * (1 - 1e-9):
        return f"The trace of the {kind} is {number(best.trace)}, and no rescaling of this network lowers it."
    ratio = f"{number(best.trace / best.value, 3)} times" if best.value else "arbitrarily"
    return (
        f"The trace of the {kind} is {number(best.trace)}. The same function can be written with a trace of "
        f"{number(best.value)}: {ratio} flatter, and no rescaling goes lower."
    )


def _figure(name: str, value: str, remark: str) -> Markup:
    return el("div", el("dt", name), el("dd", value, el("span", remark)), class_="figure")


def _numbers(results: Sequence[MinimumSharpness]) -> Markup:
    first = results[0]
    kind = KINDS.get(first.curvature, first.curvature)
    tiles = [_figure("Trace", number(first.trace), f"of the {kind}, as the network is: any rescaling changes it")]
    for result in results:
        remark = f"{SCOPES[result.scope]}; {_gap(result)}"
        tiles.append(_figure(f"Minimum sharpness, {result.scope}", number(result.value), remark))
    best = _best(results)
    if best.value > 0 and math.isfinite(best.trace / best.value):
        tiles.append(
            _figure("Flatter by", f"{number(best.trace / best.value, 3)}{TIMES}", "the same outputs, other weights")
        )
    inexact = [name for name, exact in first.exact.items() if not exact]
    note = None
    if inexact:
        note = el(
            "p",
            f"In {len(inexact)} of {len(first.exact)} parameters the {kind} is not the Hessian: the network is not "
            "piecewise linear in them.",
            class_="note",
        )
    sample = el("p", f"{first.loss} over {first.samples:,} samples.", class_="note")
    return join(el("dl", *tiles, class_="figures"), sample, note)


def _gap(result: MinimumSharpness) -> str:
    if not result.attained:
        return "an infimum, approached but not attained"
    if result.value <= 0 or result.lower_bound <= 0:
        return "exactly zero" if result.value == 0 else "not certified"
    return f"certified to {max(1 - result.lower_bound / result.value, 1e-16):.0e}"


def _drawing(content: Markup) -> Markup:
    return el("figure", el("div", content, class_="drawing"), style="margin: 0")


def _layers(results: Sequence[MinimumSharpness]) -> Markup:
    parts: list[Markup] = [
        el("p", "Each parameter's share of the trace, as the network is and in the flattest network with its outputs.")
    ]
    for result in results:
        rows = [(name, result.before[name], after) for name, after in result.by_parameter.items()]
        heading = f"Scope {result.scope}: {SCOPES[result.scope]}"
        cells = [[name, number(a, 6), number(b, 6), _times(a, b)] for name, a, b in rows]
        total = ["total", number(result.trace, 6), number(sum(b for *_, b in rows), 6), ""]
        columns = ["parameter", "as it is", "flattest", "change"]
        caption = f"Trace of each parameter, scope {result.scope}"
        parts += [el("h3", heading), _drawing(bars(caption, rows[:SHOWN], ("as it is", "flattest")))]
        if len(rows) > SHOWN:
            parts.append(_note(f"The first {SHOWN} of {len(rows)} parameters; the table has them all."))
        parts.append(_folded("The values as a table", table(caption, columns, [*cells, total], total=True)))
    return join(*parts)


def _times(before: float, after: float) -> str:
    return f"{TIMES} {number(after / before, 3)}" if before > 0 else "-"


def _note(text: str) -> Markup:
    return el("p", text, class_="note")


def _folded(summary: str, content: Markup) -> Markup:
    return el("details", el("summary", summary), content)


def _scales(results: Sequence[MinimumSharpness]) -> Markup:
    parts = [
        el(
            "p",
            "What each parameter is multiplied by. The factors cancel along every path through the network, so the "
            "outputs stay; curvature is divided by the factor squared.",
        )
    ]
    for result in results:
        rows = [(name, *_spread(factor)) for name, factor in result.scales.items() if name in result.by_parameter]
        parts.append(el("h3", f"Scope {result.scope}: {SCOPES[result.scope]}"))
        if rows:
            parts.append(_drawing(ranges(f"Range of the factors, scope {result.scope}", rows[:SHOWN])))
            cells = [[name, number(low, 6), number(mid, 6), number(high, 6)] for name, low, mid, high in rows]
            caption = f"Factors of each parameter, scope {result.scope}"
            columns = ["parameter", "least", "geometric mean", "largest"]
            parts.append(_folded("The values as a table", table(caption, columns, cells)))
        else:
            parts.append(el("p", "Nothing can be rescaled.", class_="note"))
        if result.pinned:
            pinned = [[name, why] for name, why in result.pinned.items()]
            parts.append(
                _folded("What stays as it is, and why", table("Pinned", ["parameter", "pinned by"], pinned, words=True))
            )
    return join(*parts)


def _spread(factor: Any) -> tuple[float, float, float]:
    if isinstance(factor, float | int):
        return float(factor), float(factor), float(factor)
    return float(factor.min()), float(factor.double().log().mean().exp()), float(factor.max())


def _comparison(comparison: Any | None) -> Markup | None:
    if comparison is None:
        return None
    rows, failed = [], []
    for row in comparison.rows:
        if row.error:
            failed.append([row.name, row.error])
            continue
        error = "" if row.standard_error is None else f" ± {number(row.standard_error, 2)}"
        drift = "-" if row.drift is None else _drift(row.drift)
        rows.append([row.name, number(row.value) + error, drift, row.invariance, f"{number(row.seconds, 2)} s"])
    columns = ["measure", "value", "drift", "invariant per", "time"]
    text = (
        "Drift is the largest relative change of a measure over random rescalings that keep the function: a number "
        "that drifts says as much about the scales of the weights as about the network."
    )
    parts = [el("p", text), table("Measures of sharpness", columns, rows)]
    if failed:
        parts.append(table("Measures that could not be taken", ["measure", "reason"], failed, words=True))
    return join(*parts)


def _drift(value: float) -> str:
    if not math.isfinite(value):
        return "∞"
    return f"{value:.1%}" if 1e-4 <= value < 10 else f"{value:.1e}"


def _robustness(robustness: Robustness | None) -> Markup | None:
    if not robustness:
        return None
    series = {name: [r] if isinstance(r, NoiseRobustness) else list(r) for name, r in robustness.items()}
    parts: list[Markup] = []
    for noise, words in NOISES.items():
        found = {name: r for name, results in series.items() for r in results if r.noise == noise}
        if found:
            parts += [el("h3", words), *_noise_plots(noise, found)]
    return join(*parts)


def _noise_plots(noise: str, found: Mapping[str, NoiseRobustness]) -> list[Markup]:
    labelled = all(level.accuracy is not None for r in found.values() for level in r.levels)
    what = "accuracy" if labelled else "agreement"

    def reading(sigma: float, measured: Measured | None) -> Reading:
        return (
            Reading(sigma, math.nan, 0.0)
            if measured is None
            else Reading(sigma, measured.mean, measured.standard_error)
        )

    lines = [
        Curve(name, tuple(reading(level.sigma, getattr(level, what)) for level in r.levels))
        for name, r in found.items()
    ]
    trials = next(iter(found.values())).trials
    title = f"{what.capitalize()} under {noise} noise"
    cells = [
        [name, number(v.sigma, 3), _measured(v.accuracy, "%"), _measured(v.agreement, "%"), _measured(v.loss)]
        for name, r in found.items()
        for v in r.levels
    ]
    columns = ["network", "sigma", "accuracy", "agreement", "loss"]
    caption = f"{title}: means and standard errors over {trials} trials"
    return [
        curves(title, f"size of the noise ({noise})", what, lines),
        _folded("The values as a table", table(caption, columns, cells)),
    ]


def _measured(value: Measured | None, unit: str = "") -> str:
    if value is None:
        return "-"
    if unit == "%":
        return f"{value.mean:.1%} ± {value.standard_error:.1%}"
    return f"{number(value.mean)} ± {number(value.standard_error, 2)}"


def _experiments(experiments: Sequence[Scatter] | None) -> Markup | None:
    if not experiments:
        return None
    parts: list[Markup] = []
    for plot in experiments:
        cells = [[p.label or str(i + 1), number(p.x, 6), number(p.y, 6)] for i, p in enumerate(plot.points)]
        parts += [
            el("h3", plot.title),
            el("p", plot.note) if plot.note else Markup(),
            scatter(plot),
            _folded("The values as a table", table(plot.title, ["point", plot.x_label, plot.y_label], cells)),
        ]
    return join(*parts)


def _certificates(results: Sequence[MinimumSharpness], checks: Mapping[str, Verification]) -> Markup:
    rows = [[f"scope {r.scope}", number(r.value, 12), number(r.lower_bound, 12), r.status] for r in results]
    columns = ["minimum", "value", "lower bound", "status"]
    text = (
        "The minimum is a convex problem, and its dual gives a bound from below: between the two numbers nothing is "
        "left to find."
    )
    parts = [el("p", text), table("Minimum and lower bound", columns, rows)]
    for name, verification in checks.items():
        words = (
            "Every claim was measured afresh on the data, and holds."
            if verification.holds
            else ("Every claim was measured afresh on the data, and not all of them hold.")
        )
        cells = [[c.claim, f"{c.error:.1e}", f"{c.allowed:.1e}", _verdict(c.holds)] for c in verification.checks]
        heading = f"Verification, {name}" if name else "Verification"
        parts += [
            el("h3", heading),
            el("p", words, class_="good" if verification.holds else "bad"),
            table("Claims, and the error that rounding allows", ["claim", "error", "allowed", "verdict"], cells),
        ]
    return join(*parts)


def _verdict(holds: bool) -> Markup:
    return el("span", "holds" if holds else "FAILS", class_="good" if holds else "bad")


def _settings(result: MinimumSharpness, settings: Mapping[str, object] | None) -> Markup:
    given: dict[str, object] = {
        "loss": result.loss,
        "samples": f"{result.samples:,}",
        "curvature": KINDS.get(result.curvature, result.curvature),
        "parameters measured": len(result.by_parameter),
        **(settings or {}),
    }
    rows = [[name, str(value)] for name, value in given.items()]
    versions = [[name, value] for name, value in _versions().items()]
    return join(
        table("Settings", ["setting", "value"], rows, words=True),
        table("Versions", ["part", "version"], versions, words=True),
    )


def _versions() -> dict[str, str]:
    from .. import __version__

    found = {"minsharp": __version__}
    for name in ("torch", "numpy", "scipy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return {**found, "Python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
