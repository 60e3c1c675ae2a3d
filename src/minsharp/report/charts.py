"""Charts as marks: pure functions from numbers to the elements of an SVG drawing, coloured by the page's style sheet.

They are drawn here and not by a plotting library because every mark takes part in the page: it is coloured by the
theme, light or dark, it is read by the pointer and by the arrow keys, it prints, and the page needs nothing else.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..experiments.plots import Point, Scatter
from ..text import number as plain_number

Scale = Callable[[float], float]

ROW = 40.0
TIMES = "\u00d7"
COLOURS = 4
"""Of series, in the style sheet."""
WIDTH = 720.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 20.0, 14.0, 48.0
"""Margins of a plot with two axes."""


@dataclass(frozen=True)
class Mark:
    """An element of a drawing: its attributes, its text, and what the pointer reads on it."""

    tag: str
    attributes: Mapping[str, str | float]
    text: str = ""
    hover: str = ""


@dataclass(frozen=True)
class Chart:
    """A drawing with a title and a description for those who cannot see it; without marks, only the description."""

    title: str
    description: str
    height: float = 0.0
    marks: tuple[Mark, ...] = ()
    series: tuple[str, ...] = ()
    """Names for the key, one for each colour."""
    shade_label: str = ""
    y_label: str = ""
    interactive: bool = False
    """Whether its points can be read one by one."""
    width: float = WIDTH
    dashed: str = ""
    """What a dashed line is."""


@dataclass(frozen=True)
class Reading:
    """One mark of a curve, with the error bar around it."""

    x: float
    y: float
    error: float = 0.0


@dataclass(frozen=True)
class Curve:
    """Readings under one name; what was predicted is drawn dashed, in the colour of what it predicts."""

    name: str
    readings: tuple[Reading, ...]
    predicted: bool = False


def number(value: float | None, digits: int = 4) -> str:
    """A number as the page shows it, infinity as a sign.

    >>> number(1234567.0), number(0.00012345), number(None), number(math.inf)
    ('1.235e+06', '0.0001234', '-', '∞')
    """
    return plain_number(value, digits).replace("inf", "∞")


def shortened(text: str, limit: int = 32) -> str:
    """A name that fits beside its row: modules by their first letters, as many as it takes, then its two ends.

    >>> shortened("encoder.layer.11.attention.self.query.weight"), shortened("a_name_without_any_dot_in_all_of_it")
    ('e.l.11.a.self.query.weight', 'a_name_without_…dot_in_all_of_it')
    """
    parts = text.split(".")
    for i, part in enumerate(parts[:-1]):
        if len(".".join(parts)) <= limit:
            break
        parts[i] = part if part.isdigit() else part[:1]
    text = ".".join(parts)
    return text if len(text) <= limit else text[: limit // 2 - 1] + "…" + text[-(limit - limit // 2) :]


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> Mark:
    return Mark("text", {"x": x, "y": y, "text-anchor": anchor, "class": kind}, text)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Mark:
    return Mark("line", {"x1": x1, "x2": x2, "y1": y1, "y2": y2, "class": kind})


def _linear(low: float, high: float, start: float, stop: float) -> Scale:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (stop - start)


def _logarithmic(low: float, high: float, start: float, stop: float) -> Scale:
    line = _linear(math.log(low), math.log(high), start, stop)
    return lambda value: line(math.log(value))


def _padded(low: float, high: float, start: float, stop: float) -> Scale:
    """Linear, with some room at both ends."""
    pad = 0.06 * ((high - low) or abs(high) or 1.0)
    return _linear(low - pad, high + pad, start, stop)


def _margin(names: Iterable[str]) -> float:
    """Room for names at the left."""
    return 24.0 + 6.8 * max([6, *(len(shortened(name)) for name in names)])


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


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


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [m * 10.0**p for p in powers for m in (1, 2, 5) if low * 0.98 <= m * 10.0**p <= high * 1.02]
    whole = [10.0**p for p in powers if low * 0.98 <= 10.0**p <= high * 1.02]
    return whole if len(whole) >= 3 else fine or [low, high]


def bars(title: str, rows: Sequence[tuple[str, float, float]], names: tuple[str, str]) -> Chart:
    """Two bars per row, such as a layer's trace before and after."""
    left, right, top = _margin(name for name, *_ in rows), 84.0, 8.0
    room = WIDTH - left - right
    largest = max(_finite(v for _, a, b in rows for v in (a, b)), default=0.0) or 1.0
    length: Scale = lambda v: max(v / largest * room, 1.0) if math.isfinite(v) else room  # noqa: E731
    marks = [_line(left, top, left, top + ROW * len(rows) - 4, "axis")]
    for i, (name, before, after) in enumerate(rows):
        y = top + i * ROW
        marks.append(_text(left - 12, y + 19, shortened(name), "label", "end"))
        for kind, value, offset, series in (("a", before, 4, names[0]), ("b", after, 18, names[1])):
            place = {"x": left, "y": y + offset, "width": length(value), "height": 12.0, "rx": 1.5}
            marks.append(Mark("rect", {**place, "class": f"bar {kind}"}, hover=f"{name}, {series}: {number(value, 6)}"))
            marks.append(_text(left + length(value) + 6, y + offset + 10, number(value), "value"))
    text = "; ".join(f"{name}: {names[0]} {number(a)}, {names[1]} {number(b)}" for name, a, b in rows)
    return Chart(title, text, top + ROW * len(rows), tuple(marks), series=names)


def lengths(title: str, rows: Sequence[tuple[str, float, str]]) -> Chart:
    """One bar per row, with words at its end."""
    left, right, row, top = _margin(name for name, *_ in rows), 190.0, 26.0, 4.0
    largest = max(_finite(value for _, value, _ in rows), default=0.0) or 1.0
    marks = [_line(left, top, left, top + row * len(rows), "axis")]
    for i, (name, value, words) in enumerate(rows):
        y, length = top + i * row, max(value / largest * (WIDTH - left - right), 1.0)
        place: dict[str, str | float] = {
            "x": left,
            "y": y + 6,
            "width": length,
            "height": 14.0,
            "rx": 1.5,
            "class": "bar b",
        }
        marks.append(_text(left - 12, y + 17, shortened(name), "label", "end"))
        marks.append(Mark("rect", {**place, "class": "bar b"}, hover=f"{name}: {words}"))
        marks.append(_text(left + length + 8, y + 17, words, "value"))
    return Chart(title, "; ".join(f"{name}: {words}" for name, _, words in rows), top + row * len(rows), tuple(marks))


def ranges(title: str, rows: Sequence[tuple[str, float, float, float]]) -> Chart:
    """A line from the least to the largest factor of each row, with its typical one marked; one is in the middle."""
    left, right, row, top = _margin(name for name, *_ in rows), 150.0, 30.0, 6.0
    values = _finite(v for _, a, _, b in rows for v in (a, b))
    reach = max([2.0, *values, *(1 / v for v in values if v > 0)]) * 1.1
    scale = _logarithmic(1 / reach, reach, left, WIDTH - right)
    bottom = top + row * len(rows)
    marks = [_line(scale(1), top, scale(1), bottom, "axis"), *_powers_of_two(scale, reach, top, bottom)]
    for i, (name, low, middle, high) in enumerate(rows):
        y = top + (i + 0.5) * row
        words = number(low, 3) if low == high else f"{number(low, 3)} to {number(high, 3)}"
        dot: dict[str, str | float] = {"cx": scale(middle), "cy": y, "r": 4.5, "class": "mark b"}
        marks.append(_text(left - 12, y + 4, shortened(name), "label", "end"))
        marks.append(_line(scale(low), y, scale(high), y, "range"))
        marks.append(Mark("circle", dot, hover=f"{name}: {words}"))
        marks.append(_text(WIDTH - right + 14, y + 4, words, "value"))
    text = "; ".join(f"{name}: {number(low)} to {number(high)}" for name, low, _, high in rows)
    return Chart(title, text, bottom + 26, tuple(marks))


def _powers_of_two(scale: Scale, reach: float, top: float, bottom: float) -> Iterable[Mark]:
    """Grid lines at powers of two, from 1/reach to reach."""
    step = max(1, math.ceil(math.log2(reach) / 4))
    for power in range(-4 * step, 4 * step + 1, step):
        if 1 / reach <= 2.0**power <= reach:
            x = scale(2.0**power)
            yield _line(x, top, x, bottom, "grid")
            yield _text(x, bottom + 17, _power(power), "tick", "middle")


def _power(power: int) -> str:
    """A power of two in few characters."""
    if abs(power) > 6:
        return "2" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{2**power}{TIMES}" if power >= 0 else f"1/{2**-power}"


def curves(title: str, x_label: str, y_label: str, lines: Sequence[Curve]) -> Chart:
    """Fractions with error bars along a logarithmic axis; zero, where it was measured, stands at its left end."""
    known = _known(lines)
    positive = sorted({reading.x for reading in known if reading.x > 0})
    if not known or not positive:
        return Chart(title, "Nothing was measured.")
    has_zero = any(reading.x == 0 for reading in known)
    x_marks = ([0.0] if has_zero else []) + positive
    return _plotted(title, (x_label, y_label), lines, _along_noise(positive, has_zero), x_marks, share=True)


def plain_curves(title: str, x_label: str, y_label: str, lines: Sequence[Curve], *, share: bool = False) -> Chart:
    """Values with error bars along an axis with even steps; shares are shown in per cent."""
    known = _known(lines)
    if not known:
        return Chart(title, "Nothing was measured.")
    low, high = min(r.x for r in known), max(r.x for r in known)
    along = _padded(low, high, LEFT, WIDTH - RIGHT)
    return _plotted(title, (x_label, y_label), lines, along, ticks(low, high), share=share)


def _known(lines: Sequence[Curve]) -> list[Reading]:
    return [r for line in lines for r in line.readings if math.isfinite(r.y) and math.isfinite(r.x)]


def _plotted(
    title: str, labels: tuple[str, str], lines: Sequence[Curve], along: Scale, x_marks: Sequence[float], *, share: bool
) -> Chart:
    """Curves over a grid; each name has one colour, whether it was measured or predicted."""
    height, known = 300.0, _known(lines)
    least, most = min(r.y - r.error for r in known), max(r.y + r.error for r in known)
    if share:
        least, most = max(least, 0.0), min(most, 1.0)
    up = _padded(least, most, height - BOTTOM, TOP)
    steps = ticks(least, most, 4)
    digits = 0 if len({f"{y:.0%}" for y in steps}) == len(steps) else 1
    told: Callable[[float], str] = (lambda y: f"{y:.{digits}%}") if share else number
    marks = [*_y_axis(up, {y: told(y) for y in steps}), _x_label(labels[0], height)]
    marks += [_text(along(x), height - BOTTOM + 18, number(x, 3), "tick", "middle") for x in x_marks]
    names = tuple(dict.fromkeys(line.name for line in lines))
    for line in lines:
        marks += _curve(names.index(line.name), line, labels[0], along, up, share)
    marks.sort(key=lambda mark: "data-words" in mark.attributes)  # points above all lines
    text = f"{labels[1]} against {labels[0]}. " + "; ".join(
        f"{_full(line)}: " + ", ".join(f"{number(r.x, 3)} gives {told(r.y)}" for r in line.readings) for line in lines
    )
    dashed = "predicted" if any(line.predicted for line in lines) else ""
    more = {"series": names, "y_label": labels[1], "interactive": True, "dashed": dashed}
    return Chart(title, text, height, tuple(marks), **more)  # type: ignore[arg-type]


def _full(line: Curve) -> str:
    return f"{line.name}, predicted" if line.predicted else line.name


def _along_noise(positive: Sequence[float], has_zero: bool) -> Scale:
    """Logarithmic, with zero apart from the rest."""
    low, high = positive[0], max(positive[-1], positive[0] * 2)
    along = _logarithmic(low, high, LEFT + (70 if has_zero else 14), WIDTH - RIGHT - 14)
    return lambda x: LEFT + 20 if x == 0 else along(x)


def _curve(series: int, line: Curve, x_label: str, along: Scale, up: Scale, share: bool) -> Iterable[Mark]:
    """The line, its error bars and its points."""
    readings = sorted(_known([line]), key=lambda r: r.x)
    kind = f"s{series % COLOURS}" + (" predicted" if line.predicted else "")
    trail = " ".join(f"{'L' if j else 'M'}{along(r.x):.1f} {up(r.y):.1f}" for j, r in enumerate(readings))
    yield Mark("path", {"d": trail, "class": f"curve {kind}"})
    for r in readings:
        x, y = along(r.x), up(r.y)
        value, error = (f"{r.y:.1%}", f"{r.error:.1%}") if share else (number(r.y), number(r.error, 2))
        if r.error:
            yield _line(x, up(r.y - r.error), x, up(r.y + r.error), f"error {kind}")
        words = f"{_full(line)}, {x_label} {number(r.x, 3)}: {value}" + (f" ± {error}" if r.error else "")
        yield _point(series, kind, x, y, words)


def _point(series: int, kind: str, x: float, y: float, words: str) -> Mark:
    """A circle, square or diamond, so that colour is not all that tells the series apart."""
    held: dict[str, str | float] = {"class": f"mark point {kind}", "data-words": words}
    if series % 3 == 0:
        return Mark("circle", {"cx": x, "cy": y, "r": 4.5, **held}, hover=words)
    if series % 3 == 1:
        return Mark("rect", {"x": x - 4, "y": y - 4, "width": 8.0, "height": 8.0, **held}, hover=words)
    return Mark("path", {"d": f"M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z", **held}, hover=words)


def _y_axis(up: Scale, labels: Mapping[float, str]) -> Iterable[Mark]:
    """Grid lines across, with their labels at the left."""
    for y, label in labels.items():
        yield _line(LEFT, up(y), WIDTH - RIGHT, up(y), "grid")
        yield _text(LEFT - 8, up(y) + 4, label, "tick", "end")


def _x_label(label: str, height: float) -> Mark:
    return _text((LEFT + WIDTH - RIGHT) / 2, height - 8, label, "axis-label", "middle")


def scatter(plot: Scatter) -> Chart:
    """Points with their values on hover and on the arrow keys."""
    height = 340.0
    known = [p for p in plot.points if math.isfinite(p.x) and math.isfinite(p.y) and (p.x > 0 or not plot.log_x)]
    if not known:
        return Chart(plot.title, "There are no points to show.")
    xs, ys = [p.x for p in known], [p.y for p in known]
    up, along = _padded(min(ys), max(ys), height - BOTTOM, TOP), _along_values(min(xs), max(xs), plot.log_x)
    marks = list(_y_axis(up, {y: number(y, 3) for y in ticks(min(ys), max(ys), 4)}))
    for x in _log_ticks(min(xs), max(xs)) if plot.log_x else ticks(min(xs), max(xs)):
        marks.append(_line(along(x), TOP, along(x), height - BOTTOM, "grid"))
        marks.append(_text(along(x), height - BOTTOM + 18, number(x, 3), "tick", "middle"))
    marks.append(_x_label(plot.x_label, height))
    marks += [_dot(plot, p, along(p.x), up(p.y)) for p in known]
    return Chart(
        plot.title,
        f"{len(known)} points: {plot.y_label} against {plot.x_label}. The table below holds the values.",
        height,
        tuple(marks),
        shade_label=plot.shade_label,
        y_label=plot.y_label,
        interactive=True,
    )


def _along_values(low: float, high: float, logarithmic: bool) -> Scale:
    if not logarithmic:
        return _padded(low, high, LEFT, WIDTH - RIGHT)
    spread = max(high / low, 1.2) ** 0.05
    return _logarithmic(low / spread, high * spread, LEFT, WIDTH - RIGHT)


def _dot(plot: Scatter, point: Point, x: float, y: float) -> Mark:
    """A point, coloured by its shade."""
    name = f"{point.label}: " if point.label else ""
    words = f"{name}{plot.x_label} {number(point.x)}, {plot.y_label} {number(point.y)}"
    shade = 1.0 if point.shade is None else min(max(point.shade, 0.0), 1.0)
    fill = f"fill: color-mix(in oklab, var(--high) {100 * shade:.0f}%, var(--low))"
    place: dict[str, str | float] = {"cx": x, "cy": y, "r": 5.5}
    return Mark("circle", {**place, "class": "point dot", "style": fill, "data-words": words}, hover=words)
