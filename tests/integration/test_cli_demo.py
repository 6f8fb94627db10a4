"""``normscope demo`` as a user meets it."""

import html
import json
import os
import re
import subprocess
import sys

import pytest
import xarray as xr

from normscope.cli.main import main
from normscope.experiments.tour import summary, tour

COMMAND = [sys.executable, "-m", "normscope", "demo", "--scale", "quick"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The command's text and the folder it wrote."""
    folder = tmp_path_factory.mktemp("demo")
    environment = dict(os.environ)  # without COLUMNS, which readline may set behind Python's back
    done = subprocess.run(
        [*COMMAND, "--out", str(folder)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done, folder


def sentences_of(folder):
    """Return the headline and what was found in each part, from the demo's file of numbers."""
    with xr.open_dataset(folder / "demo.nc", engine="scipy") as numbers:
        return [summary.headline(numbers), *summary.findings(numbers).values()]


def test_demo_prints_a_row_for_each_norm_and_what_was_found(shown):
    done, folder = shown
    assert all(line.startswith("demo: ") for line in done.stderr.splitlines())
    assert done.stderr.splitlines()  # it is not silent in a log
    first, table, *_ = done.stdout.split("\n\n")
    assert first.startswith("Training breaks at a learning rate of ")
    names = ("none", "BatchNorm", "LayerNorm")
    found = [name for row in table.splitlines() for name in names if row.startswith(f"{name} ")]
    assert found == [*names]
    printed = " ".join(done.stdout.split())
    assert all(each in printed for each in sentences_of(folder))
    assert f"Report: {folder / 'report.html'}" in done.stdout


def test_demo_writes_report_figure_and_numbers_and_nothing_else(shown):
    _, folder = shown
    assert sorted(file.name for file in folder.iterdir()) == ["demo.nc", "demo.svg", "report.html"]
    assert (folder / "demo.svg").read_text(encoding="utf-8").rstrip().endswith("</svg>")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(each in html.unescape(page) for each in sentences_of(folder))
    assert page.count("<h1") == 1


def without_data(page):
    """The page without the files inside it, whose bytes hold the same numbers in other types."""
    return re.sub(r'href="data:[^"]*"|\(\S+ (kB|bytes)\)', "", page)


def test_report_of_the_folder_is_the_demos_page_again(shown, capsys):
    _, folder = shown
    again = folder.parent / "again.html"
    assert main(["report", str(folder), "-o", str(again)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Training breaks at a learning rate of ")
    first, second = (
        without_data(path.read_text(encoding="utf-8")) for path in (folder / "report.html", again)
    )
    notice = "names this command, which normscope has not checked"
    assert (notice in first, notice in second) == (False, True)  # a file is from outside
    command = re.compile(
        r'(<p>The file of this result names[^\n]*\n)?<div class="command">.*?</div>'
    )
    assert command.search(first)
    assert command.search(second)
    # findings, pictures, tables, claims, settings, versions
    assert command.sub("", first) == command.sub("", second)


def test_demo_says_when_it_gives_the_same_numbers_again(shown):
    done, _ = shown
    assert "gives these numbers again bit for bit" in " ".join(done.stdout.split())


def test_unknown_scale_is_refused_before_anything_is_written(tmp_path, capsys):
    folder = tmp_path / "new"
    assert main(["demo", "--scale", "smal", "--out", str(folder)]) == 2
    assert "did you mean 'small'?" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.slow
def test_interrupted_demo_goes_on_and_its_json_is_json_alone(tmp_path, monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    command = ["demo", "--scale", "quick", "--seed", "3", "--json", "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(tour, "landscape", interrupted)
        assert main(command) == 130
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "finished work is kept in" in printed.err
    left = {file.name for file in tmp_path.iterdir()}
    assert "demo-unfinished.sqlite" in left
    assert not left & {"demo.nc", "demo.svg", "report.html"}
    with monkeypatch.context() as patch:  # limits and trainings are not made again
        patch.setattr(tour, "limits", lambda *given: pytest.fail("was stored"))
        patch.setattr(tour, "training", lambda *given: pytest.fail("was stored"))
        assert main(command) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [row["normalization"] for row in found["norms"]][:2] == ["no normalization", "BatchNorm"]
    assert found["settings"]["seed"] == 3
    assert 0 < found["seconds_before"] < found["seconds"]  # what the first run did is counted
    assert found["findings"] == sentences_of(tmp_path)
    assert set(found["files"]) == {"report", "figure", "numbers"}
    assert {file.name for file in tmp_path.iterdir()} == {"demo.nc", "demo.svg", "report.html"}
