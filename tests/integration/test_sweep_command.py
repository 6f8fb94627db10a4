"""``normscope sweep`` from its arguments to its files and exit codes."""

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import xarray as xr

from normscope.cli import sweep_run
from normscope.cli.main import main
from normscope.report import report_of
from normscope.results import Store
from normscope.sweeps import Work

SMALL = ["--set", "width=24", "--set", "epochs=1", "--set", "samples=640", "--set", "gamma=0.5,2"]
RATES = ["--set", "lr=1e-3:100:3:log"]
CRITERION = "Diverged: a loss that is not finite, or beyond 1000 times its first value."


def die(cells):
    """A cell that is too large for the machine, say."""
    os.kill(os.getpid(), signal.SIGKILL)


DEADLY = Work("phase_diagram", die)


def answered(capsys, *arguments, code=0):
    assert main(["sweep", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


OWN = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))

def wide(seed=0):
    torch.manual_seed(0)
    return torch.randn(40, 4).double(), torch.randint(0, 2, (40,))
"""


@pytest.mark.parametrize("asked", [["--set", "lr=0.1"], ["--boundary"]], ids=["grid", "boundary"])
def test_sweep_says_that_own_data_is_converted(asked, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "wide_net.py").write_text(OWN, encoding="utf-8")
    own = [
        "model=wide_net.py:build",
        "data=wide_net.py:wide",
        "batch_size=8",
        "epochs=1",
        "gamma=1",
    ]
    settings = [word for each in own for word in ("--set", each)]
    assert main(["sweep", "phase_diagram", *settings, *asked, "-o", "own.sqlite"]) == 0
    note = "normscope: note: the inputs are float64, the model float32: they are converted.\n"
    assert capsys.readouterr().err.count(note) == 1


def test_sweep_and_status_tell_of_cells_of_an_edited_file(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "edited_net.py"
    file.write_text(OWN, encoding="utf-8")
    own = ["model=edited_net.py:build", "data=edited_net.py:wide", "batch_size=8", "epochs=1"]
    settings = [word for each in [*own, "gamma=1,2", "lr=0.1,0.2"] for word in ("--set", each)]
    command = ["sweep", "phase_diagram", *settings, "-o", "own.sqlite"]
    assert main(command) == 0
    assert main(["sweep", "status", "own.sqlite"]) == 0
    assert "earlier version" not in "".join(capsys.readouterr())
    with Store("own.sqlite") as store:  # as an interrupted sweep leaves it
        (first, *_) = store.select("phase_diagram")
        store.add("phase_diagram", {**first.parameters, "gamma": 3.0}, seed=0)
    file.write_text(f"{OWN}\n# edited\n", encoding="utf-8")
    assert main(["sweep", "status", "own.sqlite"]) == 0
    assert "No cell is of the present version yet." in capsys.readouterr().out
    assert main(command) == 0
    told = "5 cells of {} are of an earlier version of your own files ({}): kept there, but"
    told = told.format("{}", "4 finished, 1 never computed")
    shown = capsys.readouterr()
    assert f"normscope: note: {told.format('own.sqlite')}" in shown.err
    assert "4 cells in" in shown.out
    assert "0 were there already" in shown.out
    assert main(["sweep", "status", "own.sqlite"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert told.format("phase_diagram") in shown
    assert " phase_diagram 4 0 0 4 0 0 " in shown
    assert "The sweep of the present version is complete." in shown
    with Store("own.sqlite") as store:
        (*_, last) = store.select("phase_diagram")
        store.add("phase_diagram", {**last.parameters, "gamma": 3.0}, seed=0)
        store.start(store.add("phase_diagram", {**last.parameters, "gamma": 4.0}, seed=0))
        store.fail(store.select("phase_diagram")[-1].key, "no memory")
    assert main(["sweep", "status", "own.sqlite"]) == 0
    assert "Of the present version, 1 of 6 cells" in capsys.readouterr().out
    with Store("own.sqlite") as store:
        store.start(store.select("phase_diagram")[-2].key)
        store.fail(store.select("phase_diagram")[-2].key, "no memory")
    assert main(["sweep", "status", "own.sqlite"]) == 0
    assert "present version is complete, but 2 of its 6 cells failed." in capsys.readouterr().out
    with Store("own.sqlite", read_only=True) as store:
        codes = {record.parameters["code"] for record in store.select("phase_diagram")}
    (section,) = report_of(["own.sqlite"]).sections
    assert len(codes) == 2
    assert all(f"(code {code}): " in " ".join(section.paragraphs) for code in codes)
    assert section.paragraphs[1].startswith("newest version of the user's files, of 20")
    assert last.parameters["code"] in section.paragraphs[1]
    assert section.paragraphs[2].startswith("earlier version of the user's files, of 20")


def test_sweep_writes_store_numbers_and_figure_and_resumes(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "phase.sqlite"
    command = ["phase_diagram", *SMALL, *RATES, "--seeds", "2", "--out", str(out)]
    first = answered(capsys, *command)
    assert (first["cells"], first["found"], first["failures"]) == (12, 0, [])
    numbers = xr.load_dataset(first["files"]["numbers"], engine="scipy")
    np.testing.assert_allclose(numbers["learning_rate"], [0.001, 0.316227766017, 100], rtol=1e-9)
    assert numbers["test_loss"].dims == ("gamma", "learning_rate", "seed")
    assert (tmp_path / "phase.svg").stat().st_size > 5000
    (section,) = report_of([out]).sections
    assert "--set learning_rate=0.001:100:3:log " in section.command
    assert CRITERION in section.paragraphs
    assert section.paragraphs[1].removesuffix(".") in first["found_in_words"][0]
    program, verb, *printed = shlex.split(section.command)
    assert (program, verb) == ("normscope", "sweep")
    again = answered(capsys, *printed)
    assert (again["cells"], again["found"]) == (12, 12)
    (state,) = answered(capsys, "status", str(out))
    assert state["finished"] + state["diverged"] == 12
    assert main(["sweep", "status", str(out)]) == 0
    text = capsys.readouterr().out
    assert "phase_diagram" in text
    assert CRITERION in " ".join(text.split())


def test_sweep_says_its_loss_first_and_what_it_found_last(capsys, tmp_path):
    out = tmp_path / "phase.sqlite"
    command = ["sweep", "phase_diagram", *SMALL, *RATES, "--out", str(out)]
    assert main(command) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("Trained: model fully_connected, norm batch, data digits, loss squared_")
    assert f"--set loss=cross_entropy has normscope lr's. {CRITERION} 6 cells" in text
    assert "the lowest mean test loss" in text
    assert "Training begins to diverge at a learning rate between " in text
    assert main([*command, "--set", "loss=cross_entropy"]) == 0
    assert "The loss is the theory's" not in capsys.readouterr().out


def test_interrupt_while_a_sweep_begins_says_how_to_go_on(capsys, tmp_path, monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("normscope.cli.sweep_run.carry_out", interrupted)
    assert main(["sweep", "phase_diagram", "--out", str(tmp_path / "phase.sqlite")]) == 130
    told = "interrupted; nothing was computed yet."
    assert capsys.readouterr().err == f"normscope: {told}\n"


def test_dry_run_counts_cells_and_touches_nothing(capsys, tmp_path):
    out = tmp_path / "phase.sqlite"
    found = answered(capsys, "phase_diagram", *SMALL, *RATES, "--out", str(out), "--dry-run")
    assert (found["cells"], found["open_cells"], found["steps"]) == (6, 6, 5)
    assert found["seconds"] == pytest.approx(30 * found["seconds_per_step"])
    assert list(tmp_path.iterdir()) == []
    assert main(["sweep", "phase_diagram", *SMALL, "--out", str(out), "--dry-run"]) == 0
    assert "cells that diverge take less" in capsys.readouterr().out


def test_boundary_is_a_table_and_numbers_and_a_figure_and_resumes(capsys, tmp_path):
    out = tmp_path / "b.sqlite"
    command = ["phase_diagram", "--boundary", *SMALL, "--out", str(out)]
    planned = answered(capsys, *command, "--dry-run")
    assert (planned["searches"], planned["trainings"], planned["steps"]) == (2, 14, 5)
    assert list(tmp_path.iterdir()) == []  # nothing was trained
    found = answered(capsys, *command)
    assert [row["gamma"] for row in found["boundary"]] == [0.5, 2]
    assert found["boundary"][0]["critical learning rate"] > 0
    numbers = xr.load_dataset(found["files"]["numbers"], engine="scipy")
    assert numbers["critical_learning_rate"].dims == ("gamma", "seed")
    assert (tmp_path / "b.svg").stat().st_size > 3000
    with Store(out, read_only=True) as store:
        attempts = {record.key: record.attempts for record in store.select("phase_boundary")}
    assert len(attempts) == sum(row["trainings"] for row in found["boundary"])
    assert answered(capsys, *command) == found
    assert main(["sweep", *command]) == 0
    assert CRITERION in " ".join(capsys.readouterr().out.split())
    with Store(out, read_only=True) as store:
        again = {record.key: record.attempts for record in store.select("phase_boundary")}
    assert again == attempts  # all of it was there


def test_cell_that_kills_its_worker_does_not_kill_the_command(capsys, tmp_path, monkeypatch):
    """It is failed once its worker died, and no picture tries it again in the parent."""
    monkeypatch.setattr("normscope.sweeps.diagram.TRAININGS", DEADLY)
    monkeypatch.setattr("normscope.cli.sweep_run.TRAININGS", DEADLY)
    out = tmp_path / "phase.sqlite"
    rates = ["--set", "lr=0.01,0.1"]
    command = ["phase_diagram", *SMALL, *rates, "--out", str(out), "--workers", "2"]
    found = answered(capsys, *command, "--max-attempts", "1", code=1)
    assert {failure["parameters"]["gamma"] for failure in found["failures"]} == {0.5, 2}
    assert all("died 1 times" in failure["error"] for failure in found["failures"])
    numbers = xr.load_dataset(found["files"]["numbers"], engine="scipy")
    assert numbers["failed"].all()
    assert (tmp_path / "phase.svg").exists()


def test_picture_is_there_before_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("normscope.cli.sweep_run._SECONDS", 0.0)
    written = []
    write = sweep_run._write

    def record(found, out, figure):
        written.append(int(found["test_loss"].notnull().sum() + found["diverged"].sum()))
        return write(found, out, figure)

    monkeypatch.setattr(sweep_run, "_write", record)
    out = tmp_path / "phase.sqlite"
    many = ["--set", "lr=1e-3:100:8:log", "--seeds", "2"]  # 32 cells in units of eight
    assert main(["sweep", "phase_diagram", *SMALL, *many, "--out", str(out)]) == 0
    assert written == [8, 16, 24, 32, 32]
    assert (tmp_path / "phase.svg").exists()


def test_status_draws_what_there_is(capsys, tmp_path):
    out, figure = tmp_path / "phase.sqlite", tmp_path / "now.svg"
    answered(capsys, "phase_diagram", *SMALL, *RATES, "--out", str(out))
    assert main(["sweep", "status", str(out), "--figure", str(figure)]) == 0
    assert figure.stat().st_size > 5000
    assert f"Figure: {figure}" in capsys.readouterr().out
    with Store(tmp_path / "empty.sqlite") as store:
        store.add("squares", {}, 0)
    empty = str(tmp_path / "empty.sqlite")
    assert main(["sweep", "status", empty, "--figure", str(figure)]) == 2
    assert "holds 0 diagrams" in capsys.readouterr().err


def test_following_ends_when_nobody_is_at_work(capsys, tmp_path):
    out = tmp_path / "s.sqlite"
    with Store(out) as store:
        store.start(store.add("squares", {"value": 1}, 0))
    assert main(["sweep", "status", str(out), "--follow"]) == 0
    assert "No process is at work on it. Run the same" in capsys.readouterr().out


def test_status_says_how_long_is_left_though_nobody_is_at_work(capsys, tmp_path):
    out = tmp_path / "s.sqlite"
    with Store(out) as store:
        first, *_ = [store.add("squares", {"value": value}, 0) for value in range(4)]
        store.start(first)
        store.finish(first, xr.Dataset({"square": 1.0}), seconds=30.0)
    assert main(["sweep", "status", str(out)]) == 0
    table, _, sentence = capsys.readouterr().out.rpartition("\n\n")
    assert table.endswith("30 s  90 s")
    assert max(map(len, sentence.splitlines())) <= 80
    sentence = " ".join(sentence.split())
    assert sentence.startswith("No process is at work on it; left: about so long with one worker.")


def test_sweep_that_goes_on_begins_its_count_with_what_is_there(capsys, tmp_path, monkeypatch):
    """The pace is then that of this run alone."""
    told = []

    @contextmanager
    def log(label):
        yield told.append

    monkeypatch.setattr("normscope.cli.sweep_run.show_progress", log)
    command = ["sweep", "phase_diagram", *SMALL, "--out", str(tmp_path / "phase.sqlite")]
    assert main([*command, "--set", "lr=0.01"]) == 0
    assert main([*command, "--set", "lr=0.01,0.1"]) == 0
    counts = [str(event) for event in told]
    assert counts == ["0 of 2 cells", "2 of 2 cells", "2 of 4 cells", "4 of 4 cells"]


def test_wrong_place_is_told_before_torch_is_loaded(capsys, tmp_path, monkeypatch):
    file = tmp_path / "net.py"
    file.write_text("def build(): ...\n")
    monkeypatch.setattr("normscope.cli.sweep_run.carry_out", lambda *given: pytest.fail("ran"))
    command = ["sweep", "phase_diagram", "--out", str(tmp_path / "phase.sqlite")]
    assert main([*command, "--set", f"model=vgg,{file}:biuld"]) == 2
    assert "did you mean 'build'?" in capsys.readouterr().err


def test_any_experiment_can_be_swept(capsys, tmp_path):
    out = tmp_path / "e.sqlite"
    tiny = ["--set", "samples=(60, 20)", "--set", "channels=(2, 2, 2)", "--set", "seeds=1"]
    axes = ["--set", "width=20,30", "--set", "gammas=[0.5, 1.0]", "--set", "measured_gammas=[1.0]"]
    found = answered(capsys, "wei2018/figure1", *tiny, *axes, "--seeds", "2", "--out", str(out))
    assert found["cells"] == 4
    with Store(out, read_only=True) as store:
        records = store.select("wei2018/figure1")
        assert sorted((r.parameters["width"], r.seed) for r in records) == [
            (20, 0),
            (20, 1),
            (30, 0),
            (30, 1),
        ]
        assert "lambda_max" in records[0].dataset
    again = answered(capsys, "wei2018/figure1", *tiny, *axes, "--seeds", "2", "--out", str(out))
    assert again["found"] == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["phase_diagrm"], "unknown sweep 'phase_diagrm'; did you mean 'phase_diagram'?"),
        (["status"], "status needs the file"),
        (["status", "nowhere.sqlite"], "there is no store"),
        (["phase_diagram", "file.sqlite"], "only status takes a file"),
        (["phase_diagram", "--set", "lr=1:2"], "first:last:count"),
        (["phase_diagram", "--set", "gama=1"], "did you mean 'gamma'"),
        (["phase_diagram", "--engine", "rey"], "did you mean 'ray'"),
        (["phase_diagram", "--scale", "tiny"], "unknown scale"),
        (["wei2018/figure1", "--boundary"], "belongs to phase_diagram"),
        (["phase_diagram", "--out", "x.nc"], "name it otherwise, such as x.sqlite"),
        (["phase_diagram", "--out", "x.SVG"], "name it otherwise"),
        (["phase_diagram", "--out", "x.txt"], "is the store, a database"),
        (["phase_diagram", "--boundary", "--out", "x.svg"], "name it otherwise"),
        (["phase_diagram", "--boundary", "--set", "lr=5:6:3"], "searches for the learning rate"),
        (["phase_diagram", "--boundary", "--set", "width=16,32"], "varies gamma alone"),
        (["phase_diagram", "--boundary", "--dry-run", "--set", "gamma=abc"], "finite number"),
        (["phase_diagram", "--set", "gamma=1,abc"], "gamma must be a finite number"),
        (["phase_diagram", "--set", "seed=3"], "--seeds"),
        (["phase_diagram", "--set", "model=no_such:net"], "there is no file of 'no_such'"),
        (["phase_diagram", "--set", "loss=nonsense"], "unknown loss"),
        (["phase_diagram", "--figure", "x.svg"], "--figure belongs to status"),
        (["wei2018/figure1", "--set", "seed=1"], "--seeds"),
        (["wei2018/figure1", "--set", "widht=1"], "did you mean 'width'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(capsys, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_two_sweeps_on_one_file_are_told(capsys, tmp_path):
    out = tmp_path / "phase.sqlite"
    with Store(out) as store:
        store.add("phase_diagram", {"gamma": 1.0}, seed=0)
        assert main(["sweep", "phase_diagram", *SMALL, *RATES, "--out", str(out)]) == 2
        assert "a store has one writer" in capsys.readouterr().err
        assert len(store.select()) == 1


LIMITED = """
import resource, sys
import normscope.sweeps  # loads what it needs before the limit
from normscope.cli.main import main
if sys.argv[1] != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main(["sweep", *sys.argv[2:]]))
"""


@pytest.mark.slow
def test_full_disk_is_told_and_the_finished_cells_are_kept(tmp_path, capsys):
    """A limit on the size of files stands for the full disk: the write fails alike."""
    out = tmp_path / "phase.sqlite"
    many = ["--set", "lr=1e-3:100:12:log", "--seeds", "2"]
    command = ["phase_diagram", *SMALL, *many, "--out", str(out)]
    limited = subprocess.run(
        [sys.executable, "-c", LIMITED, str(220_000), *command], capture_output=True, text=True
    )
    assert limited.returncode == 2, limited.stderr
    assert "disk" in limited.stderr.splitlines()[-1]  # after what was said of the progress
    with Store(out, read_only=True) as store:
        kept = {r.key: r.dataset.load() for r in store.select() if r.state.has_result}
        assert 0 < len(kept) < 48
    assert answered(capsys, *command)["found"] == len(kept)
    with Store(out, read_only=True) as store:
        for key, dataset in kept.items():
            xr.testing.assert_identical(store.get(key).dataset, dataset)
