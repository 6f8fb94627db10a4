import sqlite3
import warnings
from itertools import product

import numpy as np
import pytest
import xarray as xr
from tests.references.html_outline import outline

from normscope.errors import DataError
from normscope.plots.phase_diagram import phase_diagram
from normscope.report import (
    Picture,
    downloads,
    narrative,
    pictures,
    render,
    report_of,
    stores,
)
from normscope.report.stores import read_entry
from normscope.results import Store, grid, tables
from normscope.results.tables import present_versions

GAMMAS, RATES, SEEDS = (0.5, 1.0, 2.0), (0.01, 0.1, 1.0, 10.0), (0, 1)
HOSTILE = "<script>alert(1)</script>"


def training(gamma, rate, seed):
    """A cell whose test loss is known: it explodes above gamma * rate = 5."""
    diverged = gamma * rate > 5
    loss = np.nan if diverged else abs(np.log10(rate) + 1) + gamma + 0.01 * seed
    outcome = "diverged" if diverged else "finished"
    return xr.Dataset(
        {"loss": ("step", [2.0, 1.0]), "test_loss": loss, "steps_done": 2, "outcome": outcome},
        {"step": [0, 1]},
    )


def is_diverged(dataset):
    return str(dataset["outcome"].values) == "diverged"


def fill(store, losses=("squared_error",), leave=()):
    with store.transaction():
        for loss, gamma, rate, seed in product(losses, GAMMAS, RATES, SEEDS):
            parameters = {"gamma": gamma, "learning_rate": rate, "loss": loss, "width": 20}
            key = store.add("phase_diagram", parameters, seed)
            if (gamma, rate, seed) in leave:
                continue
            store.start(key)
            found = training(gamma, rate, seed)
            state = "diverged" if is_diverged(found) else "finished"
            store.finish(key, found, state, seconds=0.25)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "phase.sqlite"


def theory(settings, axis, values):
    assert settings["width"] == 20
    return xr.DataArray(
        [[5 / v for v in values]] * 2,
        dims=("closure", axis),
        coords={"closure": ["train", "frozen"]},
    )


def test_sweep_is_told_counted_and_drawn(path):
    with Store(path) as store:
        fill(store)
    report = report_of([path], theory=theory)
    (section,) = report.sections
    assert section.title == "phase_diagram in phase.sqlite"
    assert section.paragraphs[0] == "phase.sqlite holds 24 records: 20 finished and 4 diverged."
    expected = (
        "Of 12 cells x 2 seeds over gamma 0.5 to 2 and learning rate 0.01 to 10, 2 diverged in at "
        "least one seed; "
        "the lowest mean test loss, 0.505, is at gamma 0.5 and learning rate 0.1."
    )
    boundary = (
        "Training begins to diverge at a learning rate between 1 and 10 at gamma 1 and between 1 "
        "and 10 at gamma 2; the theory (train) predicts 5 and 2.5, which agrees within the grid."
    )
    assert section.paragraphs[1] == f"{expected} {boundary}"
    assert report.first_sentence == boundary
    assert list(report.further_findings)[:2] == [section.paragraphs[0], expected]
    assert [(card.label, card.value) for card in report.first_cards] == [
        ("finished", "20"),
        ("diverged", "4"),
    ]
    (picture,) = section.pictures
    assert expected in picture.text
    assert "the theory's critical learning rate" in picture.caption
    assert section.settings == {"loss": "squared_error", "width": 20, "seeds": [0, 1]}
    assert section.seconds == pytest.approx(6.0)


def test_records_have_a_row_each_with_what_varies(path):
    with Store(path) as store:
        fill(store)
    (section,) = report_of([path]).sections
    table = section.tables[0]
    assert table.columns == [
        "gamma", "learning_rate", "seed", "state", "test_loss", "steps_done", "seconds", "attempts"
    ]  # fmt: skip
    assert len(table.rows) == 24
    assert table.rows[0] == (0.5, 0.01, 0, "finished", 1.5, 2, 0.25, 1)
    names = [each.name for each in section.downloads]
    assert names[0] == "phase_diagram_records.csv"
    assert "phase_diagram.nc" in names


def test_rows_stand_by_their_settings_in_whatever_order_they_were_computed(path):
    with Store(path) as store:
        for gamma, rate, seed in ((2, 0.1, 0), (0.5, 1.0, 1), (0.5, 1.0, 0), (0.5, 0.1, 0)):
            parameters = {"gamma": gamma, "learning_rate": rate}
            store.compute("phase_diagram", parameters, seed, lambda: training(1.0, 0.1, 0))
    (section,) = report_of([path]).sections
    rows = [row[:3] for row in section.tables[0].rows]
    assert rows == [(0.5, 0.1, 0), (0.5, 1.0, 0), (0.5, 1.0, 1), (2, 0.1, 0)]


def test_settings_stand_below_the_figure_and_not_in_it(path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        pictures, "picture_of", lambda figure, *texts: drawn.append(figure) or Picture("", "")
    )
    settings = {"samples": None, "test_samples": None, "code": "sha256-abc", "width": None}
    with Store(path) as store:
        add_cells(store, SQUARE, state="finished", **settings)
        store.to_netcdf(path.with_suffix(".nc"), "phase_diagram")
    for each in (path, path.with_suffix(".nc")):
        (section,) = report_of([each]).sections
        told = {name: section.settings[name] for name in settings}
        assert told == {
            "samples": "all",
            "test_samples": "all",
            "code": "sha256-abc",
            "width": None,
        }
    assert [figure.get_supxlabel() for figure in drawn] == ["", ""]


@pytest.mark.parametrize(("low", "high"), [(0.172, 0.39), (0.5, 60.0), (1.0, 1.02), (0.02, 0.5)])
def test_colours_have_marks_enough_and_plain(low, high):
    cells = {"gamma": [0.5, 1.0], "learning_rate": [0.1, 1.0], "seed": [0]}
    loss = np.geomspace(low, high, 4).reshape(2, 2, 1)
    found = xr.Dataset(
        {"test_loss": (tuple(cells), loss), "diverged": (tuple(cells), 0 * loss)}, cells
    )
    figure = phase_diagram(found).figure
    figure.draw_without_rendering()
    bar = figure.axes[1]
    marks = [each.get_text() for each in bar.get_yticklabels()]
    assert 3 <= len(marks) <= 10
    assert [float(each) for each in marks] == pytest.approx(list(bar.get_yticks()), rel=0.01)


def test_each_further_setting_has_a_diagram_of_its_own(path):
    with Store(path) as store:
        fill(store, losses=("squared_error", "cross_entropy"))
    (section,) = report_of([path]).sections
    assert ["squared_error" in p.caption for p in section.pictures] == [True, False]
    assert [each.partition(":")[0] for each in section.paragraphs[1:]] == [
        "loss squared_error",
        "loss cross_entropy",
    ]


def test_open_and_failed_cells_are_holes_and_failures_are_listed(path):
    with Store(path) as store:
        fill(store, leave={(0.5, 0.01, 0), (0.5, 0.01, 1)})
        (key, *_) = (each.key for each in store.select(state="pending"))
        store.start(key)
        store.fail(key, f"ValueError: {HOSTILE}")
    report = report_of([path])
    (section,) = report.sections
    assert section.paragraphs[0] == (
        "phase.sqlite holds 24 records: 1 pending, 18 finished, 4 diverged and 1 failed."
    )
    assert "12 cells" in section.paragraphs[1]
    assert section.tables[1].rows == [
        ("gamma 0.5, learning_rate 0.01, seed 0", 1, f"ValueError: {HOSTILE}")
    ]
    assert "error" not in section.tables[0].columns  # told once
    assert b"ValueError" in section.downloads[0].content
    found = outline(render(report))
    assert len(found.named("script")) == 1


def test_one_axis_alone_is_not_drawn_and_says_why(path):
    with Store(path) as store:
        for rate in RATES:
            store.compute(
                "phase_diagram", {"learning_rate": rate}, 0, lambda: training(1.0, 0.1, 0)
            )
    (section,) = report_of([path]).sections
    assert not section.pictures
    assert "it takes the learning rate and one more setting" in section.paragraphs[1]


def scope_results(shift=0.0):
    steps = np.arange(4) * 10
    return xr.Dataset(
        {
            "loss": ("step", 2.0 - 0.4 * np.arange(4) + shift),
            "learning_rate": ("step", np.full(4, 0.1)),
            "ray_loss": (("step", "distance"), np.outer(np.arange(1, 5), [1.0, 2.0, 3.0])),
        },
        {"step": steps, "distance": [0.5, 1.0, 2.0]},
        {"model": "VGG", "probes": "loss_variation"},
    )


def test_scope_records_are_drawn_one_by_one(path, monkeypatch):
    monkeypatch.setattr(stores, "MOST_PICTURES", 2)
    with Store(path) as store:
        for number in range(4):
            labels = {"norm": f"{HOSTILE}{number}"}
            store.compute("scope", labels, 0, lambda n=number: scope_results(n))
        key = store.add("scope", {"norm": "unfinished"}, 0)
        store.start(key)
        store.append(key, scope_results().isel(step=[0]))
    report = report_of([path])
    (section,) = report.sections
    assert len(section.pictures) == 2
    assert section.paragraphs[1].startswith(
        f"norm {HOSTILE}0, seed 0: A scope on VGG measured 4 steps"
    )
    assert (
        "Along the gradient the loss varied by 5 in the median, 8 at most." in section.paragraphs[1]
    )
    assert section.paragraphs[-1] == "3 further trainings not drawn here."
    found = outline(render(report))
    assert len(found.named("script")) == 1


def test_trainings_of_experiments_show_their_losses(path):
    with Store(path) as store:
        for norm in ("none", "batch"):
            store.compute(
                "a/training", {"norm": norm, "steps": 2}, 0, lambda: training(1.0, 0.1, 0)
            )
        store.compute("other", {"x": [1, 2]}, 0, lambda: xr.Dataset({"y": ("z", [1.0])}))
    first, second = report_of([path]).sections
    assert "norm none, seed 0: 2 to 1; norm batch, seed 0: 2 to 1" in first.pictures[0].text
    assert not second.pictures
    assert second.settings == {"x": [1, 2], "seeds": [0]}


def test_damage_is_told(path):
    with Store(path) as store:
        fill(store)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE arrays SET blob = x'00' WHERE id = 1")
    connection.close()
    with pytest.raises(DataError, match="is damaged"):
        report_of([path])


def add_cells(store, cells, seeds=(0,), revision=1, state=None, **settings):
    """Cells of a sweep, by gamma and rate; with a state those have a result."""
    for (gamma, rate), seed in product(cells, seeds):
        parameters = {"gamma": gamma, "learning_rate": rate, **settings}
        key = store.add("phase_diagram", parameters, seed, revision)
        if state is not None:
            store.start(key)
            loss = np.nan if state == "diverged" else float(revision)
            store.finish(key, xr.Dataset({"test_loss": loss, "outcome": state}), state)


TRAINED = {"model": "fully_connected", "data": "digits", "loss": "squared_error"}
TRAINED |= {"norm": "batch", "batch_size": 128, "momentum": 0.9}
SQUARE = list(product((0.5, 1.0), (0.1, 1.0)))


def test_cells_without_a_result_are_said_and_not_drawn(path):
    with Store(path) as store:
        add_cells(store, SQUARE, **TRAINED)
    (section,) = report_of([path]).sections
    assert section.paragraphs[1] == (
        "Of 4 cells over gamma 0.5 to 1 and learning rate 0.1 to 1, 4 have no result yet."
    )
    assert not section.pictures
    assert section.command_note.startswith("It resumes")
    assert "no record of 'phase_diagram' has a whole result" in section.downloads[1].left_out


def test_half_done_grid_and_its_own_download_say_the_same(path):
    with Store(path) as store:
        add_cells(store, SQUARE[:1], (0, 1), state="finished")
        add_cells(store, SQUARE[1:2], (0,), state="diverged")
        add_cells(store, SQUARE[2:3], (0,), state="finished")
        add_cells(store, SQUARE, (0, 1))
    (section,) = report_of([path]).sections
    assert section.paragraphs[1] == (
        "Of 4 cells x up to 2 seeds over gamma 0.5 to 1 and learning rate 0.1 to 1, 1 has no "
        "result yet and 1 diverged in at least one seed; the lowest mean test loss, 1, is at gamma "
        "0.5 and learning rate 0.1. Training begins to diverge at a learning rate between 0.1 and "
        "1 at gamma 0.5."
    )
    (download,) = (each for each in section.downloads if each.name.endswith(".nc"))
    numbers = path.with_name("own.nc")
    numbers.write_bytes(download.content)
    (again,) = report_of([numbers]).sections
    assert list(again.paragraphs) == [section.paragraphs[1]]
    assert len(again.pictures) == 1


def test_holes_of_a_netcdf_file_are_no_explosions(tmp_path):
    cells = {"gamma": [0.5, 1.0], "learning_rate": [0.1, 1.0], "seed": [0]}
    values = np.array([[[0.0], [1.0]], [[np.nan], [np.nan]]])
    loss = np.where(values == 0, 2.0, np.nan)
    dims = tuple(cells)
    found = xr.Dataset({"test_loss": (dims, loss), "diverged": (dims, values)}, cells)
    found.to_netcdf(tmp_path / "x.nc", engine="scipy")
    (section,) = report_of([tmp_path / "x.nc"]).sections
    assert section.paragraphs[0].startswith("Of 4 cells x 1 seed over gamma")
    assert "2 have no result yet and 1 diverged" in section.paragraphs[0]
    mesh = phase_diagram(found).collections[0]  # of the cells that exploded
    assert np.ma.getmaskarray(mesh.get_array()).ravel().tolist() == [True, False, True, True]


def test_further_settings_of_a_netcdf_file_have_diagrams_of_their_own(path):
    with Store(path) as store:
        for width in (10, 20):
            add_cells(store, SQUARE, state="finished", width=width, loss="a")
        store.to_netcdf(path.with_suffix(".nc"), "phase_diagram")
    (section,) = report_of([path.with_suffix(".nc")]).sections
    assert [each[:9] for each in section.paragraphs] == ["width 10:", "width 20:"]
    assert len(section.pictures) == 2


def test_diagram_takes_the_revision_that_the_download_takes(path):
    with Store(path) as store:
        add_cells(store, SQUARE, revision=2, state="finished")
        add_cells(store, SQUARE, revision=1, state="finished")  # an older one, added later
        assert (store.to_xarray("phase_diagram")["test_loss"] == 2).all()
    (section,) = report_of([path]).sections
    assert "the lowest mean test loss, 2," in section.paragraphs[1]
    assert section.paragraphs[2].startswith("4 results are superseded")


def test_failures_are_told_in_time_and_up_to_a_number(path, monkeypatch):
    monkeypatch.setattr(stores, "MOST_ROWS", 50)
    with Store(path) as store, store.transaction():
        for number in range(60):
            key = store.add("demo", {"number": number}, 0)
            store.start(key)
            store.fail(key, "ValueError")
    looks = []
    identity = grid._identity
    monkeypatch.setattr(grid, "_identity", lambda value: looks.append(0) or identity(value))
    (section,) = report_of([path]).sections
    assert len(looks) < 10 * 60  # not for each record over all records
    assert [len(table.rows) for table in section.tables] == [50, 50]
    assert "Of 60 that failed the first 50 are listed." in section.paragraphs
    assert "The table shows the first 50 records; the CSV file has all." in section.paragraphs


def test_table_without_its_file_does_not_promise_it(path, monkeypatch):
    monkeypatch.setattr(stores, "MOST_ROWS", 2)
    monkeypatch.setattr(downloads, "LARGEST", 20)
    with Store(path) as store:
        add_cells(store, SQUARE, state="finished")
    (section,) = report_of([path]).sections
    assert section.downloads[0].left_out
    assert "the first 2 records; the store has all" in section.paragraphs[-1]


def test_large_results_are_left_out_before_they_are_combined(path, monkeypatch):
    monkeypatch.setattr(stores, "LARGEST", 20)
    monkeypatch.setattr(Store, "to_xarray", lambda *_: pytest.fail("built"))
    with Store(path) as store:
        add_cells(store, SQUARE, state="finished")
    (section,) = report_of([path]).sections
    assert section.downloads[0].content
    assert "to_netcdf(path, 'phase_diagram') writes it" in section.downloads[1].left_out


def test_results_that_do_not_fit_together_are_told(path):
    with Store(path) as store:
        for number, steps in enumerate(([0, 0], [0, 1])):
            store.compute(
                "demo",
                {"number": number},
                0,
                lambda steps=steps: xr.Dataset({"y": ("step", [1.0, 2.0])}, {"step": steps}),
            )
    (section,) = report_of([path]).sections
    assert "some repeat" in section.downloads[1].left_out


def test_look_lets_the_result_go(path):
    with Store(path) as store:
        add_cells(store, SQUARE[:1], state="finished")
        (record,) = store.select()
        assert read_entry(store, record).single == {"test_loss": 1.0}
    assert "dataset" not in vars(record)


def test_command_covers_the_grid_around_the_records_or_says_why_not(path):
    with Store(path) as store:
        unset = {"samples": None, "test_samples": None, "every_epoch": False, "bias": False}
        add_cells(store, SQUARE[:3], (0, 2), state="finished", **TRAINED, **unset)
    (section,) = report_of([path]).sections
    assert "--set gamma=0.5,1.0 --set learning_rate=0.1,1.0 --set loss=" in section.command
    assert "--seeds 3 --seed 0 --out phase.sqlite" in section.command
    for name in ("samples", "test_samples", "every_epoch"):
        assert f"--set {name}" not in section.command
    assert "--set bias=False" in section.command  # a model may have another default
    assert section.command_note.startswith(
        "The store holds 6 trainings of a grid of 12; the command computes the other 6 trainings"
    )
    scattered = path.with_name("boundary.sqlite")
    with Store(scattered) as store:
        add_cells(store, [(0.1 * n, 0.01 * n) for n in range(1, 7)], state="finished", **TRAINED)
        store.compute("wei2018/figure1 network", {}, 0, lambda: xr.Dataset({"y": 1.0}))
    sweep, network = report_of([scattered]).sections
    assert not sweep.command
    assert "6 trainings lie scattered over a grid of 36" in sweep.command_note
    assert "normscope run wei2018/figure1 computes them" in network.command_note
    unknown = path.with_name("unknown.sqlite")
    with Store(unknown) as store:
        add_cells(store, SQUARE, state="finished", **TRAINED)
        add_cells(store, SQUARE, state="finished", model="a")
    (section,) = report_of([unknown]).sections
    assert not section.command
    assert "do not name their batch_size, data, loss, momentum and norm" in section.command_note
    assert dict(network.versions) == present_versions()


def test_command_has_ranges_and_tells_the_digest_of_own_code_beside_it(path):
    cells = [(gamma, rate) for gamma in (0.3, 0.948683298051, 3.0) for rate in (0.1, 0.2, 0.3)]
    with Store(path) as store:
        add_cells(store, cells, state="finished", **TRAINED, code="sha256-abc")
    (section,) = report_of([path]).sections
    assert "--set gamma=0.3:3:3:log --set learning_rate=0.1:0.3:3 " in section.command
    assert "code" not in section.command
    assert "The digest was sha256-abc; a file that has changed since" in section.command_note
    with Store(path) as store:
        add_cells(store, cells, state="finished", **TRAINED, code="sha256-def")
    (section,) = report_of([path]).sections
    assert "--set gamma=0.3:3:3:log" in section.command
    assert "The digests were sha256-def and sha256-abc;" in section.command_note


def test_theory_is_drawn_only_for_a_training_that_is_known_whole():
    from normscope.cli.report import _theory

    settings = {**TRAINED, "width": 20, "samples": 256}
    lines = _theory(settings, "gamma", [0.5, 1.0])
    assert lines is not None
    assert lines.dims == ("closure", "gamma")
    for name in TRAINED:
        assert _theory({k: v for k, v in settings.items() if k != name}, "gamma", [1.0]) is None


def test_theory_over_the_momentum_follows_its_factor():
    from normscope.cli.report import _theory

    settings = {name: value for name, value in TRAINED.items() if name != "momentum"}
    lines = _theory({**settings, "width": 20, "samples": 256}, "momentum", [0.0, 0.9])
    assert lines.dims == ("closure", "momentum")
    without, with_momentum = lines.values.T
    np.testing.assert_allclose(with_momentum / without, 1.9)  # 2 (1 + mu) / lambda_max


def test_caption_explains_the_lines_that_are_drawn_and_no_others():
    rates = [[0.1, 0.2], [np.nan, np.nan]]
    lines = xr.Dataset(
        {"critical_learning_rate": (("closure", "gamma"), rates)},
        {"closure": ["train", "printed"], "gamma": [1.0, 2.0]},
    )
    assert "train follows" in narrative.describe_theory(lines)
    assert "printed" not in narrative.describe_theory(lines)
    assert narrative.describe_theory(lines.sel(closure=["printed"])) == ""


def test_trainings_and_scopes_without_a_step_are_told(path):
    nothing = xr.Dataset({"loss": ("step", np.zeros(0))}, {"step": np.zeros(0, int)})
    with Store(path) as store:
        store.compute("train", {}, 0, lambda: nothing)
        store.compute("scope", {}, 0, lambda: nothing.assign_attrs(probes="loss", model="net"))
    training, scope = report_of([path]).sections
    assert not training.pictures
    assert scope.paragraphs[1] == "seed 0: A scope on net measured no step."
    assert "a scope watches a training of your own" in scope.command_note


def test_thousands_of_records_are_read_without_a_dataset_for_each(path, monkeypatch):
    with Store(path) as store, store.transaction():
        add_cells(store, SQUARE, range(20), state="finished")
    whole = xr.Dataset.__init__
    made = []

    def counting(self, *given, **named):
        made.append(0)
        whole(self, *given, **named)

    monkeypatch.setattr(xr.Dataset, "__init__", counting)
    (section,) = report_of([path]).sections
    assert len(section.tables[0].rows) == 80
    assert len(made) < 40


NOVEMBER = 1794886800.0  # 2026-11-17 03:40 UTC
OLD, NEW = "sha256-aaa", "sha256-bbb"


@pytest.fixture
def fill_version(tmp_path, monkeypatch):
    """Adds the trainings of one version of a model's file, an hour later than those before."""
    path, hours = tmp_path / "mine.sqlite", iter(range(9))

    def added(code, model="net.py:build"):
        now = NOVEMBER + 3600 * next(hours)
        monkeypatch.setattr(tables.time, "time", lambda: now)
        with Store(path) as store:
            for gamma, rate in product((0.5, 1.0), (0.1, 1.0)):
                parameters = {"model": model, "gamma": gamma, "learning_rate": rate, "code": code}
                result = xr.Dataset({"test_loss": gamma, "outcome": "finished"})
                store.compute("phase_diagram", parameters, 0, lambda made=result: made)
        return path

    return added


def test_newest_version_stands_first_and_each_is_told_with_its_time(fill_version):
    fill_version(OLD)
    report = report_of([fill_version(NEW)])
    (section,) = report.sections
    first, second = section.paragraphs[1:3]
    assert first.startswith(
        f"newest version of the user's files, of 2026-11-17 04:40 UTC (code {NEW}): Of 4 cells"
    )
    assert second.startswith(
        f"earlier version of the user's files, of 2026-11-17 03:40 UTC (code {OLD}): Of 4 cells"
    )
    assert [NEW in each.caption for each in section.pictures] == [True, False]
    assert NEW in report.findings[1]
    place = section.tables[0].columns.index("code")
    assert [row[place] for row in section.tables[0].rows] == [NEW] * 4 + [OLD] * 4


def test_without_times_the_version_added_last_is_the_newest(fill_version):
    fill_version(OLD)
    path = fill_version(NEW)
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE started_at")
    connection.close()
    (section,) = report_of([path]).sections
    assert section.paragraphs[1].startswith(f"newest version of the user's files (code {NEW}): ")
    assert section.paragraphs[2].startswith(f"earlier version of the user's files (code {OLD}): ")


def test_files_of_two_models_are_no_versions_of_each_other(fill_version):
    fill_version(OLD, "other.py:build")
    (section,) = report_of([fill_version(NEW)]).sections
    assert section.paragraphs[1].startswith(f"code {OLD}, model other.py:build: ")
    assert section.paragraphs[2].startswith(f"code {NEW}, model net.py:build: ")


def test_values_that_cannot_be_drawn_leave_the_figure_out(path):
    """A forged or broken run may have any finite values, such as those from -1e308 to 1e308."""
    steps = np.array([-(2**62), 0, 2**62])
    values = xr.Dataset({"loss": ("step", [-1.7e308, 0.0, 1.7e308])}, {"step": steps})
    with Store(path) as store:
        store.compute("demo", {}, 0, lambda: values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, about the overflow
        (section,) = report_of([path]).sections
    assert section.pictures == []
    assert any(text.startswith("No figure is drawn:") for text in section.paragraphs)


def test_steps_beyond_every_index_are_drawn(path):
    values = xr.Dataset({"loss": ("step", [2.0, 1.0])}, {"step": [-(2**62), 2**62]})
    with Store(path) as store:
        store.compute("demo", {}, 0, lambda: values)
    (section,) = report_of([path]).sections
    assert len(section.pictures) == 1
