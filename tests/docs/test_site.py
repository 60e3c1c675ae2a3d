"""Links, anchors and pictures: in the Markdown as it lies in the repository, and in the site as it is built."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import PAGES, ROOT, name, prose

ADDRESS = "https://minsharp.github.io/minsharp/"
WRITTEN = (*sorted(ROOT.glob("*.md")), *(page for page in PAGES if page.parent != ROOT))


def _anchor(heading: str) -> str:
    """The anchor of a heading, as the site and GitHub make it of plain words."""
    plain = re.sub(r"[`*\[\]]|\(http\S*\)", "", heading)
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def _anchors(page: Path) -> set[str]:
    return {_anchor(heading) for heading in re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M)}


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for alt, target in re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", prose(page)):
        parts = urlsplit(target)
        if parts.scheme:
            assert parts.scheme == "https", target
            continue
        place = (page.parent / unquote(parts.path)) if parts.path else page
        assert place.is_file(), f"{name(page)}: {target}"
        if parts.fragment and not alt:
            assert parts.fragment in _anchors(place), f"{name(page)}: {target}"


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_pictures_say_what_they_show(page: Path) -> None:
    for text in re.findall(r"!\[([^\]]*)\]", prose(page)):
        assert text.strip(), name(page)


def _listed(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    inside = nav.values() if isinstance(nav, dict) else nav
    assert isinstance(inside, list | type({}.values()))
    return [path for part in inside for path in _listed(part)]


def test_every_page_is_in_the_navigation_once() -> None:
    yaml = pytest.importorskip("yaml")
    listed = _listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES if page.parent != ROOT)


class _Page(HTMLParser):
    """What a page of the site has and points to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: list[str] = []
        self.headings, self.pictures_without_words, self.language = 0, 0, ""
        self.canonical, self.asked = "", list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attributes}
        self.ids.add(found.get("id", ""))
        self.headings += tag == "h1"
        self.pictures_without_words += tag == "img" and not found.get("alt", "").strip()
        if tag == "html":
            self.language = found.get("lang", "")
        if tag == "link" and found.get("rel") == "canonical":
            self.canonical = found["href"]  # an address that is told, and not asked for
        elif tag in ("a", "link") and "href" in found:
            self._points(tag, found["href"])
        if tag in ("img", "script", "source", "iframe") and "src" in found:
            self._points(tag, found["src"])

    def _points(self, tag: str, target: str) -> None:
        self.targets.append(target)
        if tag != "a" and urlsplit(target).netloc:
            self.asked.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy, as `make docs` builds it."""
    pytest.importorskip("zensical", reason="the site is built where the extra `docs` is installed")
    copy = tmp_path_factory.mktemp("copy")
    for folder in ("docs", "src", "tools"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", copy)
    build = [sys.executable, "-m", "zensical", "build", "--strict"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(build, cwd=copy, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, _Page]:
    """All of the site, with the page that is shown where there is none."""
    found = {path: _Page(path.read_text()) for path in site.rglob("*.html")}
    assert len(found) == len(PAGES)
    assert site / "404.html" in found
    return found


def _place(site: Path, path: Path, target: str) -> Path:
    """The file that a link leads to; 404.html is shown anywhere, so that its links begin at the root of the server."""
    base = urlsplit(ADDRESS).path
    start = site / target.removeprefix(base) if target.startswith(base) else path.parent / target
    found = start.resolve() if target else path
    return found / "index.html" if found.is_dir() else found


def test_the_site_holds_together(site: Path, pages: dict[Path, _Page]) -> None:
    for path, page in pages.items():
        place = path.relative_to(site)
        assert page.language, place
        assert page.headings == 1, place
        assert page.pictures_without_words == 0, place
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            assert path.name != "404.html" or target.startswith(("/", "#")), target
            found = _place(site, path, unquote(parts.path))
            assert found.is_file(), f"{place}: {target}"
            if parts.fragment and found in pages:
                assert unquote(parts.fragment) in pages[found].ids, f"{place}: {target}"


def test_the_site_asks_nothing_of_others(site: Path, pages: dict[Path, _Page]) -> None:
    """No font, script or style from elsewhere: it works offline, and tells nobody who reads it."""
    for path, page in pages.items():
        assert page.asked == [], path.relative_to(site)
        assert 'data-md-component="source"' not in path.read_text()  # for it the theme would ask GitHub


def test_the_site_knows_its_address(site: Path, pages: dict[Path, _Page]) -> None:
    """That of pyproject.toml: in the pages, and in the map of them that search engines read."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Documentation"] == ADDRESS
    places = {path: path.parent.relative_to(site).as_posix() for path in pages if path.name == "index.html"}
    expected = {path: ADDRESS if place == "." else f"{ADDRESS}{place}/" for path, place in places.items()}
    assert {path: page.canonical for path, page in pages.items() if path in expected} == expected
    assert pages[site / "404.html"].canonical == ""
    listed = re.findall(r"<loc>(.*?)</loc>", (site / "sitemap.xml").read_text())
    assert sorted(listed) == sorted(expected.values())
    assert all(urls["Source"] in page.targets for page in pages.values())
