"""Checks of the report's page as an audit makes them: first screen, keyboard, contrast, values."""

from itertools import pairwise

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from normscope.experiments.tour.page import cards
from normscope.experiments.tour.summary import HEADS, LEGEND, headline
from normscope.plots.names import name_of
from normscope.plots.overview import limits_figure
from normscope.report import Report, Section, Table, dataset_downloads, picture_of
from normscope.results import Claim

NORMS = ["none", "batch", "noisy", "l1", "layer"]
LIMITS = np.array([0.085, 2.2, 1.67, 1.75, 0.167])[:, None] * [0.9, 1.0, 1.1]
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}


def tour_numbers():
    """Limits as those of the demo."""
    names = {"limit": 1.0, "stable": 0.95, "unstable": 1.05, "predicted": 0.7, "theory": 0.3}
    values = {name: (("norm", "seed"), factor * LIMITS) for name, factor in names.items()}
    found = xr.Dataset(values, {"norm": NORMS, "seed": [0, 1, 2]})
    return found.assign(recommended=found["limit"] / 2)


def demo():
    """A page with the first screen of the demo, and sections of every kind."""
    results = tour_numbers()
    first = picture_of(limits_figure(results), "Limits.", "Where training breaks.")
    rows = [(name_of(norm), *[0.00123] * (len(HEADS) - 1)) for norm in NORMS]
    summary = Table("The same net", list(HEADS.values()), rows, LEGEND, 3)
    claims = [Claim(f"claim {n}", "a paper", "1.0", [True, False, None][n % 3]) for n in range(6)]
    folded = Table("By seed", ("seed", "limit"), [(n, 0.1 * n) for n in range(60)], folded=True)
    numbers = xr.Dataset({"limit": ("seed", [1.0, 2.0])}, {"seed": [0, 1]})
    sections = [
        Section("How large a learning rate", ["Words."] * 3, [first], [folded], claims),
        Section("Theorems", ["Words."], tables=[summary], folded=True),
        Section(
            "Settings and data",
            ["Words."],
            settings={"width": 200},
            versions={"torch": "2.13.0"},
            command="normscope demo",
            downloads=dataset_downloads(numbers, "demo"),
        ),
    ]
    return Report(
        "What normalization does to a net",
        ["A finding with its numbers, 1.0 and 2.0."] * 5,
        sections,
        summary,
        asked="How large a learning rate can a net take, and why? Here: a fully connected net of 4 "
        "layers of width 200 on digits, 3 seeds.",
        overview=first,
        headline=headline(results),
        cards=cards(results),
    )


@pytest.fixture(scope="module")
def address(served):
    return served(demo())


@pytest.fixture
def opened(browser, address):
    """A function that opens the page in a window of its own."""
    contexts = []

    def open_page(**options):
        contexts.append(browser.new_context(reduced_motion="reduce", **options))
        page = contexts[-1].new_page()
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE])
def test_first_screen_has_headline_cards_and_the_whole_figure(opened, viewport):
    page = opened(viewport=viewport)
    assert (
        "2.2 with BatchNorm, 26 times the limit without" in page.locator(".headline").inner_text()
    )
    assert page.locator(".card").count() == 5
    parts = ["h1", ".headline", ".cards", "#overview svg:visible"]
    boxes = [page.locator(each).first.bounding_box() for each in parts]
    ends = [box["y"] + box["height"] for box in boxes]
    assert ends == sorted(ends)
    assert ends[-1] <= viewport["height"]
    assert boxes[-1]["width"] > 0.85 * min(viewport["width"], 1000)


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE, {"width": 800, "height": 600}])
def test_page_does_not_scroll_sideways_folded_or_not(opened, viewport):
    page = opened(viewport=viewport)
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) == viewport["width"]
    page.evaluate("document.querySelectorAll('main details').forEach(e => { e.open = true; })")
    assert page.evaluate(wide) == viewport["width"]
    if viewport is DESKTOP:
        assert page.eval_on_selector("#summary", "e => e.scrollWidth - e.clientWidth") == 0


def test_headings_have_one_first_rank_and_skip_none(opened):
    ranks = opened().eval_on_selector_all(
        "h1, h2, h3, h4, h5, h6", "all => all.map(e => Number(e.tagName[1]))"
    )
    assert ranks.count(1) == 1
    assert ranks[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(ranks))


FOCUSED = """() => {
  const e = document.activeElement, box = e.getBoundingClientRect();
  return [e.tagName, e.textContent.trim().slice(0, 40), box.top + scrollY, box.width * box.height];
}"""


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE])
def test_keyboard_goes_through_the_page_in_reading_order(opened, viewport):
    page = opened(viewport=viewport)
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        found = page.evaluate(FOCUSED)
        if found[0] == "BODY":
            break
        seen.append(found)
    names = [name for _, name, *_ in seen]
    assert names[0] == "Skip to the content"
    assert all(area > 0 for *_, area in seen)  # nothing hidden takes the focus
    first = next(index for index, each in enumerate(seen) if each[0] == "BUTTON") + 1
    if viewport is DESKTOP:
        assert names[1 : first - 1] == [
            "Summary",
            "How large a learning rate",
            "Theorems",
            "Settings and data",
            "All claims",
        ]
    else:
        assert names[1] == "Contents"
    tops = [top for _, _, top, _ in seen[first:]]
    assert len(tops) > 15
    assert all(after > before - 30 for before, after in pairwise(tops))


def test_summary_opens_by_the_keyboard_and_a_link_opens_what_is_folded(opened):
    page = opened()
    theorems = page.locator("details.part", has=page.locator("h2", has_text="Theorems"))
    assert theorems.get_attribute("open") is None
    theorems.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert theorems.get_attribute("open") == ""
    page.keyboard.press("Enter")
    assert theorems.get_attribute("open") is None
    page.locator(".beside a", has_text="Theorems").click()
    assert theorems.get_attribute("open") == ""
    by_seed = page.locator("#section-1-table-1")
    assert not by_seed.is_visible()
    page.evaluate("location.hash = '#section-1-table-1'")
    by_seed.wait_for(state="visible")
    assert by_seed.evaluate("e => e.tabIndex") == 0  # what scrolls is measured once it is shown


def test_contents_stay_in_view_and_mark_the_section(opened):
    page = opened(viewport=DESKTOP)
    page.locator(".beside a", has_text="All claims").click()
    page.locator(".beside a[aria-current]", has_text="All claims").wait_for()
    assert page.evaluate("scrollY") > 300
    assert page.locator(".beside a[aria-current]").count() == 1
    assert page.locator(".side").bounding_box()["y"] == 0


def test_phone_has_a_menu_that_closes_behind_its_reader(opened):
    page = opened(viewport=PHONE, has_touch=True, is_mobile=True)
    link = page.locator(".menu a", has_text="Theorems")
    assert not link.is_visible()
    page.get_by_text("Contents").click()
    assert link.is_visible()
    link.click()
    assert not link.is_visible()
    page.locator(".menu a[aria-current]", has_text="Theorems").wait_for(state="attached")
    assert page.evaluate("scrollY") > 300
    assert page.locator(".side").bounding_box()["y"] == 0  # the bar stays
    top = page.locator("#section-2").bounding_box()["y"]
    bar = page.locator(".side").bounding_box()["height"]
    assert bar <= top < PHONE["height"]  # the heading is not behind it


PLACE = """() => {
  const svg = [...document.querySelectorAll("#overview svg")].find(e => e.checkVisibility());
  const series = JSON.parse(svg.parentElement.querySelector(".values").textContent);
  const [name, , , [[x, y]]] = series.find(([name]) => name === "BatchNorm, seed 1");
  const matrix = svg.getScreenCTM();
  return [x * matrix.a + matrix.e, y * matrix.d + matrix.f];
}"""


def test_value_stays_after_a_tap_until_another(opened):
    page = opened(viewport=PHONE, has_touch=True, is_mobile=True)
    page.touchscreen.tap(*page.evaluate(PLACE))
    assert page.locator(".tip").inner_text() == "BatchNorm, seed 1: limit 2.2"
    page.touchscreen.tap(*(page.locator("h1").bounding_box()[side] + 5 for side in "xy"))
    assert page.locator(".tip").count() == 0


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE])
def test_value_is_shown_under_the_pointer_and_leaves_with_it(opened, viewport):
    page = opened(viewport=viewport)
    place = page.evaluate(PLACE)
    page.mouse.move(place[0] + 2, place[1] + 2)
    tip = page.locator(".tip")
    assert tip.inner_text() == "BatchNorm, seed 1: limit 2.2"
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= viewport["width"]
    spot = page.locator(".spot").bounding_box()
    assert spot["x"] + spot["width"] / 2 == pytest.approx(place[0], abs=1)
    assert spot["y"] + spot["height"] / 2 == pytest.approx(place[1], abs=1)
    page.mouse.move(2, 2)
    assert tip.count() == 0


def test_figures_have_one_width(browser, served):
    def drawn(width, columns):
        figure = Figure(figsize=(width, 3), layout="constrained")
        figure.subplots(1, columns)
        return picture_of(figure, f"{width}.")

    pictures = [drawn(*each) for each in ((5.0, 1), (6.4, 1), (9.6, 2), (13.0, 4))]
    page = browser.new_page(viewport=DESKTOP)
    page.goto(served(Report("t", ["f"], [Section("s", pictures=pictures)])))
    widths = page.eval_on_selector_all(
        "svg.drawing", "all => all.filter(e => e.checkVisibility()).map(e => e.clientWidth)"
    )
    assert len(widths) == 4
    assert max(widths) - min(widths) <= 1
    page.set_viewport_size(PHONE)
    shown = page.locator("svg:visible")
    assert all(box.bounding_box()["width"] <= PHONE["width"] for box in shown.all())
    page.close()


LETTERS = """() => {
  const channels = (text) => {
    const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 })
      .getContext("2d", { willReadFrequently: true });
    context.fillStyle = text;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const linear = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const paper = light(channels(getComputedStyle(document.body).backgroundColor));
  // matplotlib draws a letter as a use of its shape inside a group that has the colour
  const letters = [...document.querySelectorAll("svg.drawing g > use")].filter(
    (e) => e.parentElement.style.fill && e.checkVisibility());
  return letters.map((e) => {
    const [low, high] = [light(channels(getComputedStyle(e).fill)), paper].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_of_a_figure_have_the_contrast_of_text(opened, scheme):
    ratios = opened(color_scheme=scheme, viewport=DESKTOP).evaluate(LETTERS)
    assert len(ratios) > 50
    assert min(ratios) >= 4.5
