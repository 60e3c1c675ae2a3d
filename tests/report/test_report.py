"""The report: what it says, that it needs nothing else, and that it works in a browser."""

import fcntl
import json
import os
import re
import select
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.report import Point, Scatter, write_report
from minsharp.report.charts import Curve, Reading, bars, curves, number, ranges, scatter, ticks

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
    points = tuple(Point(x, 0.1 * x, f"run {x} {HOSTILE}", x / 5) for x in range(1, 6))
    return write_report(
        tmp_path_factory.mktemp("report") / "report.html",
        title=f"A report on {HOSTILE}",
        minimum=results,
        comparison=ms.compare(model, data, measures=["trace", "minimum sharpness"], rescalings=2),
        robustness=noisy,
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


def test_charts_put_numbers_where_they_belong() -> None:
    drawn = bars("t", [("a", 10.0, 5.0), ("b", 0.0, 2.5)], ("before", "after"))
    widths = [float(w) for w in re.findall(r'<rect [^>]*width="([\d.]+)"', drawn)]
    assert widths[1] == pytest.approx(widths[0] / 2, abs=0.01)
    assert widths[3] == pytest.approx(widths[0] / 4, abs=0.01)
    drawn = ranges("t", [("a", 0.5, 1.0, 2.0)])
    (line,) = re.findall(r'x1="([\d.]+)" x2="([\d.]+)"[^>]*class="range"', drawn)
    middle = float(re.findall(r'cx="([\d.]+)"', drawn)[0])
    assert middle == pytest.approx((float(line[0]) + float(line[1])) / 2, abs=0.01)
    plot = scatter(Scatter("t", "x", "y", (Point(1, 1), Point(10, 2), Point(100, 3)), log_x=True))
    xs = [float(x) for x in re.findall(r'cx="([\d.]+)"', plot)]
    assert xs[1] == pytest.approx((xs[0] + xs[2]) / 2, abs=0.02)
    lines = [Curve("a", (Reading(0.1, 0.5, 0.1), Reading(0.2, 0.4))), Curve("b", (Reading(0.1, 0.6),))]
    assert len(re.findall("data-words=", curves("t", "x", "y", lines))) == 3


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


class Browser:
    """Chromium over a pipe: messages of the DevTools protocol, each ended by a zero byte."""

    def __init__(self, folder: Path):
        assert CHROMIUM is not None
        down, self.up = os.pipe()
        self.down, up = os.pipe()

        def wire() -> None:
            away = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (down, up)]  # the pipes may be 3 and 4 themselves
            os.dup2(away[0], 3)
            os.dup2(away[1], 4)

        flags = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        self.process = subprocess.Popen(
            [CHROMIUM, *flags, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            preexec_fn=wire,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(down)
        os.close(up)
        self.buffer = b""
        self.count = 0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = ""
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command, and wait for its answer; what else arrives is kept."""
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": parameters}
        if getattr(self, "session", ""):
            message["sessionId"] = self.session
        os.write(self.up, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.down], [], [], 30)
            assert ready, "the browser does not answer"
            part = os.read(self.down, 1 << 16)
            assert part, "the browser is gone"
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.as_uri())
        self.run("new Promise(r => document.readyState === 'complete' ? r() : addEventListener('load', () => r()))")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def troubles(self) -> list[dict[str, Any]]:
        """Errors, messages on the console, and dialogues."""
        kinds = (
            "Runtime.exceptionThrown",
            "Runtime.consoleAPICalled",
            "Log.entryAdded",
            "Page.javascriptDialogOpening",
        )
        return [event for event in self.events if event.get("method") in kinds]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)
        os.close(self.up)
        os.close(self.down)


@pytest.fixture
def browser(tmp_path: Path) -> Any:
    if CHROMIUM is None:
        pytest.skip("no Chromium on the path")
    started = Browser(tmp_path)
    yield started
    started.close()


def test_in_a_browser(browser: Browser, written: Path) -> None:
    browser.open(written)
    assert browser.run("document.images.length") == 0
    assert browser.run("document.querySelector('h1').textContent") == f"A report on {HOSTILE}"

    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(paper)
    assert browser.run("document.querySelector('button.theme').checkVisibility()")
    browser.run("document.querySelector('button.theme').click()")
    dark = browser.run(paper)
    assert dark != light
    assert browser.run("document.querySelector('button.theme').textContent") == "Light"
    browser.run("document.querySelector('button.theme').click()")
    assert browser.run(paper) == light

    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.run("delete document.documentElement.dataset.theme")
    assert browser.run(paper) == dark
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])

    shown = "document.querySelector('#experiments .tip').classList.contains('shown')"
    words = "document.querySelector('#experiments .tip').textContent"
    browser.run("document.querySelector('#experiments .plot').scrollIntoView({behavior: 'instant', block: 'center'})")
    place = browser.run(
        "(() => { const b = document.querySelectorAll('#experiments .point')[2].getBoundingClientRect();"
        " return [b.x + b.width / 2, b.y + b.height / 2] })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    assert browser.run(shown)
    assert browser.run(words) == f"run 3 {HOSTILE}: sharpness 3, gap 0.3"
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    assert not browser.run(shown)

    browser.run("document.querySelector('#experiments .plot').focus()")
    browser.press("Home")
    assert browser.run(words) == f"run 1 {HOSTILE}: sharpness 1, gap 0.1"
    browser.press("ArrowRight")
    assert browser.run(words) == f"run 2 {HOSTILE}: sharpness 2, gap 0.2"
    browser.press("ArrowLeft")
    browser.press("ArrowLeft")
    assert browser.run(words) == f"run 5 {HOSTILE}: sharpness 5, gap 0.5"
    browser.press("Escape")
    assert not browser.run(shown)

    for width in (360, 1200):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.troubles() == []
