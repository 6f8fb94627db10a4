"""The documentation as its reader meets it: built, opened from disk and over HTTP."""

import html.parser
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import expect

ROOT = Path(__file__).parents[2]
WALKED = (
    "index.html",
    "how_to/own_model.html",
    "concepts/stability_limit.html",
    "concepts/curvature.html",
    "results/index.html",
    "reference/measure.html",
)


class PageParser(html.parser.HTMLParser):
    """Collects the links, pictures, anchors and menu entries of a page."""

    def __init__(self):
        super().__init__()
        self.targets, self.anchors, self.menu = set(), set(), []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if "id" in values:
            self.anchors.add(values["id"])
        for name in ("href", "src"):
            if values.get(name):
                self.targets.add(values[name])
        if tag == "a" and "md-nav__link" in (values.get("class") or ""):
            self.menu.append(values["href"])


def parse(path):
    parser = PageParser()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(params=["disk", "http"])
def address(request, site, serve_folder):
    """The address of the site: a file URL, or one of a server on this machine."""
    if request.param == "disk":
        yield site.as_uri()
    else:
        with serve_folder(site) as served:
            yield served


def test_every_link_picture_and_anchor_exists(site):
    pages = {path: parse(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 50
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                assert parts.scheme in {"http", "https", "data", "mailto"}
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert file.is_file(), f"{path}: {target}"
            if parts.fragment and file in pages:
                known = pages[file].anchors
                assert unquote(parts.fragment) in known, f"{path}: {target}"


def test_menu_is_short_and_has_no_title_twice(site):
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    entries = [line.strip("- \n") for line in text.splitlines() if line.startswith("      - ")]
    entries = [entry for entry in entries if entry.endswith(".md")]
    titles = [entry.rpartition(": ")[0] for entry in entries]
    assert len(titles) == len(set(titles)) <= 28
    headings = []
    for path in (ROOT / "docs").rglob("*.md"):
        first = next(
            line for line in path.read_text(encoding="utf-8").splitlines() if line[:2] == "# "
        )
        headings.append(first)
    assert sorted(headings) == sorted(set(headings))
    assert "concepts/glossary.html" in parse(site / "index.html").menu


def test_reader_walks_the_site_and_searches_it(browser, address):
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    for name in WALKED:
        page.goto(f"{address}/{name}")
        assert page.locator("h1").count() == 1
        loaded = "all => all.every(e => e.complete && e.naturalWidth > 0)"
        assert page.eval_on_selector_all(".md-content img", loaded), name
    page.goto(f"{address}/index.html")
    page.locator("article a", has_text="Stability limit").click()
    expect(page.locator("h1")).to_contain_text("Stability limit")
    field = page.locator("input.md-search__input")
    field.click()
    expect(page.locator(".md-search-result__meta")).to_contain_text("Type to", timeout=90_000)
    field.press_sequentially("covariate shift")
    found = page.locator(".md-search-result__link").first
    expect(found).to_contain_text("ovariate", timeout=90_000)
    found.click()
    expect(page.locator("h1")).to_be_visible()
    assert page.url.startswith(address)
    assert complaints == []
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []
    context.close()


def test_phone_does_not_scroll_sideways(browser, site):
    context = browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True)
    page = context.new_page()
    for name in (*WALKED, "how_to/integrations.html", "research/theorems.html"):
        page.goto(f"{site.as_uri()}/{name}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
    context.close()
