"""``normscope watch`` as a command: an address, Ctrl-C, one line for an error."""

import json
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest
import xarray as xr

from normscope.cli.main import main
from normscope.results import Store


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "runs.db"
    with Store(path) as store:
        for rate in (0.1, 1.0):
            key = store.add("sweep", {"learning_rate": rate}, 0)
            store.start(key)
            store.finish(key, xr.Dataset({"loss": ("step", [2.0, rate]), "test_loss": rate}))
    return path


def start(*arguments):
    command = [sys.executable, "-m", "normscope", "watch", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_page_is_served_at_the_printed_address_until_a_signal(path, number):
    with start(path) as process:
        line = process.stdout.readline()
        assert line.startswith("Open http://127.0.0.1:")
        with urllib.request.urlopen(line.split()[1], timeout=60) as answer:
            assert b"normscope watch" in answer.read()
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert [each.name for each in path.parent.iterdir() if "-" in each.name] == []


def test_terminal_prints_the_stores_when_piped_until_ctrl_c(path):
    with start(path, "--terminal") as process:
        watchdog = threading.Timer(100, process.kill)
        watchdog.start()
        while line := process.stdout.readline():
            if "2 of 2 records done" in line:
                process.send_signal(signal.SIGINT)
                break
        process.stdout.read()
        assert (process.wait(), process.stderr.read()) == (0, "")
        watchdog.cancel()


def test_once_prints_the_present_state(path, capsys):
    assert main(["watch", str(path), "--once"]) == 0
    text = capsys.readouterr().out
    assert "runs.db  no process is writing it" in text
    assert "2 of 2 records done" in text


def test_json_is_strict_and_has_every_part(path, capsys):
    assert main(["watch", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [part["kind"] for part in found["parts"]] == ["store", "experiment", "grid", "curves"]
    assert found["parts"][2]["cells"]["losses"] == [0.1, 1.0]


@pytest.mark.parametrize("option", ["--once", "--json"])
def test_a_store_that_does_not_exist_is_refused_if_nothing_waits_for_it(tmp_path, capsys, option):
    assert main(["watch", str(tmp_path / "later.db"), option]) == 2
    printed = capsys.readouterr()
    assert "there is no store at" in printed.err
    assert "wait for it" in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("notes.txt", "is not a store of normscope"),
        (".", "is a folder; name the store in it"),
        ("missing/runs.db", "there is no folder"),
    ],
)
def test_what_cannot_be_a_store_is_refused_in_one_line(tmp_path, capsys, name, words):
    (tmp_path / "notes.txt").write_text("notes " * 200)
    assert main(["watch", str(tmp_path / name)]) == 2
    errors = capsys.readouterr().err
    assert words in errors
    assert errors.count("\n") == 1


def test_a_port_that_does_not_exist_is_refused(path, capsys):
    assert main(["watch", str(path), "--port", "70000"]) == 2
    assert "--port" in capsys.readouterr().err
