"""``normscope run`` and ``normscope list`` from their arguments to their files and exit codes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from normscope.cli.main import main
from normscope.errors import NormscopeError
from normscope.experiments import EXPERIMENTS
from normscope.results import Store

SMALL = ["--set", "width=40", "--set", "channels=(3,4,5)", "--set", "samples=(60,30)"]
GAMMAS = ["--set", "gammas=(0.5,1.0)", "--set", "measured_gammas=(0.5,1.0)"]
FIGURE = ["run", "wei2018/figure1", *SMALL, *GAMMAS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which the run was made once; the next finds its measurements."""
    path = tmp_path_factory.mktemp("run")
    assert main([*FIGURE, "--out", str(path)]) == 0
    return path


def test_run_prints_verdicts_and_writes_the_files(folder, capsys):
    assert main([*FIGURE, "--out", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("wei2018/figure1 at quick scale")
    assert "  undecided in this quick run: the smaller gamma" in out
    assert "(holds in every measured network, 1 seed)" in out
    assert "reproduced:" not in out
    names = {path.name for path in (folder / "wei2018").iterdir()}
    assert names == {"figure1.nc", "figure1.svg", "figure1.md", "figure1.json"}


def test_second_run_finds_the_first_ones_measurements(folder, capsys):
    first = json.loads((folder / "wei2018" / "figure1.json").read_text(encoding="utf-8"))
    assert main([*FIGURE, "--out", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["claims"] == first["claims"]
    with Store(folder / "runs.sqlite", read_only=True) as store:
        assert [record.attempts for record in store.select()] == [1, 1]


def test_label_and_settings_are_in_the_record(folder, capsys):
    arguments = ["--name", "<b>mine</b>", "--seed", "0", "--json", "--out", str(folder)]
    assert main([*FIGURE, *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["label"] == "<b>mine</b>"
    assert (found["settings"]["seed"], found["settings"]["width"]) == (0, 40)
    assert "--set seed=0" in found["command"]


def test_strict_exits_with_1_when_a_claim_fails(folder, capsys):
    assert main([*FIGURE, "--out", str(folder)]) == 0  # an honest no is a result
    assert "not reproduced" in capsys.readouterr().out
    assert main([*FIGURE, "--out", str(folder), "--strict"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "wei2018/figur1"], "did you mean 'wei2018/figure1'?"),
        (["run", "wei2018/figure1", "--scale", "smal"], "did you mean 'small'?"),
        (["run", "wei2018/figure1", "--set", "sed=1"], "did you mean 'seed'?"),
        (["run", "wei2018/figure1", "--set", "seeds=many"], "must be like 3, got 'many'"),
        (["run", "wei2018/figure1", "--set", "seeds"], "name=value"),
        (["list", "model"], "did you mean 'models'?"),
    ],
)
def test_wrong_names_are_told_before_anything_is_written(arguments, message, capsys, tmp_path):
    out = ["--out", str(tmp_path / "out")] if arguments[0] == "run" else []
    assert main([*arguments, *out]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def has_begun(path):
    """Whether a store is there; an empty file, which is none yet, is not enough."""
    try:
        with Store(path, read_only=True):
            return True
    except NormscopeError:
        return False


def test_interrupted_run_leaves_no_half_written_file_and_goes_on(tmp_path):
    command = [sys.executable, "-m", "normscope", *FIGURE, "--out", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 120
    while not has_begun(tmp_path / "runs.sqlite") and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 130
    kept = tmp_path / "runs.sqlite"
    told = f"interrupted; finished work is kept in {kept}; run the same command to resume."
    with Store(kept, read_only=True) as store:
        if not any(number for state, number in store.counts().items() if state.has_result):
            told = "interrupted; nothing was computed yet."
    assert errors.splitlines()[-1] == f"normscope: {told}"
    assert not (tmp_path / "wei2018").exists()
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_list_counts_the_names_of_every_kind_and_names_a_few(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 20
    rows = {words[0]: words[1:] for words in map(str.split, lines) if words}
    assert rows["experiments"][0] == str(len(EXPERIMENTS))
    assert rows["engines"] == ["3", "dask,", "local,", "ray"]
    assert rows["norms"][-1] == "..."
    assert "normscope list experiments" in lines[-1]


def test_list_names_everything_with_one_line_each(capsys):
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kinds = {"experiments", "probes", "models", "norms", "theorems", "data", "losses", "engines"}
    assert set(found) == {*kinds, "kinds", "checks"}
    assert set(found["experiments"]) == set(EXPERIMENTS)
    lines = [line for names in found.values() for line in names.values()]
    assert all(line.endswith(".") for line in lines)
    assert main(["list", "models"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("models\n")
    assert "\nvgg " in out
    assert main(["list", "kinds"]) == 0
    assert "\nggn " in capsys.readouterr().out
