import errno
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import xarray as xr
from torch import nn

import normscope as ns
from normscope.cli.main import main
from normscope.cli.render import (
    check_figure,
    check_file,
    check_folder,
    draw_then_print,
    print_json,
    print_note,
    print_table,
    print_text,
    resumable,
    write_then_print,
)
from normscope.errors import InputError
from normscope.results import Store


def test_table_is_plain_text_when_piped(capsys):
    print_table("Title", [{"name": "one", "value": 0.123456}, {"name": "two", "value": None}])
    text = capsys.readouterr().out
    assert "\x1b" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["one", "0.1235"] in rows
    assert ["two", "-"] in rows
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_table_fits_80_columns_when_piped_and_else_its_terminal(capsys, monkeypatch):
    rows = [{"name": "fact [bold]", "what": "words " * 30, "slack": "1.0e-15"}]
    print_table("Title", rows, numbers=["slack"])
    piped = capsys.readouterr().out
    assert 60 < max(map(len, piped.splitlines())) <= 80
    assert piped.count("words") == 30
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("TERM", "dumb")
    print_table("Title", rows, numbers=["slack"])
    out = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 70
    assert out.count("words") == 30
    assert "fact [bold]" in out


@pytest.mark.parametrize(
    ("columns", "table", "note"),
    [("60", 60, 60), ("200", 200, 200), ("", 80, 80), ("0", 80, 80), ("-5", 80, 80)],
)
def test_columns_says_the_width_of_what_is_piped(columns, table, note, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    print_table("Title", [{"name": "net", "what": "words " * 60}])
    assert table - 6 < max(map(len, capsys.readouterr().out.splitlines())) <= table
    print_note("words " * 60)
    assert note - 6 < max(map(len, capsys.readouterr().out.splitlines())) <= note


def test_columns_that_are_no_number_are_not_read(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "wide")
    print_note("words " * 60)
    assert 74 < max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_title_and_heads_are_bold_in_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    print_note("Title\nname  limit\n-----------\nnone    0.5\n\nA sentence.")
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("\x1b[1m") for line in lines] == [True, True, *[False] * 4]


def test_note_is_wrapped_to_80_columns_when_piped(capsys):
    note = "A sentence of some words about path/to-a/file.py:build. " * 20
    row = "name  " + "x " * 60
    print_note(f"{note.strip()}\n\n{row}\nshort")
    *lines, empty, same, short = capsys.readouterr().out.splitlines()
    assert (empty, same, short) == ("", row, "short")
    assert 60 < max(map(len, lines)) <= 80
    assert " ".join(lines) == note.strip()
    assert not any("path/to-" in line and "file.py:build" not in line for line in lines)


def test_note_is_wrapped_to_the_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    print_note("word " * 20)
    assert [len(line) for line in capsys.readouterr().out.splitlines()] == [29, 29, 29, 9]


@pytest.mark.parametrize("columns", [60, 100])
def test_results_fit_the_terminal_and_lose_no_number(columns, capsys):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    problem = net, "squared_error", (torch.randn(16, 4), torch.randn(16, 3))
    advice = ns.max_learning_rate(*problem, verify=False)
    compared = ns.compare(*problem, norms=["none", "batch"], verify=False, steps=3)
    predicted = ns.meanfield.predict(net, (4,))
    for result in (advice, compared, predicted):
        print_text(result.text(columns))
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= columns
        numbers = re.findall(r"\d\S*", str(result))
        assert set(numbers) <= set(re.findall(r"\d\S*", out))


def test_json_is_strict(capsys):
    print_json({"a": math.nan, "b": [math.inf, 1.5], "c": (None, "x")})
    text = capsys.readouterr().out
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": None,
        "b": [None, 1.5],
        "c": [None, "x"],
    }


def test_nothing_is_left_where_something_can_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("x.svg", "new/x.svg", "new/deeper/x.svg", tmp_path / "a" / "b"):
        check_file(Path(place), "figure")
        check_folder(Path(place), "files")
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_there_stays_as_it_is(tmp_path):
    (tmp_path / "x.svg").write_text("old")
    check_file(tmp_path / "x.svg", "figure")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


def test_folder_in_place_of_a_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r" is a folder; name a file in it, such as .*report\."):
        check_file(tmp_path, "report", "report.html")


def test_file_in_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    for deeper in ("", "a", "a/b"):
        with pytest.raises(InputError, match=r"^the files cannot go to .*taken is not a folder; "):
            check_folder(tmp_path / "taken" / deeper, "files")


@pytest.mark.parametrize("place", ["x.svg", "new/x.svg"])
def test_reason_of_the_system_is_told(place, tmp_path, monkeypatch):
    def refuse(path, *arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir" if "/" in place else "open", refuse)
    said = r"is not writable \(Permission denied\); choose another\.$"
    with pytest.raises(InputError, match=said):
        check_file(tmp_path / place, "figure")
    assert list(tmp_path.iterdir()) == []


def test_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is not writable \("):
        check_file(tmp_path / f"{'x' * 250}.svg", "figure")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that even root has not")
def test_folder_that_nobody_can_make_is_refused():
    assert os.access("/proc", os.X_OK)
    with pytest.raises(
        InputError, match=r"^the figure cannot go to /proc/nope: /proc is not writable"
    ):
        check_file(Path("/proc/nope/x.svg"), "figure")


def test_answer_is_printed_before_the_failure_to_write(capsys):
    def fail():
        raise OSError(errno.ENOSPC, "No space left on device", "x.svg")

    def answer():
        with write_then_print(fail) as written:
            print(f"the answer, {written}")

    with pytest.raises(OSError, match="No space left"):
        answer()
    assert capsys.readouterr().out == "the answer, None\n"
    with write_then_print(lambda: "x.svg") as written:
        assert written == "x.svg"


NET = ["fully_connected", "--data", "digits"]


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["lr", *NET], "x.svg"),
        (["compare", *NET], "x.svg"),
        (["curvature", *NET], "x.svg"),
        (["theory", "fully_connected"], "x.svg"),
        (["demo"], ""),
        (["run", "wei2018/figure1"], ""),
        (["sweep", "phase_diagram"], "x.sqlite"),
        (["sweep", "phase_diagram", "--boundary"], "x.sqlite"),
        (["report", "normscope-out"], "x.html"),
        (["data", "fetch", "mnist"], ""),
    ],
)
def test_every_command_refuses_before_it_works(arguments, place, tmp_path, monkeypatch, capsys):
    (tmp_path / "taken").write_text("")
    for home in ("normscope.cli.sources.load_data", "normscope.data.download"):
        monkeypatch.setattr(home, lambda *given, **options: pytest.fail("work has begun"))
    out = tmp_path / "taken" / "deeper" / place
    assert main([*arguments, "--out", str(out)]) == 2
    assert "taken is not a folder; choose another.\n" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


FIGURES = {
    "lr": ["lr", *NET, "--batch-size", "16", "--option", "width=8", "--no-verify"],
    "compare": [
        *("compare", *NET, "--batch-size", "16", "--option", "width=8", "--no-verify"),
        *("--norms", "none", "--steps", "2"),
    ],
    "curvature": ["curvature", *NET, "--batch-size", "16", "--option", "width=8"],
    "theory": ["theory", "fully_connected"],
}


@pytest.mark.parametrize("command", FIGURES)
def test_answer_is_not_lost_with_its_figure(command, tmp_path, monkeypatch, capsys):
    def fail(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device", "x.svg")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    assert main([*FIGURES[command], "--out", str(tmp_path / "x.svg")]) == 2
    out, err = capsys.readouterr()
    assert len(out.splitlines()) >= 5  # three lines of an answer, and what it is of
    assert "Figure: " not in out
    assert err.endswith("normscope: x.svg: No space left on device\n")
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True)
class Unwritable:
    """The result of an experiment that meets a full disk."""

    label: str | None = None
    claims: tuple[()] = ()

    def write(self, folder):
        raise OSError(errno.ENOSPC, "No space left on device", "x.svg")

    def __str__(self):
        return "the answer"


def test_run_prints_a_result_that_it_cannot_write(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("normscope.experiments.run", lambda *given, **options: Unwritable())
    assert main(["run", "wei2018/figure1", "--out", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == "the answer\n"
    assert err.endswith("normscope: x.svg: No space left on device\n")


def test_demo_prints_a_result_that_it_cannot_write_and_keeps_its_work(
    tmp_path, monkeypatch, capsys
):
    printed = []
    monkeypatch.setattr("normscope.experiments.run", lambda *given, **options: Unwritable())
    monkeypatch.setattr("normscope.experiments.tour.page.with_record", lambda *given: None)
    monkeypatch.setattr("normscope.cli.demo._write", lambda result, *given: result.write(given))
    monkeypatch.setattr("normscope.cli.demo._print", lambda *given: printed.append(given))
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert [given[2] for given in printed] == [{}]  # no files
    assert capsys.readouterr().err.endswith("normscope: x.svg: No space left on device\n")
    assert (tmp_path / "demo-unfinished.sqlite").exists()


def test_folder_is_made_with_the_figure_and_not_before(tmp_path):
    out = tmp_path / "new" / "deeper" / "x.svg"
    check_figure(out)
    assert list(tmp_path.iterdir()) == []
    with draw_then_print(out, lambda axes: axes.plot([1, 2])) as drawn:
        assert drawn == out
    assert [each.name for each in out.parent.iterdir()] == ["x.svg"]


def test_title_is_above_the_labels_above_the_axes(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(
        "normscope.cli.render.save_figure", lambda figure, _: written.append(figure)
    )

    def draw(axes):
        axes.annotate("a label", (0.5, 1), (0, 50), "axes fraction", "offset points")

    with draw_then_print(tmp_path / "x.svg", draw, "a model"):
        pass
    (figure,) = written
    figure.draw_without_rendering()
    (label,) = figure.axes[0].texts
    assert figure.get_suptitle() == "a model"
    assert figure._suptitle.get_window_extent().y0 > label.get_window_extent().y1


def test_relative_folder_is_looked_for_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_figure(Path("x.svg"))
    check_figure(Path("new/deeper/x.svg"))
    assert list(tmp_path.iterdir()) == []


def test_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match=r"taken is not a folder; choose another\."):
        check_figure(tmp_path / "taken" / "deeper" / "x.svg")


def test_interrupt_says_what_was_kept_and_how_to_go_on(tmp_path):
    path = tmp_path / "sweep.sqlite"
    begun = "interrupted; nothing was computed yet."
    kept = f"interrupted; finished work is kept in {path}; run the same command to resume."

    def told():
        with pytest.raises(KeyboardInterrupt) as caught, resumable(path):
            raise KeyboardInterrupt
        return str(caught.value)

    assert told() == begun
    with Store(path):
        pass
    assert told() == begun  # a file without results
    with Store(path) as store:
        store.compute("training", {}, 0, lambda: xr.Dataset({"loss": 0.5}))
    assert told() == kept
    path.write_bytes(b"no store")
    assert told() == kept  # who cannot look promises no loss


def test_device_or_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.svg")
    with pytest.raises(InputError, match=r"pipe\.svg, which is a device or a pipe; name a file"):
        check_file(tmp_path / "pipe.svg", "figure")
