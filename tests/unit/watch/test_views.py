"""What a board shows of stores, compared with what was written into them."""

import io
import itertools
import json
import math
import threading

import numpy as np
import pytest
import xarray as xr

from normscope.results import Store
from normscope.watch import Board
from normscope.watch.gauge import gauge_of
from normscope.watch.grids import grids_of
from normscope.watch.reader import Reader, seconds_left
from normscope.watch.records import DIVERGED, FINISHED, PENDING, RUNNING
from normscope.watch.series import MOST_POINTS, Line, Series
from normscope.watch.terminal import read_once, show, summary

GAMMAS, RATES = (0.5, 1.0), (0.01, 0.1, 1.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


def result(loss=0.5):
    values = {"loss": ("step", [2.0, 1.0, loss]), "test_loss": loss}
    return xr.Dataset(values, {"step": [0, 10, 20]})


def add_cells(store, experiment="phase_diagram", seeds=(0,), **more):
    return {
        (gamma, rate, seed): store.add(
            experiment, {"gamma": gamma, "learning_rate": rate, **more}, seed
        )
        for gamma in GAMMAS
        for rate in RATES
        for seed in seeds
    }


def finish(store, key, loss=0.5, state="finished"):
    store.start(key)
    store.finish(key, result(loss), state, seconds=2.0)


def parts_of(message):
    return {part["name"]: part for part in message["parts"]}


def read_all(reader):
    while reader.read() or reader.is_behind:
        pass


def test_diagram_has_the_states_and_losses_of_the_records(path):
    with Store(path) as store:
        keys = add_cells(store)
        finish(store, keys[0.5, 0.01, 0], 0.25)
        finish(store, keys[1.0, 1.0, 0], 9.0, "diverged")
        store.start(keys[0.5, 0.1, 0])
        reader = Reader(path)
        read_all(reader)
        (grid,), more = grids_of(reader.experiments["phase_diagram"])
        reader.close()
    assert (grid.rates, grid.setting, grid.values, more) == (RATES, "gamma", GAMMAS, 0)
    assert grid.cells.tolist() == list(range(6))
    assert grid.states.tolist() == [FINISHED, RUNNING, PENDING, PENDING, PENDING, DIVERGED]
    assert grid.losses[0] == 0.25
    assert np.isnan(grid.losses[1:]).all()


def test_cells_of_an_interrupted_sweep_are_pending(path):
    with Store(path) as store:
        keys = add_cells(store)
        finish(store, keys[0.5, 0.01, 0], 0.25)
        store.start(keys[0.5, 0.1, 0])
    experiment, grid, *_ = read_once([path])["parts"][1:]
    assert experiment["counts"]["running"] == 0
    assert grid["cells"]["states"] == [FINISHED, *[PENDING] * 5]


def test_cells_of_several_seeds_have_their_mean_loss_and_any_divergence(path):
    with Store(path) as store:
        keys = add_cells(store, seeds=(0, 1))
        finish(store, keys[0.5, 0.01, 0], 0.25)
        finish(store, keys[0.5, 0.01, 1], 0.75)
        finish(store, keys[0.5, 0.1, 0], 0.5)
        finish(store, keys[0.5, 1.0, 0], 0.5)
        finish(store, keys[0.5, 1.0, 1], 5.0, "diverged")
        reader = Reader(path)
        read_all(reader)
        (grid,), _ = grids_of(reader.experiments["phase_diagram"])
        reader.close()
    assert grid.losses[:2].tolist() == [0.5, 0.5]
    assert grid.states.tolist()[:3] == [FINISHED, FINISHED, DIVERGED]
    assert grid.done.tolist() == [2, 1, 2, 0, 0, 0]
    assert grid.runs.tolist() == [2] * 6


def test_other_settings_make_further_diagrams_with_their_names(path):
    with Store(path) as store:
        for norm in ("batch", "none"):
            add_cells(store, norm=norm)
        store.add("rates", {"learning_rate": 0.1}, 0)
        store.add("rates", {"learning_rate": 0.2}, 0)
        store.add("other", {"width": 3}, 0)
        reader = Reader(path)
        read_all(reader)
        found = {name: grids_of(records)[0] for name, records in reader.experiments.items()}
        reader.close()
    assert [grid.title for grid in found["phase_diagram"]] == ["norm batch", "norm none"]
    (line,) = found["rates"]
    assert (line.setting, line.cells.tolist()) == (None, [0, 1])
    assert found["other"] == []


def test_a_later_revision_replaces_a_cell_and_does_not_count_as_a_seed(path):
    with Store(path) as store:
        for revision, loss in ((2, 0.25), (1, 4.0)):  # the higher counts, whichever came first
            for rate in RATES:
                key = store.add("e", {"learning_rate": rate}, 0, revision)
                finish(store, key, loss)
        newest = store.add("e", {"learning_rate": 0.1}, 0, 3)
        reader = Reader(path)
        read_all(reader)
        (grid,), _ = grids_of(reader.experiments["e"])
        reader.close()
    assert newest
    assert grid.runs.tolist() == [1, 1, 1]
    assert grid.states.tolist() == [FINISHED, PENDING, FINISHED]
    assert grid.losses[[0, 2]].tolist() == [0.25, 0.25]


def test_a_view_gets_only_the_cells_that_changed(path):
    with Store(path) as store:
        keys = add_cells(store)
        with Board([path], interval=0.02) as board:
            first = wait_for(board, lambda parts: "s0.e0.g0" in parts)
            grid = parts_of(first)["s0.e0.g0"]["cells"]
            assert grid["axes"]["rates"] == list(RATES)
            assert grid["cells"] is None  # all, in order
            version = first["version"]
            finish(store, keys[1.0, 0.1, 0], 0.125)
            cells = {}
            while cells.get(4) != (FINISHED, 0.125):
                news = board.wait(version, 60)
                version = news["version"]
                part = parts_of(news).get("s0.e0.g0", {}).get("cells")
                if part:
                    assert "axes" not in part
                    values = zip(part["states"], part["losses"], strict=True)
                    cells.update(zip(part["cells"], values, strict=True))
            assert set(cells) == {4}


def wait_for(board, condition):
    """Return the first whole message whose parts meet the condition."""
    version = 0
    while True:
        news = board.wait(version, 60)
        assert news is not None, "nothing came for a minute"
        version = news["version"]
        whole = board.wait(0, 60)
        if condition(parts_of(whole)):
            return whole


def test_board_waits_for_a_store_and_names_a_deleted_one_and_recovers(path):
    with Board([path], interval=0.02) as board:
        whole = wait_for(board, lambda parts: True)
        assert parts_of(whole)["s0"]["words"] == "waiting for the store to be created"
        assert parts_of(whole)["s0"]["problem"] == ""
        assert "waiting for the store to be created" in summary(whole)
        with Store(path) as store:
            finish(store, store.add("e", {}, 0))
            wait_for(board, lambda parts: "s0.e0" in parts and parts["s0"]["at_work"])
        wait_for(board, lambda parts: not parts["s0"]["at_work"])
        path.unlink()
        whole = wait_for(board, lambda parts: "there is no store" in parts["s0"]["problem"])
        assert parts_of(whole)["s0.e0"]["counts"]["finished"] == 1  # what was read last
        with Store(path) as store:
            store.add("another", {}, 0)
        whole = wait_for(board, lambda parts: parts.get("s0.e0", {}).get("title") == "another")
        assert parts_of(whole)["s0"]["problem"] == ""


def test_several_stores_are_followed_and_one_does_not_hold_up_the_other(path, tmp_path):
    with Store(path) as store, Board([path, tmp_path / "other.db"], interval=0.02) as board:
        finish(store, store.add("e", {}, 0))
        with Store(tmp_path / "other.db") as other:
            store.add("e", {}, 1)
            other.add("f", {}, 0)
            records, version = {}, 0
            while records.get("s0.e0") != 2 or records.get("s1.e0") != 1:
                message = board.wait(version, seconds=60)
                assert message is not None
                version = message["version"]
                for name, part in parts_of(message).items():
                    if part["kind"] == "experiment":
                        records[name] = sum(part["counts"].values())


def test_board_shows_a_file_that_is_no_store_in_words(path):
    path.write_text("not a database, but long enough to be one" * 20)
    with Board([path], interval=0.02) as board:
        whole = wait_for(board, lambda parts: parts["s0"]["problem"])
    assert "is not a store of normscope" in parts_of(whole)["s0"]["problem"]


def test_running_scope_is_followed_step_by_step(path):
    with Store(path) as store, Board([path], interval=0.02) as board:
        key = store.add("scope", {"norm": "batch"}, 0)
        store.start(key)
        for step in range(3):
            norms = ("step", "layer"), [[1.0, 2.0 + step, 3.0]]
            values = {"loss": ("step", [1.0 / (step + 1)]), "gradient_norm": norms}
            distance = 2.0 if step < 2 else math.nan  # not measured at the last step
            values |= {"stability_distance": ("step", [distance])}
            layers = {"step": [10 * step], "layer": ["a", "b", "c"]}
            store.append(key, xr.Dataset(values, layers, {"probes": "gradient_norms"}))
            done = step + 1
            whole = wait_for(board, lambda parts, done=done: steps_of(parts) == done)
        (scope,) = (part for part in whole["parts"] if part["kind"] == "scope")
    panels = {each["variable"]: each for each in scope["panels"]}
    assert panels["loss"]["steps"] == [0, 10, 20]
    assert panels["gradient_norm"]["low"] == [1.0, 1.0, 1.0]
    assert panels["gradient_norm"]["mean"] == [2.0, 2.333, 2.667]
    assert panels["gradient_norm"]["high"] == [3.0, 3.0, 4.0]
    assert panels["gradient_norm"]["over"] == "layers"
    assert scope["words"] == "running, step 20, loss 0.333"
    assert scope["gauge"]["share"] == 0.5


def steps_of(parts):
    found = [part for part in parts.values() if part["kind"] == "scope"]
    return len(found[0]["panels"][0]["steps"]) if found else 0


def test_an_interrupted_attempt_begins_a_new_curve(path):
    with Store(path) as store:
        key = store.add("e", {}, 0)
        store.start(key)
        store.append(key, result().drop_vars("test_loss"))
        reader = Reader(path)
        read_all(reader)
        assert reader.series["e"][1].lines["loss"].steps == [0, 10, 20]
        store.fail(key, "out of memory")
        read_all(reader)
        assert reader.experiments["e"].errors == {0: "out of memory"}
        store.start(key)
        store.append(key, result().drop_vars("test_loss").isel(step=[0]))
        read_all(reader)
        assert reader.series["e"][1].lines["loss"].steps == [0]
        reader.close()


def test_messages_are_strict_json_whatever_was_measured(path):
    with Store(path) as store:
        for rate in (0.1, 0.2):
            key = store.add("e", {"learning_rate": rate}, 0)
            store.start(key)
            values = {"loss": ("step", [1.0, math.inf, math.nan]), "test_loss": math.nan}
            store.finish(key, xr.Dataset(values, {"step": [0, 1, 2]}), "diverged")
        failed = store.add("e", {"learning_rate": 0.3}, 0)
        store.start(failed)
        store.fail(failed, "no memory")
    message = read_once([path])
    json.dumps(message, allow_nan=False)
    parts = parts_of(message)
    assert parts["s0.e0"]["failures"] == [
        {"record": "learning rate 0.3, seed 0", "error": "no memory"}
    ]
    assert parts["s0.e0"]["words"].startswith("3 of 3 records done, 2 diverged, 1 failed, ")
    assert [line["mean"] for line in parts["s0.e0.c"]["lines"]] == [[1.0, None]] * 2


def test_numbers_that_are_not_finite_are_null_in_every_part(path):
    with Store(path) as store:
        key = store.add("e", {"learning_rate": 0.1}, 0)
        store.start(key)
        steps = {"step": [0.0, math.nan, math.inf]}
        values = {"loss": ("step", [3.0, 2.0, 1.0]), "stability_distance": ("step", [0.0] * 3)}
        store.append(key, xr.Dataset(values, steps, {"probes": "stability"}))
        store.finish(key, xr.Dataset(values, steps, {"probes": "stability"}), seconds=math.inf)
    message = read_once([path])
    json.dumps(message, allow_nan=False)
    parts = parts_of(message)
    assert parts["s0"]["problem"] == ""
    assert parts["s0.e0"]["seconds_per_record"] is None
    assert parts["s0.e0.r1"]["panels"][0]["steps"] == [0.0]


def test_content_that_cannot_be_sent_is_named(path, monkeypatch):
    with Store(path) as store:
        store.add("e", {}, 0)
    monkeypatch.setattr("normscope.watch.board._notes", lambda *_: iter(["", {1}]))
    problem = parts_of(read_once([path]))["s0"]["problem"]
    assert problem.startswith("its content cannot be shown (TypeError: ")


def test_a_second_failure_replaces_the_first(path):
    with Store(path) as store:
        key = store.add("e", {}, 0)
        with Board([path], interval=0.01) as board:
            for error in ("no memory", "no disk"):
                store.start(key)
                store.fail(key, error)
                seen = []
                while [each["error"] for each in seen] != [error]:
                    message = board.wait(0, seconds=60)
                    seen = parts_of(message).get("s0.e0", {"failures": []})["failures"]


def test_a_closed_pipe_ends_the_terminal_of_an_idle_store(path, monkeypatch):
    class Pipe(io.StringIO):
        def flush(self):
            if self.getvalue().count("no records yet") > 1:
                raise BrokenPipeError

    Store(path).close()
    monkeypatch.setattr("normscope.watch.terminal._PIPED", 0.01)
    monkeypatch.setattr("sys.stdout", Pipe())
    with Board([path]) as board, pytest.raises(BrokenPipeError):
        show(board)


def test_records_with_any_parameters_are_shown(path):
    odd = {"a": [1, {"b": None}], "learning_rate": 10**400, "c": True}
    with Store(path) as store:
        store.add("e", odd, 0)
        store.add("e", {"learning_rate": 0.1, "c": "x" * 5000}, -5)
        store.add("e", {}, 1)
    parts = parts_of(read_once([path]))
    assert parts["s0"]["problem"] == ""
    assert parts["s0.e0"]["counts"]["pending"] == 3


def test_long_lists_are_not_in_the_name_of_a_record(path):
    with Store(path) as store:
        for part in range(2):
            store.add("landscape", {"part": part, "axes": [1, part], "points": [part] * 50}, 0)
    reader = Reader(path)
    read_all(reader)
    assert reader.experiments["landscape"].describe(1) == "axes [1,1], part 1, seed 0"


def test_long_series_are_thinned_and_keep_their_ends():
    line = Line()
    for start in range(0, 10_000, 100):
        steps = np.arange(start, start + 100)
        line.extend(steps, steps[:, None] / 10.0)
    assert len(line.steps) <= MOST_POINTS
    assert (line.steps[0], line.steps[-1], line.last) == (0, 9999, 999.9)
    sent = line.payload()
    assert (sent["steps"][0], sent["steps"][-1]) == (0, 9999)
    assert len(sent["steps"]) <= 301


def test_lowest_and_highest_values_are_one_band():
    series = Series(1, has_result=False)
    series.lines |= {"own_low": Line(), "own_high": Line()}
    for name, value in (("own_low", 1.0), ("own_high", 3.0)):
        series.lines[name].extend(np.arange(2), np.full((2, 1), value))
    (panel,) = series.panels()
    assert panel["title"] == "own, lowest to highest"
    assert (panel["low"], panel["high"]) == ([1.0, 1.0], [3.0, 3.0])


@pytest.mark.parametrize(
    ("recent", "share", "words"),
    [
        ({"stability_distance": [8.0, 0.5, 0.5]}, 2.0, "at 2 of the edge; unstable"),
        ({"stability_distance": [0.0]}, None, "no critical rate"),
        ({"stability_distance": [5.0], "loss": [1.0, math.nan]}, None, "the loss is not finite"),
        (
            {
                "stability_distance": [10.0],
                "critical_rate": [1.0],
                "critical_rate_error": [math.inf],
            },
            0.1,
            "at most 0.1 of the edge",
        ),
        (
            {"stability_distance": [10.0], "sharpness": [30.0], "sharpness_threshold": [40.0]},
            0.75,
            "sharpness 30 (edge 40)",
        ),
    ],
)
def test_gauge_has_the_share_and_the_words_of_the_scope(recent, share, words):
    found = gauge_of(recent)
    assert found["share"] == share
    assert words in found["words"]
    assert found["over"] == (share == 2 or "not finite" in words)


@pytest.mark.parametrize("recent", [{}, {"critical_rate": [1.0]}, {"stability_distance": []}])
def test_there_is_no_gauge_before_the_probe_has_measured(recent):
    assert gauge_of(recent) is None


def test_time_left_is_that_of_the_present_pace(path):
    with Store(path) as store:
        keys = [store.add("e", {"n": n}, 0) for n in range(10)]
        for key in keys[:4]:
            finish(store, key)
        reader = Reader(path)
        read_all(reader)
        reader.close()
    records = reader.experiments["e"]
    for position, started in enumerate((-5000.0, 0.0, 10.0, 20.0)):
        records.started[position] = started  # the first before a pause
    assert seconds_left(records, now=30.0) == pytest.approx(6 / (3 / 30))
    assert seconds_left(records, now=500.0) is None  # a pause now


def test_summary_is_plain_text_without_control_characters(path):
    with Store(path) as store:
        keys = add_cells(store, experiment="\x1b[31mred\n[bold]")
        finish(store, keys[0.5, 0.01, 0])
        finish(store, keys[1.0, 1.0, 0], 5.0, "diverged")
    text = summary(read_once([path]))
    assert "\x1b" not in text
    assert "?[31mred?[bold]" in text
    assert "  1 ..x" in text
    assert "0.5 ■.." in text


def test_hostile_names_of_settings_and_variables_are_plain_text_in_a_terminal(path):
    hostile = "\x1b]0;title\x07\u202e\r\n[bold]"
    with Store(path) as store:
        for setting, rate in itertools.product((1.0, 2.0), RATES):
            parameters = {hostile: setting, "learning_rate": rate}
            finish(store, store.add(hostile, parameters, 0))
        key = store.add("scope", {}, 0)
        store.start(key)
        values = {"loss": ("step", [1.0, 2.0]), hostile: ("step", [1.0, 2.0])}
        store.finish(key, xr.Dataset(values, {"step": [0, 1]}, {"probes": "own"}))
    message = read_once([path])
    assert {part["kind"] for part in message["parts"]} == {
        "store", "experiment", "grid", "curves", "scope"
    }  # fmt: skip
    text = summary(message)
    assert not any(each in text for each in "\x1b\x07\u202e\r")
    shown = "?]0;title????[bold]"
    assert f"learning rate 0.01 to 1, {shown} 1 to 2." in text
    assert text.count(shown) > 6


def test_summary_shows_the_error_of_a_failure(path):
    with Store(path) as store:
        for value in (0.1, 0.2):
            key = store.add("e", {"long_name_of_a_setting": "x" * 60, "rate": value}, 0)
            store.start(key)
            store.fail(key, "ValueError: the loss is negative")
    text = summary(read_once([path]))
    assert "failed: rate 0.2, seed 0\n    ValueError: the loss is negative" in text


def test_closing_a_board_ends_its_threads(path):
    before = threading.active_count()
    board = Board([path, path], interval=60)
    board.wait(0, 60)
    board.close()
    assert threading.active_count() == before
    assert board.wait(10**9, 0) is None
