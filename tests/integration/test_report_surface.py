"""A loss surface in a report, in a real browser: turned, read, sliced, and without scripts."""

import numpy as np
import pytest
import torch
import xarray as xr

import normscope as ns
from normscope.landscape import parts
from normscope.report import dataset_section, render, report_of
from normscope.report.datasets import describe_surface, write_surface_report
from normscope.report.document import Report
from normscope.report.stores import SURFACE_PARTS, SURFACES

HOSTILE = "</div><script>alert(1)</script>"


def surface_dataset(direction="random", points=11):
    x = np.linspace(-1, 1, points)
    loss = 0.5 + np.add.outer(x**2, 3 * x**2)
    loss[0, 0] = np.inf
    one = [1.0, 1.0]
    numbers = {
        "direction": ("axis", [direction, "random"]),
        **dict.fromkeys(("direction_norm", "curvature", "hessian_curvature"), ("axis", one)),
        **dict.fromkeys(("roughness", "width"), ("axis", one)),
        "width_is_bound": ("axis", [False, True]),
        "trajectory": (("checkpoint", "axis"), [[0.5, 0.5], [0.0, 0.0]]),
        "trajectory_distance": ("checkpoint", [0.1, 0.0]),
    }
    return xr.Dataset(
        {"loss": (("alpha", "beta"), loss), "measured": (("alpha", "beta"), loss > 0), **numbers},
        {"alpha": x, "beta": x, "axis": ["alpha", "beta"]},
        {"kind": "loss surface", "statistics": "train", "centre_loss": 0.5},
    )


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "surface.html"
    return write_surface_report(surface_dataset(HOSTILE), path, "A surface").as_uri()


@pytest.fixture
def opened(browser, address):
    """A function that opens the page, and what the browser complained of or asked for."""
    complaints, requests, contexts = [], [], []

    def open_page(**options):
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert {url for url in requests if not url.startswith("data:")} == {address}


def pixels(page):
    return page.evaluate("document.querySelector('.view canvas').toDataURL()")


def centre_of(page):
    canvas = page.locator(".view canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + 0.6 * box["height"]


def test_dragging_and_keys_turn_the_surface(opened):
    page = opened(viewport={"width": 1200, "height": 900})
    before = pixels(page)
    x, y = centre_of(page)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 80, y + 30)
    page.mouse.up()
    turned = pixels(page)
    assert turned != before
    page.locator(".view canvas").first.focus()
    page.keyboard.press("ArrowLeft")
    assert pixels(page) not in (turned, before)


def test_pointer_reads_a_value_of_the_data(opened):
    page = opened(viewport={"width": 1200, "height": 900})
    page.mouse.move(*centre_of(page))
    said = page.locator(".view .said").first.text_content()
    *_, value = said.split("loss ")
    alpha, beta = (float(part.split()[-1]) for part in said.split(": loss")[0].split(", "))
    wanted = surface_dataset()["loss"].sel(alpha=alpha, beta=beta, method="nearest").item()
    assert float(value) == pytest.approx(wanted, rel=1e-3)


def test_sliders_cut_the_surface_and_the_scale_can_be_changed(opened):
    page = opened(viewport={"width": 1200, "height": 900})
    slices = page.locator(".view .slice")
    assert slices.nth(1).get_attribute("aria-label").endswith("at 0")
    slider = page.locator(".view input[type=range]").first
    slider.focus()
    page.keyboard.press("End")
    assert slices.nth(1).get_attribute("aria-label").endswith("at 1")
    before = pixels(page)
    page.locator(".view input[type=checkbox]").first.click()
    assert pixels(page) != before


def test_a_phone_shows_it_without_scrolling_sideways(opened):
    page = opened(viewport={"width": 375, "height": 812})
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    assert page.locator(".view canvas").first.bounding_box()["width"] > 250


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_of_the_weights_and_the_minimum_are_light_in_both_themes(opened, scheme):
    page = opened(color_scheme=scheme)
    strokes = page.eval_on_selector_all(
        "figure svg use", "all => all.map((each) => getComputedStyle(each).stroke)"
    )
    assert strokes.count("rgb(255, 255, 240)") == 2


def test_without_scripts_the_drawing_is_there(opened):
    page = opened(java_script_enabled=False)
    assert page.locator("figure svg").first.is_visible()
    assert page.locator(".view").count() == 0
    assert not page.locator(".surface").first.is_visible()


def test_pages_without_a_surface_do_not_carry_its_script():
    plain = xr.Dataset({"loss": ("step", [1.0, 2.0])})
    pages = [
        render(Report("Page", [], [dataset_section(each, "Section")]))
        for each in (plain, surface_dataset())
    ]
    assert ["class View" in page for page in pages] == [False, True]
    assert "not finite" in pages[1]


def test_file_that_only_claims_to_be_a_surface_is_shown_as_variables():
    whole = surface_dataset()
    for forged in (
        xr.Dataset({"loss": ("alpha", [1.0])}, attrs={"kind": "loss surface"}),
        whole.assign(curvature=("axis", ["a", "b"])),
        whole.assign(width=("other", [1.0])),
        whole.assign_coords(axis=["beta", "alpha"]),
    ):
        assert dataset_section(forged, "Section").pictures == []


@pytest.fixture
def stored(tmp_path):
    """A function that computes a surface and keeps it in a store."""
    torch.manual_seed(0)
    batch = torch.randn(12, 4), torch.randint(3, (12,))
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3)
    )

    def compute(**options):
        return ns.landscape.surface(
            model, "cross_entropy", batch, points=5, store=tmp_path / "s.db", **options
        )

    return compute


def test_surfaces_in_a_store_are_drawn_as_in_their_own_report(stored, tmp_path):
    one, other = stored(), stored(mode="eval")
    again = stored()
    xr.testing.assert_equal(one.dataset, again.dataset)
    found = report_of([tmp_path / "s.db"])
    assert [each.title for each in found.sections] == [
        "Loss surface 2 in s.db",
        "Loss surface 1 in s.db",
    ]
    section, expected = found.sections[1], dataset_section(one.dataset, "")
    assert section.pictures[0].surface == expected.pictures[0].surface is not None
    assert section.paragraphs == expected.paragraphs
    assert section.cards == expected.cards
    assert found.sections[0].paragraphs == describe_surface(other.dataset)
    assert render(found).count('<div class="surface" hidden>') == 2


def test_parts_of_an_interrupted_surface_are_listed_beside_complete_ones(stored, tmp_path):
    stored(dimensions=1)

    def stop(event):
        if event.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stored(extent=2, progress=stop)
    whole, begun = report_of([tmp_path / "s.db"]).sections
    assert whole.title == "Loss surface in s.db"
    assert begun.title == "landscape in s.db"
    assert begun.paragraphs[0] == "s.db holds 1 record: 1 finished."
    assert "completes it" in begun.command_note
    stored(extent=2)
    assert len(report_of([tmp_path / "s.db"]).sections) == 2


def test_the_newest_surfaces_of_a_full_store_are_drawn(stored, tmp_path, monkeypatch):
    monkeypatch.setattr("normscope.report.stores.MOST_PICTURES", 1)
    for extent in (1, 2, 3):
        stored(extent=extent, hessian=False)
    drawn, listed = report_of([tmp_path / "s.db"]).sections
    assert drawn.title == "Loss surface 3 in s.db"
    assert listed.title == "surface in s.db"
    assert len(listed.tables[0].rows) == 2


def test_records_have_the_names_that_a_report_looks_for():
    assert (parts.WHOLE, parts.RECORDS) == (SURFACES, SURFACE_PARTS)
