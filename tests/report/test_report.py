"""The report: what it says, that it needs nothing else, and that it works in a browser."""

import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.report import Point, Scatter, write_report
from minsharp.report.charts import Chart, Curve, Reading, bars, curves, number, ranges, scatter, ticks

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = "<img src=x onerror=alert(1)>"
"""A layer's name; module names hold no dots."""


class Tree(HTMLParser):
    """Elements with their attributes, in order, and the text outside of scripts; checks that every tag is closed."""

    VOID = ("meta", "br")

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every section, of a network with a hostile layer."""
    torch.manual_seed(0)
    layers = {"first": nn.Linear(4, 8), "relu": nn.ReLU(), HOSTILE: nn.Linear(8, 3)}
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    data = (torch.randn(24, 4), torch.randint(3, (24,)))
    results = [ms.minimum_sharpness(model, data, scope="layer"), ms.minimum_sharpness(model, data, scope="neuron")]
    flat = ms.rescale(model, results[1].scales)
    sigmas = (0.0, 0.1, 0.5)
    noisy = {
        name: [
            ms.noise_robustness(net, data, sigmas=sigmas, noise="absolute", trials=4),
            ms.noise_robustness(net, data, sigmas=sigmas, noise="relative", trials=4),
        ]
        for name, net in (("as it is", model), (f"flattest {HOSTILE}", flat))
    }
    noisy[HOSTILE] = [ms.noise_robustness(model, data, bits=[2, 4], noise="max")]
    monitor = ms.Monitor(model, data, measures=["trace"])
    for step in range(3):
        monitor(step)
    points = tuple(Point(x, 0.1 * x, f"run {x} {HOSTILE}", x / 5) for x in range(1, 6))
    return write_report(
        tmp_path_factory.mktemp("report") / "report.html",
        title=f"A report on {HOSTILE}",
        minimum=results,
        comparison=ms.compare(model, data, measures=["trace", "minimum sharpness"], rescalings=2),
        robustness=noisy,
        predictions={HOSTILE: [ms.predicted_accuracy(model, data, noise="max", bits=b) for b in (2, 4)]},
        bits=ms.allocate_bits(model, data, budget=4.0),
        history=monitor,
        verification=ms.verify(model, data, results[0]),
        experiments=[Scatter(f"Sharpness {HOSTILE}", "sharpness", "gap", points, "A note", "shade", log_x=True)],
        settings={"file": HOSTILE, HOSTILE: 3},
    )


def test_it_is_one_file_that_fetches_nothing(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    tree = Tree(text)
    assert not re.search(r"https?://|url\(|@import|\bfetch\(|XMLHttpRequest", text)
    assert not any(tag in ("link", "img", "iframe", "object", "embed", "form") for tag, _ in tree.elements)
    for _, attributes in tree.elements:
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
    policy = next(m["content"] for m in tree.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert [p.name for p in written.parent.iterdir()] == ["report.html"]


def test_whatever_comes_from_the_user_is_text(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    assert "<img" not in text
    joined = " ".join(Tree(text).words)
    for words in (f"A report on {HOSTILE}", f"{HOSTILE}.weight", f"Sharpness {HOSTILE}", f"flattest {HOSTILE}"):
        assert words in joined


def test_it_can_be_read_without_seeing_it(written: Path) -> None:
    tree = Tree(written.read_text(encoding="utf-8"))
    assert tree.all("html") == [{"lang": "en"}]
    for landmark in ("header", "nav", "main", "footer", "h1"):
        assert len(tree.all(landmark)) == 1, landmark
    ids = [a["id"] for _, a in tree.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert all((a["href"] or "")[1:] in ids for a in tree.all("a"))
    assert all(a["aria-labelledby"] in ids for a in tree.all("section"))
    assert len(tree.all("caption")) == len(tree.all("table"))
    assert all(cell.get("scope") in ("row", "col") for cell in tree.all("th"))
    drawings = tree.all("svg")
    assert drawings
    assert all(d["role"] == "img" and d["aria-label"] for d in drawings)
    assert len(tree.all("desc")) == len(drawings)
    assert all(p["tabindex"] == "0" and p["aria-label"] for p in tree.all("div") if p.get("class") == "plot")


def test_the_numbers_are_there(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    result = ms.minimum_sharpness(model, torch.randn(16, 4).double())
    text = " ".join(Tree(ms.write_report(tmp_path / "r.html", minimum=result).read_text(encoding="utf-8")).words)
    for value in (f"{result.value:.12g}", f"{result.trace:.6g}", f"{result.scales['0.weight']:.6g}"):
        assert value in text
    for name, after in result.by_parameter.items():
        assert name in text
        assert f"{after:.6g}" in text
    assert result.status in text
    assert torch.__version__.partition("+")[0] in text
    assert "Under noise" not in text


def test_odd_numbers_do_not_break_it(tmp_path: Path) -> None:
    """Zero curvature, factors per neuron, an infimum, failed measures, a single point."""
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    nn.init.zeros_(model[2].weight)  # type: ignore[arg-type]
    for scope in ("layer", "neuron"):
        result = ms.minimum_sharpness(model, torch.randn(8, 4), scope=scope)
        failed = SimpleNamespace(
            name="a", value=None, standard_error=None, seconds=0.1, drift=None, invariance="none", error="no <b>"
        )
        infinite = SimpleNamespace(
            name="b", value=1.0, standard_error=0.1, seconds=0.1, drift=float("inf"), invariance="none", error=None
        )
        path = write_report(
            tmp_path / "r.html",
            minimum=result,
            comparison=SimpleNamespace(rows=[failed, infinite]),
            experiments=[Scatter("one", "x", "y", (Point(1.0, float("nan")), Point(2.0, 3.0)))],
        )
        text = path.read_text(encoding="utf-8")
        Tree(text)
        assert "no &lt;b&gt;" in text
        assert "nan" not in text.lower().replace("minsharp", "")


def values(chart: Chart, kind: str, *names: str) -> list[tuple[Any, ...]]:
    """These attributes of every mark of a class."""
    marks = [mark for mark in chart.marks if kind in str(mark.attributes["class"]).split()]
    return [tuple(mark.attributes[name] for name in names) for mark in marks]


def test_charts_put_numbers_where_they_belong() -> None:
    drawn = bars("t", [("a", 10.0, 5.0), ("b", 0.0, 2.5)], ("before", "after"))
    widths = [width for (width,) in values(drawn, "bar", "width")]
    assert widths[1] == pytest.approx(widths[0] / 2)
    assert widths[3] == pytest.approx(widths[0] / 4)
    drawn = ranges("t", [("a", 0.5, 1.0, 2.0)])
    ((low, high),), ((middle,),) = values(drawn, "range", "x1", "x2"), values(drawn, "mark", "cx")
    assert middle == pytest.approx((low + high) / 2)
    plot = scatter(Scatter("t", "x", "y", (Point(1, 1), Point(10, 2), Point(100, 3)), log_x=True))
    ((left, bottom), (centre, halfway), (right, top)) = values(plot, "dot", "cx", "cy")
    assert centre == pytest.approx((left + right) / 2)
    assert halfway == pytest.approx((bottom + top) / 2)
    assert bottom > top
    lines = [Curve("a", (Reading(0.1, 0.5, 0.1), Reading(0.2, 0.4))), Curve("b", (Reading(0.1, 0.6),))]
    words = [text for (text,) in values(curves("t", "x", "y", lines), "point", "data-words")]
    assert words == ["a, x 0.1: 50.0% ± 10.0%", "a, x 0.2: 40.0%", "b, x 0.1: 60.0%"]


def test_charts_without_numbers_say_so() -> None:
    assert curves("t", "x", "y", [Curve("a", (Reading(0.1, float("nan")),))]).description == "Nothing was measured."
    assert scatter(Scatter("t", "x", "y", (Point(-1.0, 1.0),), log_x=True)).marks == ()


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0.0, 1.0, 4) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert ticks(3.0, 3.0) == [3.0]
    assert number(float("inf")) == "∞"


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ms.InputError, match="expected a result of minimum_sharpness"):
        write_report(tmp_path / "r.html", minimum=[])
    result = ms.minimum_sharpness(nn.Linear(2, 2), torch.randn(3, 2))
    with pytest.raises(ms.InputError, match="there is no folder"):
        write_report(tmp_path / "no" / "r.html", minimum=result)


# In a browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
def page() -> Iterator["Page"]:
    """A page in Chromium, without a network."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on the path")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme="light", offline=True)
        browser.close()


@pytest.fixture
def troubles(page: "Page") -> list[str]:
    """Errors, messages on the console, dialogues, and requests for anything but files."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: found.append(message.text))
    page.on("dialog", lambda dialog: found.append(dialog.message))
    page.on("request", lambda request: None if request.url.startswith("file:") else found.append(request.url))
    return found


def paper(page: "Page") -> str:
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


def test_themes_in_a_browser(page: "Page", troubles: list[str], written: Path) -> None:
    page.goto(written.as_uri())
    assert page.locator("img").count() == 0
    assert page.locator("h1").text_content() == f"A report on {HOSTILE}"
    button, light = page.locator("button.theme"), paper(page)
    assert button.is_visible()
    button.click()
    dark = paper(page)
    assert dark != light
    assert button.text_content() == "Light"
    button.click()
    assert paper(page) == light
    page.evaluate("delete document.documentElement.dataset.theme")
    page.emulate_media(color_scheme="dark")
    assert paper(page) == dark
    assert troubles == []


def test_points_in_a_browser(page: "Page", troubles: list[str], written: Path) -> None:
    page.goto(written.as_uri())
    plot = page.locator("#experiments .plot")
    tip, points = plot.locator(".tip"), plot.locator(".point")
    points.nth(2).hover()
    assert "shown" in (tip.get_attribute("class") or "")
    assert tip.text_content() == f"run 3 {HOSTILE}: sharpness 3, gap 0.3"
    page.mouse.move(2, 2)
    assert "shown" not in (tip.get_attribute("class") or "")
    plot.focus()
    for key, run in (("Home", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("ArrowUp", 5)):
        page.keyboard.press(key)
        assert tip.text_content() == f"run {run} {HOSTILE}: sharpness {run}, gap 0.{run}"
    page.keyboard.press("Escape")
    assert "shown" not in (tip.get_attribute("class") or "")
    assert troubles == []


@pytest.mark.parametrize("width", [360, 1200])
def test_no_width_is_too_small_in_a_browser(width: int, page: "Page", written: Path) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(written.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width


CONTRASTS = """
() => {
  const numbers = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (colour) => colour.slice(0, 3)
    .map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const paper = numbers(getComputedStyle(document.body).backgroundColor);
  const faint = [];
  for (const element of document.querySelectorAll("body *")) {
    const said = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!said || element.closest("script, style, title, desc, .tip, .skip")) continue;
    const style = getComputedStyle(element);
    const found = ratio(numbers(element instanceof SVGElement ? style.fill : style.color), paper);
    if (found < 4.5) faint.push(`${element.tagName} ${found.toFixed(2)}`);
  }
  for (const mark of document.querySelectorAll(".curve, .bar, .mark")) {
    const style = getComputedStyle(mark), open = mark.matches(".curve, .predicted");
    const found = ratio(numbers(open ? style.stroke : style.fill), paper);
    if (found < 3) faint.push(`${mark.getAttribute("class")} ${found.toFixed(2)}`);
  }
  return faint;
}
"""
"""Text against the paper below 4.5 to 1, and marks below 3 to 1: what WCAG's level AA asks for."""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_in_a_browser(theme: Any, page: "Page", troubles: list[str], written: Path) -> None:
    page.emulate_media(color_scheme=theme)
    page.goto(written.as_uri())
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    assert page.evaluate(CONTRASTS) == []
    page.add_style_tag(content=".note { color: var(--faint) !important }")
    assert page.evaluate(CONTRASTS) != []  # that would have been seen
    assert troubles == []
