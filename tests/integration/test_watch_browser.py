"""The live page in a real browser, while stores are written, replaced and deleted."""

import threading

import numpy as np
import pytest
import xarray as xr
from playwright.sync_api import expect

from normscope.results import Store
from normscope.sweeps.diagram import Diagram
from normscope.watch import Board
from normscope.watch.server import Server

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
PHONE = {"width": 390, "height": 844}
PATIENCE = 60_000  # milliseconds; on a busy machine a condition may take long, none takes none


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def watching(browser, path):
    """A function that opens the live page; console messages and foreign requests are errors."""
    complaints, requests, contexts = [], [], []
    with Board([path, path.with_name("later.db")], interval=0.1) as board, Server(board) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

        def open_page(**options):
            context = browser.new_context(**options)
            contexts.append(context)
            page = context.new_page()
            page.set_default_timeout(PATIENCE)
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
            page.on("request", lambda request: requests.append(request.url))
            page.goto(server.url)
            expect(page.locator("#connection")).to_have_text("live", timeout=PATIENCE)
            return page

        yield open_page
        for context in contexts:
            context.close()
        server.shutdown()
        assert complaints == []
        assert set(requests) <= {server.url, f"{server.url}events"}


def see(locator, text):
    expect(locator).to_contain_text(text, timeout=PATIENCE)


def result(loss=0.5):
    values = {"loss": ("step", np.geomspace(2, loss, 5)), "test_loss": loss}
    return xr.Dataset(values, {"step": np.arange(5) * 10})


def add_cells(store, **more):
    return [
        store.add("phase_diagram", {"gamma": gamma, "learning_rate": rate, **more}, 0)
        for gamma in (0.5, 1.0)
        for rate in (0.01, 0.1, 1.0)
    ]


def finish(store, key, loss=0.5, state="finished"):
    store.start(key)
    store.finish(key, result(loss), state)


def pixel(page, column, row, columns=3, rows=2):
    """Colour in the middle of a cell of the diagram, row 0 at the top."""
    return page.eval_on_selector(
        ".grid canvas",
        """(canvas, [x, y]) => {
            const ratio = canvas.width / canvas.clientWidth;
            const width = canvas.clientWidth - 58 - 10, height = canvas.clientHeight - 6 - 40;
            const at = [(58 + width * x) * ratio, (6 + height * y) * ratio];
            const copy = document.createElement("canvas");
            [copy.width, copy.height] = [canvas.width, canvas.height];
            const pen = copy.getContext("2d", { willReadFrequently: true });
            pen.drawImage(canvas, 0, 0);
            return [...pen.getImageData(...at, 1, 1).data].join();
        }""",
        [(column + 0.5) / columns, (row + 0.5) / rows],
    )


def test_page_opens_and_fills_while_a_sweep_writes(watching, path):
    diagram = Diagram(
        {"gamma": [0.5, 1.0], "learning_rate": [0.01, 0.1, 1e6]},
        {"data": "digits", "width": 8, "epochs": 1, "samples": 256},
        seeds=[0],
    )
    with Store(path) as store:
        page = watching()
        see(page.locator(".store").first, "no records yet; a process is writing it")
        sweep = threading.Thread(target=diagram.run, args=(store,))
        sweep.start()
        see(page.locator(".experiment .headline"), "6 of 6 records done")
        sweep.join()
    see(page.locator(".store").first, "no process is writing it")
    see(page.locator(".grid figcaption"), "6 of 6 cells, 2 of them diverged")
    see(page.locator(".key").first, "2 diverged")
    expect(page.locator(".curves .line")).to_have_count(6, timeout=PATIENCE)
    expect(page).to_have_title("100 % · normscope watch", timeout=PATIENCE)


def test_cells_of_the_diagram_change_colour_and_answer_the_pointer(watching, path):
    with Store(path) as store:
        keys = add_cells(store)
        page = watching()
        see(page.locator(".grid figcaption"), "0 of 6 cells")
        assert pixel(page, 0, 1) == pixel(page, 2, 0)  # all are pending
        finish(store, keys[0], 0.25)
        finish(store, keys[5], 9.0, "diverged")
        see(page.locator(".grid figcaption"), "2 of 6 cells, 1 of them diverged")
        expect(page.locator(".grid .scale")).to_be_visible(timeout=PATIENCE)
        colours = {pixel(page, 0, 1), pixel(page, 2, 0), pixel(page, 1, 0)}
        assert len(colours) == 3  # finished, diverged, pending
        box = page.locator(".grid canvas").bounding_box()
        page.mouse.move(box["x"] + 62, box["y"] + box["height"] - 60)
        see(page.locator("#tip"), "gamma 0.5, learning rate 0.01: finished, test loss 0.25")


def test_a_running_scope_is_drawn_step_by_step(watching, path):
    with Store(path) as store:
        key = store.add("scope", {"norm": "batch"}, 0)
        store.start(key)
        page = watching()
        for step in range(2):
            values = {"loss": [1.0 / (1 + step)], "stability_distance": [10 / 7]}
            values |= {"critical_rate": [0.1]}
            named = {name: ("step", value) for name, value in values.items()}
            store.append(key, xr.Dataset(named, {"step": [step]}, {"probes": "stability"}))
            see(page.locator(".scope figcaption"), f"running, step {step}")
        see(page.locator(".gauge"), "at 0.7 of the edge")
        assert page.locator(".track").get_attribute("aria-valuenow") == "0.7"
        expect(page.locator(".panels svg")).to_have_count(3)


def test_labels_of_panels_keep_their_size_on_a_phone(watching, path):
    with Store(path) as store:
        key = store.add("scope", {}, 0)
        store.start(key)
        values = {"loss": ("step", [2.0, 1.0]), "gradient_norm": ("step", [3.0, 3.0])}
        store.append(key, xr.Dataset(values, {"step": [0, 1]}, {"probes": "gradient_norms"}))
        page = watching(viewport=PHONE)
        expect(page.locator(".panels svg")).to_have_count(2, timeout=PATIENCE)
        for svg in page.locator(".panels svg").all():
            expect(svg).to_be_visible(timeout=PATIENCE)
            width, drawn = svg.evaluate("e => [e.clientWidth, e.viewBox.baseVal.width]")
            assert 100 < width < 200  # two side by side
            assert drawn == pytest.approx(width, abs=1)


def test_title_counts_all_stores(watching, path):
    with Store(path) as store, Store(path.with_name("later.db")) as other:
        keys = add_cells(store)
        for key in keys[:3]:
            finish(store, key)
        page = watching()
        expect(page).to_have_title("50 % · normscope watch", timeout=PATIENCE)
        add_cells(other)
        expect(page).to_have_title("25 % · normscope watch", timeout=PATIENCE)
        finish(store, keys[3])
        expect(page).to_have_title("33 % · normscope watch", timeout=PATIENCE)


def test_store_that_is_deleted_and_replaced_is_named_and_recovers(watching, path):
    with Store(path) as store:
        finish(store, store.add("first", {}, 0))
    page = watching()
    see(page.locator("h3"), "first")
    path.unlink()
    see(page.locator(".problem").first, "there is no store at")
    with Store(path) as store:
        store.add("second", {}, 0)
    see(page.locator("h3"), "second")
    expect(page.locator(".problem").first).to_be_hidden(timeout=PATIENCE)


def test_hostile_names_are_text(watching, path):
    with Store(path) as store:
        keys = add_cells(store, **{HOSTILE: HOSTILE})
        add_cells(store, **{HOSTILE: "other"})
        for key in keys[:2]:
            finish(store, key)
        store.start(keys[2])
        store.fail(keys[2], HOSTILE)
        scope = store.add(HOSTILE, {HOSTILE: HOSTILE}, 0)
        store.start(scope)
        values = {"loss": ("step", [1.0]), HOSTILE: (("step", HOSTILE), [[1.0, 2.0]])}
        store.append(scope, xr.Dataset(values, attrs={"probes": HOSTILE}))
        page = watching()
        see(page.locator("h3").nth(1), HOSTILE)
        see(page.locator(".grid h4").first, HOSTILE)
        see(page.locator(".curves .key"), HOSTILE)
        see(page.locator(".scope h4"), HOSTILE)
        page.locator("summary").first.click()
        see(page.locator("dd").first, HOSTILE)
        assert page.locator("main img, main script").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_shows_everything_without_scrolling_sideways(watching, path, scheme):
    with Store(path) as store:
        keys = add_cells(store, model="a_rather_long_name_of_a_model_" + "x" * 80)
        add_cells(store, model="other")
        for key in keys[:4]:
            finish(store, key)
        page = watching(viewport=PHONE, color_scheme=scheme)
        see(page.locator(".experiment .headline"), "4 of 12 records done")
        expect(page.locator(".curves .line")).to_have_count(4, timeout=PATIENCE)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        for box in page.locator("canvas, svg").all():
            assert box.bounding_box()["width"] > 250


def test_theme_follows_the_system_and_switches(watching, path):
    Store(path).close()
    page = watching(color_scheme="dark")
    dark = page.eval_on_selector("body", "e => getComputedStyle(e).backgroundColor")
    page.locator("#theme").click()
    light = page.eval_on_selector("body", "e => getComputedStyle(e).backgroundColor")
    assert (dark, light) == ("rgb(22, 25, 29)", "rgb(255, 255, 255)")
    expect(page.locator("#theme")).to_have_text("Dark theme")


def test_a_page_of_another_origin_cannot_read_the_events(browser, path, serve_folder, tmp_path):
    Store(path).close()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "page.html").write_text("<!DOCTYPE html><title>foreign</title>")
    with Board([path], interval=0.1) as board, Server(board) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        with serve_folder(tmp_path / "foreign") as address:
            context = browser.new_context()
            page = context.new_page()
            page.goto(f"{address}/page.html")
            read = "url => fetch(url).then(a => a.text(), e => 'refused')"
            assert page.evaluate(read, f"{server.url}events") == "refused"
            assert page.evaluate(read, server.url) == "refused"
            page.evaluate(
                """url => new Promise((done) => {
                    const frame = document.createElement("iframe");
                    frame.onload = done;
                    frame.src = url;
                    document.body.append(frame);
                })""",
                server.url,
            )
            assert len(page.frames) == 2
            assert all("normscope watch" not in each.title() for each in page.frames)
            context.close()
        server.shutdown()
