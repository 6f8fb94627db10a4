"""A report as its reader meets it: in a real browser, opened from disk."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from playwright.sync_api import expect

from normscope.experiments.tour import summary
from normscope.experiments.tour.tour import NORMS
from normscope.plots.names import name_of
from normscope.report import (
    Report,
    Section,
    Table,
    dataset_downloads,
    picture_of,
    write_report,
)
from normscope.results import Claim

HOSTILE = "<script>alert(1)</script>"
DATASET = xr.Dataset({"loss": ("step", [2.0, 0.5])}, {"step": [0, 1]})
PHONE = {"width": 375, "height": 812}


def figure(width=10.0):
    drawn = Figure(figsize=(width, 3))
    axes = drawn.subplots()
    axes.plot(np.arange(20), np.arange(20) ** 2, color="#440154", label="steep")
    axes.imshow(np.arange(6.0).reshape(2, 3), extent=(0, 5, 0, 100), aspect="auto")
    axes.legend()
    return drawn


def whole_report():
    rows = [("b", 10, 0.5, True), ("A", 9, None, False), ("c", None, float("inf"), None)]
    numbers = Table("Numbers", ("name", "count", "share", "good"), rows)
    wide = Table("Wide", [f"column {n}" for n in range(20)], [range(20)] * 40)
    claims = [
        Claim("it holds", "a paper", "1.0 ± 0.1", True),
        Claim("it fails", "a paper", "2.0", False),
        Claim("nobody knows", "a paper", "-", None),
    ]
    section = Section(
        "A sweep with a rather long name of the users own making: " + "x" * 60,
        ["A paragraph."],
        [picture_of(figure(), "A steep line."), picture_of(figure(4.0), "The same, small.")],
        [wide],
        claims,
        {"learning_rate": 0.1, HOSTILE: HOSTILE, "path": "y" * 120},
        {"torch": "2.13.0"},
        "normscope run wei2018/figure1 --scale quick --set gammas=(0.5,1.0) " + "z" * 90,
        3.0,
        dataset_downloads(DATASET, "numbers"),
    )
    second = Section(HOSTILE, ["Another."], [picture_of(figure(), HOSTILE)], [numbers])
    return Report("A report", ["It was seen.", HOSTILE], [section, second], numbers)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    return write_report(whole_report(), path).as_uri()


@pytest.fixture
def opened(browser, address):
    """A function that opens the report; what the browser complained of and asked for is checked."""
    complaints, requests, contexts = [], [], []

    def open_page(**options):
        context = browser.new_context(accept_downloads=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert {url for url in requests if not url.startswith("data:")} == {address}


def column(page, table, number):
    cells = page.locator(f"#{table} tbody tr td:nth-child({number})")
    return cells.all_inner_texts()


def heads(page, table):
    return page.locator(f"#{table} thead th")


def colour(page, what, property_="color"):
    return page.eval_on_selector(what, f"e => getComputedStyle(e).{property_}")


def test_opens_from_disk_with_its_findings_first(opened):
    page = opened(viewport={"width": 1280, "height": 800})
    assert page.title() == "A report"
    assert page.locator("h1").all_inner_texts() == ["A report"]
    for each in ("text=It was seen.", "#overview"):
        assert page.locator(each).first.bounding_box()["y"] < 800
    assert page.locator("#summary").bounding_box()["y"] < 2 * 800


def test_numbers_sort_as_numbers_with_missing_ones_last_both_ways(opened):
    page = opened()
    button = heads(page, "summary").nth(1).locator("button")
    assert column(page, "summary", 2) == ["10", "9", "-"]
    button.click()
    assert column(page, "summary", 2) == ["9", "10", "-"]
    assert heads(page, "summary").nth(1).get_attribute("aria-sort") == "ascending"
    button.click()
    assert column(page, "summary", 2) == ["10", "9", "-"]
    assert heads(page, "summary").nth(1).get_attribute("aria-sort") == "descending"
    assert heads(page, "summary").nth(0).get_attribute("aria-sort") is None


def test_infinity_is_the_largest_and_words_ignore_case(opened):
    page = opened()
    heads(page, "summary").nth(2).locator("button").click()
    assert column(page, "summary", 3) == ["0.5", "inf", "-"]
    heads(page, "summary").nth(0).locator("button").click()
    assert column(page, "summary", 1) == ["A", "b", "c"]


def test_tables_sort_by_the_keyboard(opened):
    page = opened()
    heads(page, "claims-table").first.locator("button").focus()
    page.keyboard.press("Enter")
    assert heads(page, "claims-table").first.get_attribute("aria-sort") == "ascending"
    assert column(page, "claims-table", 1) == ["not reproduced", "reproduced", "undecided"]
    page.keyboard.press("Space")
    assert column(page, "claims-table", 1) == ["undecided", "reproduced", "not reproduced"]


def test_theme_follows_the_system_and_switches(opened):
    page = opened(color_scheme="dark")
    dark = colour(page, "body", "backgroundColor")
    drawn = colour(page, "svg.drawing", "fill")
    button = page.locator("#theme")
    assert button.inner_text() == "Light theme"
    button.click()
    assert button.inner_text() == "Dark theme"
    assert colour(page, "body", "backgroundColor") == "rgb(255, 255, 255)" != dark
    assert colour(page, "svg.drawing", "fill") != drawn


def test_theme_is_remembered_after_a_reload(browser, served):
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(served(whole_report()))
    dark = colour(page, "body", "backgroundColor")
    page.locator("#theme").click()
    page.reload()
    assert colour(page, "body", "backgroundColor") == "rgb(255, 255, 255)" != dark
    context.close()


def test_lines_of_a_drawing_are_seen_in_both_themes(opened):
    strokes = {}
    for scheme in ("light", "dark"):
        page = opened(color_scheme=scheme)
        strokes[scheme] = page.eval_on_selector_all(
            "svg.drawing path", "all => all.map(e => getComputedStyle(e).stroke)"
        )
    assert "rgb(68, 1, 84)" in strokes["light"]
    assert "rgb(68, 1, 84)" not in strokes["dark"]
    assert len(strokes["light"]) == len(strokes["dark"])


def test_downloads_give_the_bytes(opened):
    page = opened()
    page.get_by_text("Data to download (2 files)").click()
    wanted = {each.name: each.content for each in dataset_downloads(DATASET, "numbers")}
    for name, content in wanted.items():
        with page.expect_download() as waiting:
            page.locator(f'a[download="{name}"]').click()
        assert waiting.value.suggested_filename == name
        with pathlib.Path(waiting.value.path()).open("rb") as stream:
            assert stream.read() == content


def test_command_is_copied(opened):
    page = opened()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("button.copy").click()
    page.locator("button.copy", has_text="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == whole_report().sections[0].command


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_does_not_scroll_sideways(opened, scheme):
    page = opened(viewport=PHONE, has_touch=True, is_mobile=True, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    command = page.locator(".command code")
    assert command.text_content() == whole_report().sections[0].command
    assert command.locator(".word").count() == len(command.text_content().split())
    scrolling = page.eval_on_selector_all(
        ".scroll", "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.tabIndex)"
    )
    assert scrolling  # the wide ones scroll inside, and the keyboard reaches them
    assert set(scrolling) == {0}
    smallest = page.eval_on_selector_all(
        "p, li, td, th, dd, dt, figcaption, a",
        "all => Math.min(...all.map(e => parseFloat(getComputedStyle(e).fontSize)))",
    )
    assert smallest >= 14


def test_what_scrolls_sideways_says_so_until_its_end_is_seen(opened):
    page = opened(viewport=PHONE)
    boxes = page.locator(".scroll")
    wide = [box for box in boxes.all() if box.evaluate("e => e.scrollWidth > e.clientWidth")]
    assert 0 < len(wide) < boxes.count()
    hints = "e => [getComputedStyle(e, '::before').content, getComputedStyle(e).maskImage]"
    for box in boxes.all():
        words, fade = box.evaluate(hints)
        sideways = box.evaluate("e => e.scrollWidth > e.clientWidth")
        assert ("scroll sideways" in words, "gradient" in fade) == (sideways, sideways)
    wide[0].evaluate("e => { e.scrollLeft = e.scrollWidth; }")
    expect(wide[0]).not_to_have_attribute("data-more", re.compile(""))
    words, fade = wide[0].evaluate(hints)
    assert "scroll sideways" in words
    assert fade == "none"
    page.set_viewport_size({"width": 2400, "height": 900})
    expect(page.locator("figure .scroll[data-wide]")).to_have_count(0)


def test_phone_shows_wide_figures_panel_by_panel(browser, tmp_path):
    panels = Figure(figsize=(10.2, 3))  # as wide as those of a scope
    for axes in panels.subplots(1, 3):
        axes.plot([1, 2])
    report = Report("t", list("abcde"), [], overview=picture_of(panels, "Three."))
    page = browser.new_page(viewport=PHONE)
    page.goto(write_report(report, tmp_path / "report.html").as_uri())
    places = page.eval_on_selector_all(
        "svg.panel",
        "all => all.map(e => e.getBoundingClientRect()).map(r => [r.left, r.right, r.top])",
    )
    assert len(places) == 3
    assert all(left >= 0 and right <= PHONE["width"] for left, right, _ in places)
    assert places[0][2] < places[1][2] < places[2][2]
    drawn = "all => all.map(e => e.getBBox().width)"
    assert min(page.eval_on_selector_all("svg.panel", drawn)) > 100  # what it uses is there
    shown, whole = page.eval_on_selector(".scroll", "e => [e.clientWidth, e.scrollWidth]")
    assert shown == whole
    order = "all => all.map(e => e.getBoundingClientRect().top)"
    tops = page.eval_on_selector_all(".headline, figure, .finding", order)
    assert len(tops) == 6
    assert tops == sorted(tops)  # no picture between the further findings: they are one list
    page.set_viewport_size({"width": 1280, "height": 800})
    assert page.locator("svg.panel").first.is_hidden()
    assert page.locator("svg.drawing").bounding_box()["width"] > 900
    page.close()


def test_long_table_says_that_there_is_more_until_its_end_is_seen(browser, tmp_path):
    rows = [(number, number**2) for number in range(80)]
    report = Report("t", ["f"], [Section("s", tables=[Table("Long", ("n", "square"), rows)])])
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(write_report(report, tmp_path / "report.html").as_uri())
    box = page.get_by_role("region", name="Long: 80 rows, scroll for more")
    assert box.get_attribute("tabindex") == "0"
    fade = "e => getComputedStyle(e).maskImage"
    assert "gradient" in box.evaluate(fade)
    box.evaluate("e => { e.scrollTop = e.scrollHeight; }")
    expect(page.locator("[data-below]")).to_have_count(0)
    assert box.evaluate(fade) == "none"
    page.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_summary_of_the_demo_fits_a_screen_and_the_page_never_scrolls_sideways(
    browser, tmp_path, width
):
    heads = list(summary.HEADS.values())
    rows = [(name_of(norm), *[0.00123] * (len(heads) - 1)) for norm in NORMS]
    table = Table("The demo", heads, rows, summary.LEGEND, 3)
    report = Report("t", ["f"], [], table, overview=picture_of(figure(12.0), "Wide."))
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(write_report(report, tmp_path / "report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    hidden = page.eval_on_selector("#summary", "e => e.scrollWidth - e.clientWidth")
    assert hidden == 0 if width == 1280 else hidden > 0
    page.close()


@pytest.mark.parametrize("rows", [30, 120])
def test_table_is_whole_or_ends_at_the_border_of_a_row(browser, tmp_path, rows):
    cells = [("word " * (1 + 7 * (number % 5)), number) for number in range(rows)]
    report = Report("t", ["f"], [Section("s", tables=[Table("Long", ("name", "n"), cells)])])
    page = browser.new_page(viewport={"width": 500, "height": 700})
    page.goto(write_report(report, tmp_path / "report.html").as_uri())
    inner, whole, ends = page.eval_on_selector(
        "#section-1-table-1",
        """e => [e.clientHeight, e.scrollHeight, [...e.querySelectorAll("tbody tr")].map(
            row => row.getBoundingClientRect().bottom - e.getBoundingClientRect().top - e.clientTop
        )]""",
    )
    assert (inner < whole) == (rows > 40)
    assert min(abs(inner - end) for end in ends) <= 1
    page.emulate_media(media="print")
    shown = page.eval_on_selector("#section-1-table-1", "e => [e.clientHeight, e.scrollHeight]")
    assert shown[0] == shown[1]
    page.close()


def test_every_drawing_has_a_role_and_a_name(opened):
    page = opened()
    assert page.locator("svg").count() == page.locator("svg[role=img]").count() == 3
    for each in ("A steep line.", "The same, small.", HOSTILE):
        assert page.get_by_role("img", name=each, exact=True).count() == 1


def test_hostile_names_show_as_text(opened):
    page = opened()
    assert page.locator("script").count() == 1
    assert page.locator("h2", has_text=HOSTILE).count() == 1
    assert page.locator("dt", has_text=HOSTILE).count() == 1


CONTRASTS = """() => {
  const channels = (text) => {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 1;
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.fillStyle = text;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const linear = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const paper = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const found = channels(getComputedStyle(e).backgroundColor);
      if (found[3] === 255) return found;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("script, style, svg")) continue;
    const pair = [light(channels(getComputedStyle(element).color)), light(paper(element))];
    const [low, high] = pair.sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), walker.currentNode.data.trim().slice(0, 40)]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_against_its_paper(opened, scheme):
    found = opened(color_scheme=scheme).evaluate(CONTRASTS)
    assert len(found) > 100
    assert not [(ratio, text) for ratio, text in found if ratio < 4.5]


def test_print_is_light_whole_and_without_buttons(opened, tmp_path):
    page = opened(color_scheme="dark", viewport={"width": 800, "height": 1100})
    page.emulate_media(media="print")
    assert colour(page, "body", "backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible()
    assert not page.locator("button.copy").is_visible()
    folded = page.locator("details:not([open]) dd, details:not([open]) .downloads a")
    assert folded.count() > 2
    seen = "all => all.every(e => e.checkVisibility({ contentVisibilityAuto: true }))"
    assert folded.evaluate_all(seen)
    cut = page.eval_on_selector_all(
        ".scroll", "all => all.filter(e => getComputedStyle(e).overflow !== 'visible').length"
    )
    assert cut == 0
    assert "A report" in page.locator("h1").inner_text()
    assert page.pdf(path=tmp_path / "report.pdf").startswith(b"%PDF")


def test_focus_can_be_seen(opened):
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_page_reads_well_without_its_script(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator("#summary").is_visible()
    assert page.locator("button:visible").count() == 0  # none that would do nothing
    assert page.locator("details.part[open] figure").first.is_visible()
    page.get_by_text("Settings and versions").click()
    assert page.locator("dt", has_text="learning_rate").is_visible()
    context.close()


def test_report_of_the_command_opens_too(browser, tmp_path):
    path = tmp_path / "x.nc"
    DATASET.to_netcdf(path, engine="scipy")
    out = tmp_path / "report.html"
    command = [sys.executable, "-m", "normscope", "report", str(path), "-o", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    page = browser.new_page()
    page.goto(out.as_uri())
    assert page.locator("h1").inner_text() == "x.nc"
    page.close()
