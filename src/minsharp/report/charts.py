"""Charts as inline SVG: pure functions from numbers to markup, coloured by the page's style sheet."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..experiments.plots import Scatter
from .markup import Markup, el, join

Scale = Callable[[float], float]

ROW = 40
TIMES = "\u00d7"
WIDTH = 720


@dataclass(frozen=True)
class Reading:
    """One mark of a curve, with the error bar around it."""

    x: float
    y: float
    error: float = 0.0


@dataclass(frozen=True)
class Curve:
    """Readings under one name."""

    name: str
    readings: tuple[Reading, ...]


def number(value: float | None, digits: int = 4) -> str:
    """A number as people read it.

    >>> number(1234567.0), number(0.00012345), number(None)
    ('1.235e+06', '0.0001234', '-')
    """
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.{digits}g}"


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit // 2 - 1] + "…" + text[-(limit - limit // 2) :]


def _svg(title: str, description: str, height: float, *content: Markup, width: float = WIDTH) -> Markup:
    """A drawing with a title and a description for those who cannot see it."""
    head = join(el("title", title), el("desc", description))
    return el("svg", head, *content, viewbox=f"0 0 {width:g} {height:g}", role="img", aria_label=title, class_="chart")


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> Markup:
    return el("text", text, x=x, y=y, text_anchor=anchor, class_=kind or None)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers between two others.

    >>> ticks(0, 10)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    if not math.isfinite(high - low) or high <= low:
        return [low]
    raw = (high - low) / about
    step = 10.0 ** math.floor(math.log10(raw))
    step *= next(m for m in (1, 2, 2.5, 5, 10) if raw <= m * step * 1.0001)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) + 0.0 for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _linear(low: float, high: float, start: float, stop: float) -> Scale:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (stop - start)


def _logarithmic(low: float, high: float, start: float, stop: float) -> Scale:
    line = _linear(math.log(low), math.log(high), start, stop)
    return lambda value: line(math.log(value))


def _margin(names: Iterable[str]) -> float:
    """Room for names at the left."""
    return 24.0 + 6.8 * max([6, *(min(len(name), 26) for name in names)])


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def bars(title: str, rows: Sequence[tuple[str, float, float]], names: tuple[str, str]) -> Markup:
    """Two bars per row, such as a layer's trace before and after."""
    left, right, top = _margin(name for name, *_ in rows), 84.0, 8.0
    largest = max(_finite(v for _, a, b in rows for v in (a, b)), default=0.0) or 1.0
    scale = _linear(0, largest, 0, WIDTH - left - right)
    marks = []
    for i, (name, before, after) in enumerate(rows):
        y = top + i * ROW
        marks.append(_text(left - 12, y + 19, _short(name, 26), "label", "end"))
        for kind, value, offset, series in (("a", before, 4, names[0]), ("b", after, 18, names[1])):
            size = max(scale(value), 1.0) if math.isfinite(value) else WIDTH - left - right
            hover = el("title", f"{name}, {series}: {number(value, 6)}")
            marks.append(el("rect", hover, x=left, y=y + offset, width=size, height=12.0, rx=1.5, class_=f"bar {kind}"))
            marks.append(_text(left + size + 6, y + offset + 10, number(value), "value"))
    axis = el("line", x1=left, x2=left, y1=top, y2=top + ROW * len(rows) - 4, class_="axis")
    text = "; ".join(f"{name}: {names[0]} {number(a)}, {names[1]} {number(b)}" for name, a, b in rows)
    return join(_key(*names), _svg(title, text, top + ROW * len(rows), axis, *marks))


def _key(*names: str) -> Markup:
    """Which colour and mark is which."""
    items = [
        el("span", el("span", class_=f"swatch s{i}", aria_hidden="true"), name, class_="key-item")
        for i, name in enumerate(names)
    ]
    return el("p", *items, class_="key")


def ranges(title: str, rows: Sequence[tuple[str, float, float, float]]) -> Markup:
    """A line from the least to the largest factor of each row, with its typical one marked; one is in the middle."""
    left, right, row, top = _margin(name for name, *_ in rows), 150.0, 30.0, 6.0
    values = _finite(v for _, a, _, b in rows for v in (a, b))
    reach = max([2.0, *values, *(1 / v for v in values if v > 0)]) * 1.1
    scale = _logarithmic(1 / reach, reach, left, WIDTH - right)
    bottom = top + row * len(rows)
    marks = [el("line", x1=scale(1), x2=scale(1), y1=top, y2=bottom, class_="axis")]
    step = max(1, math.ceil(math.log2(reach) / 4))
    for power in range(-4 * step, 4 * step + 1, step):
        if 1 / reach <= 2.0**power <= reach:
            x = scale(2.0**power)
            marks.append(el("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid"))
            marks.append(_text(x, bottom + 17, _power(power), "tick", "middle"))
    for i, (name, low, middle, high) in enumerate(rows):
        y = top + (i + 0.5) * row
        words = number(low, 3) if low == high else f"{number(low, 3)} to {number(high, 3)}"
        marks.append(_text(left - 12, y + 4, _short(name, 26), "label", "end"))
        marks.append(el("line", x1=scale(low), x2=scale(high), y1=y, y2=y, class_="range"))
        marks.append(el("circle", el("title", f"{name}: {words}"), cx=scale(middle), cy=y, r=4.5, class_="mark b"))
        marks.append(_text(WIDTH - right + 14, y + 4, words, "value"))
    text = "; ".join(f"{name}: {number(low)} to {number(high)}" for name, low, _, high in rows)
    return _svg(title, text, bottom + 26, *marks)


def _power(power: int) -> str:
    """A power of two in few characters."""
    if abs(power) > 6:
        return "2" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{2**power}{TIMES}" if power >= 0 else f"1/{2**-power}"


def curves(title: str, x_label: str, y_label: str, lines: Sequence[Curve], percent: bool = True) -> Markup:
    """Readings with error bars along a logarithmic axis; zero, where it was measured, stands at its left end."""
    left, right, top, bottom, height = 62.0, 20.0, 14.0, 48.0, 300.0
    known = [reading for line in lines for reading in line.readings if math.isfinite(reading.y)]
    positive = sorted({reading.x for reading in known if reading.x > 0})
    if not known or not positive:
        return el("p", "Nothing was measured.", class_="note")
    low, high = positive[0], max(positive[-1], positive[0] * 2)
    has_zero = any(reading.x == 0 for reading in known)
    start = left + (70 if has_zero else 14)
    along = _logarithmic(low, high, start, WIDTH - right - 14)
    at: Scale = lambda x: left + 20 if x == 0 else along(x)  # noqa: E731
    least, most = min(r.y - r.error for r in known), max(r.y + r.error for r in known)
    if percent:
        least, most = max(least, 0.0), min(most, 1.0)
    pad = 0.06 * ((most - least) or abs(most) or 1.0)
    up = _linear(least - pad, most + pad, height - bottom, top)
    steps = ticks(least, most, 4)
    digits = 0 if len({f"{y:.0%}" for y in steps}) == len(steps) else 1
    show: Callable[[float], str] = (lambda v: f"{v:.{digits}%}") if percent else (lambda v: number(v, 3))
    marks = []
    for y in steps:
        marks.append(el("line", x1=left, x2=WIDTH - right, y1=up(y), y2=up(y), class_="grid"))
        marks.append(_text(left - 8, up(y) + 4, show(y), "tick", "end"))
    for x in ([0.0] if has_zero else []) + positive:
        marks.append(_text(at(x), height - bottom + 18, number(x, 3), "tick", "middle"))
    marks.append(_text((left + WIDTH - right) / 2, height - 8, x_label, "axis-label", "middle"))
    points = []
    for i, line in enumerate(lines):
        readings = sorted((r for r in line.readings if math.isfinite(r.y)), key=lambda r: r.x)
        trail = " ".join(f"{'L' if j else 'M'}{at(r.x):.1f} {up(r.y):.1f}" for j, r in enumerate(readings))
        marks.append(el("path", d=trail, class_=f"curve s{i}"))
        for r in readings:
            x, y = at(r.x), up(r.y)
            span = f" ± {r.error:.1%}" if percent else f" ± {number(r.error, 2)}"
            value = f"{r.y:.1%}" if percent else number(r.y)
            words = f"{line.name}, noise {number(r.x, 3)}: {value}{span if r.error else ''}"
            if r.error:
                marks.append(el("line", x1=x, x2=x, y1=up(r.y - r.error), y2=up(r.y + r.error), class_=f"error s{i}"))
            points.append(_mark(i, x, y, words))
    text = f"{y_label} against {x_label}. " + "; ".join(
        f"{line.name}: " + ", ".join(f"{number(r.x, 3)} gives {show(r.y)}" for r in line.readings) for line in lines
    )
    body = _svg(title, text, height, *marks, *points)
    return _interactive(title, join(_key(*(line.name for line in lines)), _upright(y_label), body))


def _mark(series: int, x: float, y: float, words: str) -> Markup:
    """A circle, square or diamond, so that colour is not all that tells the series apart."""
    hover, kind = el("title", words), f"mark point s{series}"
    if series % 3 == 0:
        return el("circle", hover, cx=x, cy=y, r=4.5, class_=kind, data_words=words)
    if series % 3 == 1:
        return el("rect", hover, x=x - 4, y=y - 4, width=8.0, height=8.0, class_=kind, data_words=words)
    path = f"M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z"
    return el("path", hover, d=path, class_=kind, data_words=words)


def _interactive(title: str, body: Markup) -> Markup:
    """A plot whose points can be read with the pointer, or with the arrow keys once it has the focus."""
    tip = el("div", class_="tip", role="status", aria_live="polite")
    label = f"{title}. The arrow keys read the points one by one."
    return el("div", body, tip, class_="plot", tabindex="0", role="group", aria_label=label)


def scatter(plot: Scatter) -> Markup:
    """Points with their values on hover and on the arrow keys."""
    left, right, top, bottom, height = 62.0, 20.0, 14.0, 48.0, 340.0
    known = [p for p in plot.points if math.isfinite(p.x) and math.isfinite(p.y) and (p.x > 0 or not plot.log_x)]
    if not known:
        return el("p", "There are no points to show.", class_="note")
    xs, ys = [p.x for p in known], [p.y for p in known]
    up = _padded(_linear, min(ys), max(ys), height - bottom, top)
    if plot.log_x:
        spread = max(max(xs) / min(xs), 1.2) ** 0.05
        along = _logarithmic(min(xs) / spread, max(xs) * spread, left, WIDTH - right)
        x_ticks = _log_ticks(min(xs), max(xs))
    else:
        along, x_ticks = _padded(_linear, min(xs), max(xs), left, WIDTH - right), ticks(min(xs), max(xs))
    marks = []
    for y in ticks(min(ys), max(ys), 4):
        marks.append(el("line", x1=left, x2=WIDTH - right, y1=up(y), y2=up(y), class_="grid"))
        marks.append(_text(left - 8, up(y) + 4, number(y, 3), "tick", "end"))
    for x in x_ticks:
        marks.append(el("line", x1=along(x), x2=along(x), y1=top, y2=height - bottom, class_="grid"))
        marks.append(_text(along(x), height - bottom + 18, number(x, 3), "tick", "middle"))
    marks.append(_text((left + WIDTH - right) / 2, height - 8, plot.x_label, "axis-label", "middle"))
    for p in known:
        name = f"{p.label}: " if p.label else ""
        words = f"{name}{plot.x_label} {number(p.x)}, {plot.y_label} {number(p.y)}"
        shade = 1.0 if p.shade is None else min(max(p.shade, 0.0), 1.0)
        fill = f"fill: color-mix(in oklab, var(--high) {100 * shade:.0f}%, var(--low))"
        hover = el("title", words)
        marks.append(
            el("circle", hover, cx=along(p.x), cy=up(p.y), r=5.5, class_="point dot", style=fill, data_words=words)
        )
    text = f"{len(known)} points: {plot.y_label} against {plot.x_label}. The table below holds the values."
    legend = None
    if plot.shade_label:
        ramp = el("span", class_="ramp", aria_hidden="true")
        legend = el("p", el("span", "0"), ramp, el("span", "1"), el("span", plot.shade_label), class_="key")
    return _interactive(plot.title, join(legend, _upright(plot.y_label), _svg(plot.title, text, height, *marks)))


def _upright(label: str) -> Markup:
    """What the vertical axis is of, above it."""
    return el("p", label, class_="y-label", aria_hidden="true")


def _padded(make: Callable[[float, float, float, float], Scale], low: float, high: float, a: float, b: float) -> Scale:
    pad = 0.06 * ((high - low) or abs(high) or 1.0)
    return make(low - pad, high + pad, a, b)


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [m * 10.0**p for p in powers for m in (1, 2, 5) if low * 0.98 <= m * 10.0**p <= high * 1.02]
    whole = [10.0**p for p in powers if low * 0.98 <= 10.0**p <= high * 1.02]
    return whole if len(whole) >= 3 else fine or [low, high]
