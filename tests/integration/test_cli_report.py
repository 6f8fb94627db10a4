"""``normscope report`` from a real run and a real sweep to one file."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
import xarray as xr
from tests.references.html_outline import outline

from normscope.cli.main import main
from normscope.results import Store
from normscope.sweeps import Diagram, training_cell

HOSTILE = "<script>alert(1)</script>"
RUN = ["run", "wei2018/figure1", "--set", "width=40", "--set", "channels=(3,4,5)"]
RUN += [
    "--set",
    "samples=(60,30)",
    "--set",
    "gammas=(0.5,1.0)",
    "--set",
    "measured_gammas=(0.5,1.0)",
]
SWEEP = ["sweep", "phase_diagram", "--set", "gamma=0.5,2.0", "--set", "lr=0.01,10.0"]
SWEEP += ["--set", "width=20", "--set", "samples=256", "--set", "epochs=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run, named by someone hostile, and a sweep."""
    path = tmp_path_factory.mktemp("out")
    assert main([*RUN, "--name", HOSTILE, "--out", str(path / "runs")]) == 0
    assert main([*SWEEP, "--out", str(path / "phase.sqlite")]) == 0
    return path


def test_report_of_a_run_and_a_sweep(folder, capsys):
    out = folder / "report.html"
    inputs = [str(folder / "runs" / "wei2018" / "figure1.json"), str(folder / "phase.sqlite")]
    assert main(["report", *inputs, "-o", str(out), "--title", HOSTILE]) == 0
    printed = capsys.readouterr().out
    assert "claims, " in printed
    assert "phase.sqlite holds 4 records" in printed
    assert printed.splitlines()[-1] == f"Report: {out} ({out.stat().st_size / 1000:.0f} kB)"
    page = out.read_text(encoding="utf-8")
    found = outline(page)
    assert found.named("h1")[0].text == HOSTILE
    assert len(found.named("script")) == 1
    titles = [each.text for each in found.named("h2")]
    assert f"{HOSTILE} (wei2018/figure1)" in titles
    assert "phase_diagram in phase.sqlite" in titles
    assert len(found.named("figure")) == 2
    assert "the theory's critical learning rate".replace("'", "&#39;") in page


def test_report_of_a_folder_is_of_everything_in_it(folder, capsys):
    out = folder / "all.html"
    assert main(["report", str(folder), "-o", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["report"] == str(out)
    assert found["bytes"] == out.stat().st_size
    assert found["sections"][0] == f"{HOSTILE} (wei2018/figure1)"
    assert found["sections"][1:] == [
        "phase_diagram in phase.sqlite",
        "wei2018/figure1 network in runs.sqlite",
    ]
    assert {each["verdict"] for each in found["claims"]} <= {
        "reproduced",
        "not reproduced",
        "undecided",
    }


def test_store_of_a_scope_is_reported(tmp_path, capsys):
    import torch

    import normscope as ns

    torch.manual_seed(0)
    net = ns.models.build("fully_connected", input_shape=(1, 8, 8), outputs=10, width=10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    digits = ns.data.load("digits").train
    with (
        Store(tmp_path / "runs.db") as store,
        ns.Scope(net, "cross_entropy", optimizer, "economy", every=1, store=store) as scope,
    ):
        for step in range(3):
            x, y = digits.x[step * 32 : step * 32 + 32], digits.y[step * 32 : step * 32 + 32]
            scope.step(x, y)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    own = scope.report(tmp_path / "own.html")
    assert "measured 3 steps, from 0 to 2" in own.read_text(encoding="utf-8")
    out = tmp_path / "store.html"
    assert main(["report", str(tmp_path / "runs.db"), "-o", str(out)]) == 0
    assert "A scope on" in capsys.readouterr().out
    for path in (own, out):
        found = outline(path.read_text(encoding="utf-8"))
        (drawing,) = (each for each in found.named("svg") if "role" in each.attributes)
        assert "panels over the training steps" in drawing.attributes["aria-label"]
        assert {"scope.nc"} <= {e.attributes.get("download") for e in found.named("a")}


def files_in(folder):
    """Names of the files, without those that SQLite keeps beside a database that is read."""
    return sorted(
        path.name for path in folder.iterdir() if not path.name.endswith(("-shm", "-wal"))
    )


def test_command_of_a_sweep_finds_every_cell_again(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    out = folder / "sweep.html"
    assert main(["report", "phase.sqlite", "-o", str(out)]) == 0
    (command,) = (e.text for e in outline(out.read_text(encoding="utf-8")).named("code"))
    assert command.startswith("normscope sweep phase_diagram --set ")
    capsys.readouterr()
    assert main([*shlex.split(command)[1:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cells"], found["found"]) == (4, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report"], "Missing argument"),
        (["report", "phase.sqlit"], "did you mean 'phase.sqlite'?"),
        (["report", "figure.png"], "report cannot read"),
        (["report", "empty.sqlite"], "holds no records yet"),
        (["report", "broken.sqlite"], "not a store of normscope"),
        (["report", "phase.sqlite", "-o", "."], "is a folder"),
        (["report", "phase.sqlite", "-o", "phase.sqlite"], "a report is an HTML file"),
        (["report", ".", "-o", "phase.nc"], "a report is an HTML file"),
        (["report", "store.html", "-o", "./store.html"], "files that the report is made of"),
        (["report", "nothing"], "holds no result and no store"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(
    folder, arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "phase.sqlite").write_bytes((folder / "phase.sqlite").read_bytes())
    (tmp_path / "store.html").write_bytes((folder / "phase.sqlite").read_bytes())
    (tmp_path / "figure.png").write_bytes(b"x")
    (tmp_path / "broken.sqlite").write_bytes(b"hello" * 300)
    (tmp_path / "nothing").mkdir()
    Store(tmp_path / "empty.sqlite").close()
    before = files_in(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    told = [line for line in captured.err.splitlines() if not line.startswith("report: ")]
    assert len(told) == 1  # besides progress, on a slow machine
    assert files_in(tmp_path) == before


def test_report_runs_no_code_that_a_store_names(tmp_path, capsys):
    """A store from somebody else may name any function as its model."""
    trap, out = tmp_path / "trap", tmp_path / "report.html"
    (cell,) = Diagram({"gamma": [1.0], "learning_rate": [0.1]}, {"epochs": 1.0}, [0]).cells
    settings = {name: value for name, value in cell.parameters.items() if name != "gamma"}
    with Store(tmp_path / "foreign.sqlite") as store:
        for model in ("subprocess:getoutput", 3):
            for gamma in (0.5, 1.0):
                named = {**settings, "model": model, "gamma": gamma, "cmd": f"touch {trap}"}
                key = store.add("phase_diagram", named, 0)
                store.start(key)
                store.finish(key, training_cell(epochs=1, samples=256, width=8, seed=0))
    assert main(["report", str(tmp_path / "foreign.sqlite"), "-o", str(out)]) == 0
    assert out.is_file()
    assert not trap.exists()


def test_help_has_an_example(capsys):
    assert main(["report", "--help"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"Example: normscope report .*-o report\.html", text, re.DOTALL)


def test_report_is_read_beside_a_writer_and_survives_an_interrupt(
    folder, tmp_path, monkeypatch, capsys
):
    from normscope.report import stores

    (tmp_path / "phase.sqlite").write_bytes((folder / "phase.sqlite").read_bytes())
    folder = tmp_path
    written = []

    def interrupted(stream):  # the page is written, and not yet in its place
        written.extend(path.stat().st_size for path in folder.glob(".interrupted-*.html"))
        if written:  # the files inside the page come before
            raise KeyboardInterrupt

    out = folder / "interrupted.html"
    out.write_text("the page before", encoding="utf-8")
    arguments = ["report", str(folder / "phase.sqlite"), "-o", str(out)]
    with Store(folder / "phase.sqlite") as writer:
        keys = [writer.add("beside", {"number": number}, 0) for number in range(3)]

        def looking(store, record):  # the writer goes on between two reads
            if keys:
                key = keys.pop()
                writer.start(key)
                writer.append(key, xr.Dataset({"loss": ("step", [2.0])}, {"step": [0]}))
            return read_entry(store, record)

        read_entry = stores.read_entry
        monkeypatch.setattr(stores, "read_entry", looking)
        with monkeypatch.context() as patch:
            patch.setattr("normscope.files.os.fsync", interrupted)
            assert main(arguments) == 130
        assert min(written) > 10_000
        assert out.read_text(encoding="utf-8") == "the page before"
        assert not list(folder.glob(".interrupted-*"))
        assert capsys.readouterr().err.splitlines()[-1] == "normscope: interrupted"
        assert main(arguments) == 0
        assert not keys
        assert writer.counts("beside")["running"] == 3
    assert "beside in phase.sqlite" in out.read_text(encoding="utf-8")


def test_report_needs_no_torch_for_results(folder):
    """The torch-free column alone writes the page of a result."""
    code = (
        "import sys; from normscope.report import report_of, write_report; "
        f"write_report(report_of([{str(folder / 'runs' / 'wei2018')!r}]), 'x.html'); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, env=dict(os.environ))


@pytest.mark.parametrize("command", [["report"], ["sweep", "status"]])
def test_damaged_log_of_a_killed_process_is_a_note(tmp_path, capsys, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    killed = (
        "import os\nimport xarray as xr\nfrom normscope.results import Store\n"
        "store = Store('runs.sqlite')\n"
        "for seed in range(3):\n"
        "    store.compute('demo', {}, seed, lambda: xr.Dataset({'loss': 1.0}))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    with Store(tmp_path / "runs.sqlite"):
        pass  # so that the tables are in the file
    subprocess.run([sys.executable, "-c", killed], check=False)
    log = tmp_path / "runs.sqlite-wal"
    log.write_bytes(log.read_bytes()[:-1] + b"x")
    assert main([*command, "runs.sqlite"]) == 0
    lines = capsys.readouterr().err.splitlines()  # with progress on a slow machine
    note = "normscope: note: runs.sqlite was not closed by its last writer, and 1 record that"
    assert len([line for line in lines if line.startswith(note)]) == 1
    assert not [line for line in lines if "Warning" in line]
